"""The DVM engine from `vtc.compile` to the native machine."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import vtc
from patterns.dynamic_patterns import DYNAMIC
from vtc.errors import FallbackWarning
from vtc.lowering.dvm.plan import ModuleStep, Plan, Space, TensorRef
from vtc.program.dtypes import DType
from vtc.program.module import Buffer, Module
from vtc.program.tile import Access, Instr, TileKernel
from vtc.program.verify import ProgramError
from vtc.runtime import dvm, dvm_compile
from vtc.runtime.dvm import counters

try:
    dvm.native_machine()
except vtc.errors.EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)  # the interpreter is not built

pytestmark = [
    pytest.mark.filterwarnings("error::vtc.errors.VtcWarning"),
    pytest.mark.usefixtures("clean_dynamo"),
]
r = torch.randn
TWICE = {"rms_norm_of_any_batch_144068", "decode_context_grows"}


def copies(args: Any) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


@pytest.fixture(autouse=True)
def from_zero() -> None:
    counters.reset()


@pytest.mark.parametrize("name", DYNAMIC)
@torch.no_grad()
def test_a_pattern_runs_without_compiling_again(name: str) -> None:
    fn, calls = DYNAMIC[name]()
    compiled = vtc.compile(fn, engine="dvm")
    for args in [*calls, *calls]:
        ours, theirs = copies(args), copies(args)
        torch.testing.assert_close(compiled(*ours), fn(*theirs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs)
    assert counters.captures == (2 if name in TWICE else 1)
    assert counters.compilations == 0


@torch.no_grad()
def test_a_known_size_is_not_encoded_again() -> None:
    compiled = vtc.compile(lambda x: x.softmax(-1) * 2, engine="dvm")
    for n in (3, 5, 3, 5, 7, 3):
        compiled(r(n, 9))
    assert (counters.captures, counters.encodes) == (1, 3)


@torch.no_grad()
def test_old_encodings_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dvm, "KEPT", 2)
    compiled = vtc.compile(lambda x: x + 1, engine="dvm")
    for n in (3, 5, 7, 3):
        assert torch.equal(compiled(torch.ones(n, 2)), torch.full((n, 2), 2.0))
    assert counters.encodes == 4


@torch.no_grad()
def test_as_a_backend_of_torch_compile() -> None:
    fn = torch.compile(
        lambda x, y: (x @ y).relu(), backend="vtc", options={"engine": "dvm"}, dynamic=True
    )
    for n in (4, 9):
        x, y = r(n, 6), r(6, 3)
        torch.testing.assert_close(fn(x, y), (x @ y).relu())
    assert counters.captures == 1


@torch.no_grad()
def test_arguments_that_overlap_are_seen_to() -> None:
    def update(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b

    compiled = vtc.compile(update, engine="dvm")
    compiled(r(8), r(8))
    ours, theirs = (torch.arange(9.0) for _ in range(2))
    assert torch.equal(compiled(ours[:-1], ours[1:]), update(theirs[:-1], theirs[1:]))
    assert torch.equal(ours, theirs)


@torch.no_grad()
def test_an_index_out_of_range_is_an_error() -> None:
    compiled = vtc.compile(lambda x, i: x[i] * 2, engine="dvm")
    compiled(r(6, 3), torch.tensor([5, -6]))
    with pytest.raises(IndexError, match="out of"):
        compiled(r(6, 3), torch.tensor([0, 6]))


@torch.no_grad()
def test_tensors_without_elements_have_no_address() -> None:
    compiled = vtc.compile(lambda c, a, b: (torch.addmm(c, a, b), (a * 2).flip(0, 1)), engine="dvm")
    for m, k, n in ((5, 0, 4), (3, 2, 6), (0, 3, 4), (3, 2, 0)):
        args = r(m, n), r(m, k), r(k, n)
        torch.testing.assert_close(compiled(*args), (torch.addmm(*args), (args[1] * 2).flip(0, 1)))


@torch.no_grad()
def test_a_branch_on_a_size_of_zero_is_taken_when_it_is() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sum() if x.numel() > 0 else torch.full((), -1.0)

    compiled = vtc.compile(f, engine="dvm")
    for n in (4, 0, 1, 0, 7):
        x = r(n, 3)
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("first", [3, 1])
@torch.no_grad()
def test_a_dimension_is_squeezed_when_its_size_is_1(first: int) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.squeeze(1) * 2, x.squeeze()

    compiled = vtc.compile(f, engine="dvm")
    for n in (first, 1, 4, 1, 3):
        x = r(5, n, 2)
        for got, want in zip(compiled(x), f(x), strict=True):
            assert got.shape == want.shape
            assert torch.equal(got, want)


@torch.library.custom_op("misjudged::wide_sum", mutates_args=())
def wide_sum(x: Tensor) -> Tensor:
    """Its fake kernel says f32, and rows behind one another."""
    return x.double().sum(0, keepdim=True).t()


@wide_sum.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], 1)


@torch.library.custom_op("misjudged::odd_rows", mutates_args=())
def odd_rows(x: Tensor) -> Tensor:
    """Its fake kernel says as many rows as there were."""
    return x[::2].clone()


@odd_rows.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.no_grad()
def test_a_result_of_another_dtype_than_inferred_is_cast() -> None:
    x = r(4, 3)
    compiled = vtc.compile(lambda x: wide_sum(x) * 2, engine="dvm")
    with pytest.warns(vtc.errors.FallbackWarning, match="wide_sum"):
        got = compiled(x)
    torch.testing.assert_close(got, x.sum(0)[:, None] * 2)


@torch.no_grad()
def test_a_result_of_another_shape_than_inferred_is_an_error() -> None:
    compiled = vtc.compile(lambda x: odd_rows(x) * 2, engine="dvm")
    unexpected = pytest.raises(vtc.errors.UnexpectedResultError, match="odd_rows")
    with pytest.warns(vtc.errors.FallbackWarning, match="odd_rows"), unexpected:
        compiled(r(4, 3))


@torch.no_grad()
def test_a_result_without_any_kernel_is_allocated() -> None:
    compiled = vtc.compile(lambda x: x.flip(0), engine="dvm", dynamic=False)
    assert compiled(torch.empty(0, 3)).shape == (0, 3)


class Cropped(torch.nn.Module):
    """Crops one side by more than there may be, and repeats the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (-4, 5), "replicate") * 2


@torch.no_grad()
def test_padding_that_crops_more_than_there_is() -> None:
    compiled = vtc.compile(Cropped(), engine="dvm")
    for n in (6, 4, 3, 9):
        x = r(2, 3, n)
        assert torch.equal(compiled(x), Cropped()(x))


@torch.no_grad()
def test_storage_that_begins_elsewhere_each_time() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.as_strided(x, (2, 2), (1, 2), 3) * 2

    compiled = vtc.compile(f, engine="dvm")
    with pytest.warns(vtc.errors.FallbackWarning, match="as_strided"):
        compiled(torch.arange(20.0)[1:10].reshape(3, 3))
    for start in (1, 2, 5):
        x = torch.arange(20.0)[start : start + 9].reshape(3, 3)
        assert torch.equal(compiled(x), f(x))


@torch.no_grad()
def test_sizes_that_cannot_be_encoded_run_as_eager_pytorch(monkeypatch: Any) -> None:
    def refused(*_: Any) -> None:
        raise NotImplementedError("a kernel has too many registers")  # as the encoder does

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.add_(1), x.sort(-1).values * 2

    compiled = vtc.compile(f, engine="dvm")
    with pytest.warns(vtc.errors.FallbackWarning, match="sort"):
        compiled(r(3, 4))
    monkeypatch.setattr(dvm.machine.Machine, "encode", refused)
    ours, theirs = (torch.arange(20.0).reshape(5, 4) for _ in range(2))
    with pytest.warns(vtc.errors.FallbackWarning, match="a call.*too many registers"):
        torch.testing.assert_close(compiled(ours), f(theirs))
    assert torch.equal(ours, theirs)


def test_a_malformed_module_never_reaches_the_machine() -> None:
    body = (Instr("const", (), DType.BOOL, constant=True), Instr("neg", (0,), DType.BOOL))
    store = Instr("store", (1,), DType.BOOL, Access(0, 0, (1,)))
    kernel = TileKernel("k0", (4,), frozenset(), (*body, store))
    module = Module((), (Buffer("t0", "output", DType.BOOL, 4),), (kernel,))
    space = Space("made", DType.BOOL, (4,), (1,))
    plan = Plan(0, (), (space,), (ModuleStep(module, (0,)),), (TensorRef(0),))
    with pytest.raises(ProgramError, match="neg of bool"):
        dvm.Program(plan, dvm.native_machine())


@torch.no_grad()
def test_what_has_no_kernel_is_named_once() -> None:
    compiled = vtc.compile(lambda x: (x * 2).sort(-1).values + 1, engine="dvm")
    x = r(4, 6)
    with pytest.warns(vtc.errors.FallbackWarning, match="sort"):
        assert torch.equal(compiled(x), (x * 2).sort(-1).values + 1)
    compiled(r(5, 6))
    assert counters.eager == 2


def test_the_report_shows_the_tile_programs() -> None:
    (record,) = vtc.compiler.compile_records(
        lambda x: x.t().softmax(-1), (r(4, 5),), {}, engine="dvm"
    )
    assert record.engine == "dvm"
    assert "reduce f32 max" in record.texts["tile programs"]
    assert record.movement.residual == 0


@torch.no_grad()
def test_a_model_keeps_its_weights_where_they_are() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    compiled = vtc.compile(model, engine="dvm")
    for n in (4, 7):
        x = r(n, 6)
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.mul_(2)
    assert counters.captures == 1


def test_a_float_of_a_module_is_a_constant_until_it_changes() -> None:
    """As its integers are; one that is passed is an argument."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 0.5
            self.norm = torch.nn.BatchNorm1d(4, eps=0.25)

        def forward(self, x: Tensor, shift: float) -> Tensor:
            return self.norm(x) * self.factor + shift

    model = Model().eval()
    compiled = vtc.compile(model, engine="dvm")
    x = torch.randn(3, 4)
    captured = counters.captures
    with torch.no_grad():
        for shift in (0.5, 0.75):
            torch.testing.assert_close(compiled(x, shift), model(x, shift))
        assert counters.captures == captured + 1
        model.factor = 0.125
        torch.testing.assert_close(compiled(x, 0.25), model(x, 0.25))


@torch.no_grad()
def test_a_size_of_one_of_a_tensor_that_a_module_holds_is_no_batch() -> None:
    """It is broadcast, whatever the batch, at once at batch 1."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = torch.rand(1, 5) + 0.5

        def forward(self, x: Tensor) -> Tensor:
            return x.mul(2) * self.scales + x.sum(-1, keepdim=True)

    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for batch in (1, 3, 2):
        x = r(batch, 4, 5)
        torch.testing.assert_close(compiled(x), model(x))
    assert counters.captures == 1


# Numbers that tensors hold.


def held_axes(x: Tensor, axes: Tensor) -> Tensor:
    dims = [a % x.dim() for a in axes.tolist()]
    return x.amax(dims) if all(x.shape[d] != 0 for d in dims) else x.sum(dims)


def held_choice(x: Tensor, index: Tensor) -> Tensor:
    return [x, x.exp(), x * 2][int(index)] + 1


def held_shape(x: Tensor, shape: Tensor) -> Tensor:
    n, c, d, h, w = (int(s) for s in shape)
    return x.reshape(n * d, c, h * w).transpose(1, 2).reshape(n, d * h, w, c) * 2


@pytest.mark.parametrize(
    ("function", "held"),
    [
        (held_axes, ([1], [-1], [0, 2])),
        (held_choice, (0, 2, 1)),
        (held_shape, ([2, 3, 1, 4, 5], [1, 1, 6, 4, 5], [3, 2, 2, 5, 2])),
    ],
)
def test_numbers_that_tensors_hold_may_decide_anything(function: Any, held: Any) -> None:
    compiled = vtc.compile(function, engine="dvm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for numbers in held:
            x = torch.randn(2, 12, 5)
            torch.testing.assert_close(
                compiled(x, torch.tensor(numbers)), function(x, torch.tensor(numbers))
            )


def test_sizes_are_computed_from_a_number_that_a_call_gives() -> None:
    def resized(x: Tensor, scale: float) -> Tensor:
        return F.interpolate(x, scale_factor=(scale, scale)) * scale

    compiled = vtc.compile(resized, engine="dvm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for size, scale in ((4, 2.5), (4, 1.5), (6, 0.7), (7, 3.0)):
            x = torch.randn(1, 2, size, size)
            torch.testing.assert_close(compiled(x, scale), resized(x, scale))


def test_linear_without_bias_behind_a_norm_is_captured() -> None:
    norm, linear = torch.nn.BatchNorm1d(6).eval(), torch.nn.Linear(6, 4, bias=False)

    def model(x: Tensor) -> Tensor:
        return linear(norm(x.flatten(0, 1)).reshape_as(x))

    compiled = vtc.compile(model, engine="dvm")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for n in (2, 5):
            x = torch.randn(n, 3, 6)
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("batches", [(3, 1, 2, 1), (1, 3, 1, 2)])
def test_a_branch_on_a_size_of_1_costs_one_capture_more(monkeypatch: Any, batches: Any) -> None:
    """The guard's number is that of all sizes that are the same: nothing looks broadcast."""

    def attend(x: Tensor, places: Tensor) -> Tensor:
        batch, _, rows, _ = x.shape
        if batch != places.shape[0]:
            x = x + 1
        turned = x * places[:, None, :, None]
        mask = torch.ones(rows, rows, dtype=torch.bool).tril().expand(batch, 1, rows, rows)
        return F.scaled_dot_product_attention(turned, turned, x, attn_mask=mask)

    planned, traces = dvm_compile.planned, []
    monkeypatch.setattr(dvm_compile, "planned", lambda *a: traces.append(a) or planned(*a))
    compiled = vtc.compile(attend, engine="dvm")
    for n, batch in enumerate(batches):
        args = torch.randn(batch, 4, 9 + n, 8), torch.randn(1, 9 + n)
        torch.testing.assert_close(compiled(*args), attend(*args), rtol=1e-4, atol=1e-4)
    assert len(traces) == counters.captures == 2


@pytest.mark.parametrize("dims", [(1, 3, 5, 7, 9), (0, 2, 4, 6, 8), (9, 7, 1, 4)])
@torch.no_grad()
def test_folds_over_many_dimensions_apart_are_kernels(dims: tuple[int, ...]) -> None:
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        mean = x.exp().mean(dims, keepdim=True)
        return mean, (x - mean).amax(dims), n.sum(dims), n.amin(dims) * 2

    compiled = vtc.compile(f, engine="dvm")
    for sizes in ((2, 3, 2, 2, 2, 3, 2, 2, 3, 2, 2), (3, 2, 2, 3, 2, 2, 2, 2, 2, 3, 3)):
        args = r(sizes), torch.randint(-9, 9, sizes)
        torch.testing.assert_close(compiled(*args), f(*args))
