"""Executables return what eager PyTorch does: strides, shared storage, sizes that are symbols."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vtc
from vtc.graph.capture import capture
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.schedule import Form, View
from vtc.runtime.executable import Executable
from vtc.runtime.outputs import AsEager, Placed

pytestmark = pytest.mark.usefixtures("clean_dynamo")


def padded(value: torch.Tensor) -> torch.Tensor:
    """The same in rows that are longer by three."""
    wide = value.new_zeros(*value.shape[:-1], value.shape[-1] + 3)
    return wide[..., : value.shape[-1]].copy_(value)


def test_a_compiled_step_that_returns_other_strides_is_mended() -> None:
    class Product(nn.Module):
        def forward(self, x, w):
            y = x @ w
            return y, y.t(), x + 1

    x, w = torch.randn(6, 4), torch.randn(4, 5)
    graph_module = torch.fx.symbolic_trace(Product())
    plan = Plan.of(capture(graph_module, [x, w]))
    schedule = plan.schedule(NOTHING)
    (step,) = schedule.steps
    calls = []

    def compiled(*args):
        y, _, z = step.graph(*args)
        calls.append(len(args))
        return padded(y), padded(y).t(), z

    found = Executable(schedule, [(compiled, step)], 2)(x, w)
    expected = Product()(x, w)
    assert calls == [2]
    torch.testing.assert_close(found, expected)
    assert [f.stride() for f in found] == [e.stride() for e in expected]
    assert found[0].data_ptr() == found[1].data_ptr()


def test_outputs_in_their_places_are_returned_as_they_are() -> None:
    x = torch.randn(1, 4)
    placed = Placed({0: Form(1, View((1, 4), (9, 1), 0)), 1: Form(2, View((4,), (1,), 0))})
    outputs = (x, x, 3)  # the second has another shape than PyTorch's shape functions say
    assert all(a is b for a, b in zip(placed(outputs), outputs, strict=True))


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [((4, 3), (7, 2), 5), ((2, 3, 4), (0, 4, 1), 0), ((3, 4), (1, 5), 0), ((0, 3), (5, 1), 0)],
)
def test_strides_with_gaps_and_repeats_are_restored(shape, stride, offset) -> None:
    x = torch.randn(shape) if stride[0] else torch.randn(shape[1:]).expand(shape).clone()
    (found,) = Placed({0: Form(1, View(shape, stride, offset))})((x,))
    torch.testing.assert_close(found, x, rtol=0, atol=0)
    if x.numel():
        assert (found.stride(), found.storage_offset()) == (stride, offset)


def test_windows_lie_over_each_other_again() -> None:
    line = torch.randn(9)
    windows = line[1:].unfold(0, 4, 2)
    form = Form(1, View(windows.shape, windows.stride(), 1))
    tail = Form(1, View((2,), (1,), 7))
    found, last = Placed({0: form, 1: tail})((windows.clone(), line[7:].clone()))
    assert torch.equal(found, windows)
    assert found.stride() == windows.stride()
    assert torch.equal(last, line[7:])
    assert last.data_ptr() == found[-1, 2:].data_ptr()


def test_dense_tensors_get_the_order_of_eager_pytorchs_dimensions() -> None:
    """An operator that runs as eager PyTorch chooses it by its operands, which a plan may lay out
    otherwise."""
    x = torch.randn(3, 2)
    (found,) = Placed({0: Form(1, View((3, 2), (1, 3), 0))})((x,))
    assert torch.equal(found, x)
    assert found.stride() == (1, 3)


def test_views_of_an_updated_input_have_sizes_that_are_symbols() -> None:
    def f(x, y):
        x.mul_(2)
        x[1:] = y
        return x.narrow(0, 0, 1), x[:, 1:], x[::2].t()

    compiled = vtc.compile(f, dynamic=True, objective="bytes", options={"cost": "static"})
    for rows, columns in ((6, 5), (9, 4), (4, 11)):
        x, y = torch.randn(rows, columns), torch.randn(rows - 1, columns)
        own = x.clone()
        with torch.no_grad():
            found, expected = compiled(x, y), f(own, y)
        torch.testing.assert_close([*found, x], [*expected, own], rtol=0, atol=0)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        assert all(t.untyped_storage()._cdata == x.untyped_storage()._cdata for t in found)


@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
def test_views_of_an_updated_input_have_sizes_that_a_guard_makes_numbers() -> None:
    def f(x, y):
        flat = x.reshape(x.shape[0], x.shape[1] * x.shape[2])
        x[1::2, 1:] = y
        return flat, x[1:], (y * 3 if x.shape == (4, 3, 5) else y)

    compiled = vtc.compile(f, dynamic=True, objective="bytes", options={"cost": "static"})
    x, y = torch.randn(4, 3, 5), torch.randn(2, 2, 5)
    own = x.clone()
    with torch.no_grad():
        found, expected = compiled(x, y), f(own, y)
    torch.testing.assert_close([*found, x], [*expected, own], rtol=0, atol=0)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert all(t.untyped_storage()._cdata == x.untyped_storage()._cdata for t in found[:2])


def as_eager(forms: dict[int, Form], storages: dict[int, int], *calls: list[torch.Tensor]):
    """Stock TorchInductor that returns these at one call after another."""
    made = iter(calls)
    return AsEager(lambda *_: next(made), forms, storages)


def test_outputs_of_stock_that_share_memory_as_eager_pytorchs_do_stay_as_they_are() -> None:
    x, y = torch.randn(4), torch.randn(4)
    views = [x[:2], y[2:], y[:2]]
    run = as_eager({}, {0: 0, 1: ~1, 2: ~1}, views, views)
    for _ in range(2):
        assert all(a is b for a, b in zip(run(x), views, strict=True))


@pytest.mark.parametrize("others", [{0: ~0, 1: ~1}, {0: ~0, 1: 0}])
def test_outputs_of_stock_that_share_memory_where_eager_pytorchs_do_not_are_parted(others) -> None:
    calls = [[wide, wide[:2]] for wide in (torch.randn(4, 3), torch.randn(4, 3))]
    run = as_eager({}, others, *calls)
    for call in calls:
        whole, part = run(torch.randn(2))
        assert whole is call[0]
        assert torch.equal(part, call[1])
        part.zero_()
        assert call[1].all()


def test_an_argument_that_stock_returns_in_the_place_of_a_new_tensor_is_copied() -> None:
    x = torch.randn(4)
    (found,) = as_eager({}, {0: ~0}, [x])(x)
    assert torch.equal(found, x)
    assert found is not x


def test_two_arguments_in_one_storage_are_both_its_owners() -> None:
    x = torch.randn(4)
    first, last = x[:2], x[2:]
    found = as_eager({}, {0: 1, 1: 0}, [last, first])(first, last)
    assert found[0] is last
    assert found[1] is first


def test_strides_of_stock_are_mended_at_every_call() -> None:
    calls = [[padded(torch.randn(3, 2))] for _ in range(2)]
    run = as_eager({0: Form(~0, View((3, 2), (1, 3), 0))}, {0: ~0}, *calls)
    for call in calls:
        (found,) = run()
        assert torch.equal(found, call[0])
        assert found.stride() == (1, 3)


def test_what_hides_strides_at_the_first_call_does_not_at_the_next() -> None:
    """A dimension of one element has no stride that shows."""
    form = {0: Form(~0, View((3, 2), (1, 3), 0))}
    calls = [[torch.randn(1, 2)], [padded(torch.randn(3, 2))], [torch.randn(2, 3).t()]]
    run = as_eager(form, {0: ~0}, *calls)
    assert run()[0] is calls[0][0]  # of another shape than PyTorch's shape functions say
    (found,) = run()
    assert found.stride() == (1, 3)
    assert torch.equal(found, calls[1][0])
    assert run()[0] is calls[2][0]


def test_memory_that_outputs_without_elements_hide_is_parted_when_they_have_some() -> None:
    wide = torch.randn(4, 3)
    run = as_eager({}, {0: ~0, 1: ~1}, [wide[:0], wide[:0]], [wide, wide[:2]])
    assert run()[1].numel() == 0
    whole, part = run()
    part.zero_()
    assert whole is wide
    assert wide.all()


def test_outputs_are_looked_into_again_only_for_other_strides() -> None:
    form = {0: Form(~0, View((3, 2), (1, 3), 0)), 1: Form(~1, View((0, 2), (2, 1), 0))}
    plain, turned, nothing = torch.randn(3, 2), torch.randn(2, 3).t(), torch.empty(0, 2)
    calls = [[x, nothing] for x in (plain, plain, turned, turned, plain)]
    run, asked = as_eager(form, {0: ~0, 1: ~1}, *calls), []
    looked = run._look
    run._look = lambda *given: asked.append(0) or looked(*given)
    for call in calls:
        (found, _) = run()
        assert torch.equal(found, call[0])
        assert found.stride() == (1, 3)
    assert len(asked) == 3
