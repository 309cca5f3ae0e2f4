"""On a CUDA device: compiled patterns, CUDA graphs, and the state they keep."""

import copy

import pytest
import torch

import vtc
from patterns.movement_patterns import ALIASING, PATTERNS

pytestmark = pytest.mark.gpu
STATIC = {"cost": "static", "verify": False}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # else PyTorch's own two ways differ by 1e-3


def on_device(args):
    memo = {}
    return tuple(
        memo.setdefault(id(a), a.cuda()) if isinstance(a, torch.Tensor) else a for a in args
    )


def copies(args):
    memo = {}
    return tuple(
        memo.setdefault(id(a), a.clone()) if isinstance(a, torch.Tensor) else a for a in args
    )


@pytest.mark.parametrize("name", [*PATTERNS, *ALIASING])
def test_a_pattern_equals_eager_at_every_call(name):
    function, argument_sets = {**PATTERNS, **ALIASING}[name]()
    compiled = vtc.compile(function, objective="bytes", options=STATIC)
    args = on_device(argument_sets[0])
    with torch.no_grad():
        for _ in range(3):
            ours, theirs = copies(args), copies(args)
            expected, got = function(*theirs), compiled(*ours)
            torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
            args = (
                tuple(
                    torch.randn_like(a)
                    if isinstance(a, torch.Tensor) and a.is_floating_point()
                    else a
                    for a in args
                )
                if name != "same_argument_twice_and_updated"
                else args
            )


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 32, bias=False)

    def forward(self, x, cache, position):
        cache.index_copy_(1, position, self.project(x)[:, None])
        return torch.nn.functional.scaled_dot_product_attention(x[:, None], cache, cache)[:, 0]


def steps(model, cache, inputs):
    held = []
    for k, x in enumerate(inputs):
        held.append(model(x, cache, torch.tensor([k], device="cuda")))
    return held


def test_a_captured_graph_updates_the_cache_it_is_given_and_its_outputs_stay():
    model = Cached().cuda().eval()
    compiled = vtc.compile(copy.deepcopy(model), options=STATIC)
    with torch.no_grad():
        for _ in range(2):  # the second time with another cache object
            inputs = [torch.randn(4, 32, device="cuda") for _ in range(5)]
            ours, theirs = torch.zeros(4, 8, 32, device="cuda"), torch.zeros(4, 8, 32).cuda()
            got, expected = steps(compiled, ours, inputs), steps(model, theirs, inputs)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_weights_changed_in_place_are_seen_by_a_captured_graph():
    model = torch.nn.Linear(16, 16).cuda().eval()
    compiled = vtc.compile(model, options=STATIC)
    x = torch.randn(3, 16, device="cuda")
    with torch.no_grad():
        compiled(x)
        model.weight.mul_(-2)
        torch.testing.assert_close(compiled(x), model(x))


def test_an_integer_counter_updated_in_place_does_not_stop_the_capture():
    def count(counter, x):
        counter.add_(1)
        return x * counter

    compiled = vtc.compile(count, options=STATIC)
    counter, x = torch.zeros((), dtype=torch.int64, device="cuda"), torch.ones(5, device="cuda")
    with torch.no_grad():
        answers = [compiled(counter, x).clone() for _ in range(4)]
    assert [a[0].item() for a in answers] == [1, 2, 3, 4]
    assert counter.item() == 4


def test_measured_costs_choose_a_plan_that_is_right():
    def block(x, w1, w2):
        return torch.cat([torch.relu(x @ w1), torch.relu(x @ w2)], 1).sum(1)

    args = on_device((torch.randn(512, 256), torch.randn(256, 512), torch.randn(256, 512)))
    with torch.no_grad():
        torch.testing.assert_close(vtc.compile(block)(*args), block(*args), rtol=1e-3, atol=1e-2)


def test_outputs_of_a_captured_graph_keep_strides_and_what_they_share():
    def function(x, y):
        z = torch.cat([x + y, x * y])
        return z.unfold(0, 3, 1), z[1:3], x.view(torch.int32), y[:, 1:]

    compiled = vtc.compile(function, options=STATIC)
    with torch.no_grad():
        for _ in range(3):
            x, y = (torch.randn(6, 5, device="cuda") for _ in range(2))
            got, expected = compiled(x, y), function(x, y)
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one, other)
                assert one.stride() == other.stride()
            assert got[0].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()
            assert got[2].data_ptr() == x.data_ptr()
            assert got[3].untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_steady_arguments_are_read_where_they_are_until_others_come():
    """Calls on the same buffers, on others, on moved ones: every answer is eager's and stays."""
    model = Cached().cuda().eval()
    compiled = vtc.compile(copy.deepcopy(model), options=STATIC)
    cache, other = (torch.zeros(3, 8, 32, device="cuda") for _ in range(2))
    x, position = (
        torch.randn(3, 32, device="cuda"),
        torch.zeros(1, dtype=torch.int64, device="cuda"),
    )
    held = []
    with torch.no_grad():
        for k in range(48):
            if k == 24:
                x = torch.randn(3, 32, device="cuda")
            if k == 36:
                x.data = torch.randn(3, 32, device="cuda")
            x.normal_()
            position.fill_(k % 8)
            held.append((compiled(x, cache, position), model(x, other, position)))
    for got, expected in held:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache, other, rtol=1e-4, atol=1e-4)
