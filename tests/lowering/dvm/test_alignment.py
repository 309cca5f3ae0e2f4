"""What attention on CUDA is handed begins where its kernels can read vectors, if in eager PyTorch
it does. Fake tensors tell; there need be no device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from vtc.graph.capture import capture
from vtc.lowering.dvm import lower
from vtc.lowering.dvm.plan import EagerStep, TensorRef

SHAPE = (2, 2, 5, 4)


def _cloned(t: Tensor) -> Tensor:
    return t[1:81].view(SHAPE).clone()


def _joined(t: Tensor) -> Tensor:
    return torch.cat([t[3:43].view(2, 1, 5, 4), t[43:83].view(2, 1, 5, 4)], 1)


def _cloned_far(t: Tensor) -> Tensor:
    return t[8:88].view(SHAPE).clone()


def _view(t: Tensor) -> Tensor:
    return t[1:81].view(SHAPE)


def _value(move: Callable[[Tensor], Tensor], made: bool) -> TensorRef:
    """What becomes of the values of an attention that are moved from an input, or from what is
    computed of it."""

    def attention(q: Tensor, t: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, move(t * 2 if made else t))

    with FakeTensorMode():
        fakes = [torch.empty(SHAPE, device="cuda"), torch.empty(96, device="cuda")]
    plan = lower(capture(_graph(attention), fakes), None)
    (call,) = (step for step in plan.steps if isinstance(step, EagerStep))
    found = call.args[2]
    assert isinstance(found, TensorRef)
    return found


def _graph(function: Callable[..., Tensor]) -> fx.GraphModule:
    return fx.symbolic_trace(lambda q, t: (function(q, t),))


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("move", [_cloned, _joined])
def test_what_is_new_in_eager_pytorch_is_no_view_of_unaligned_memory(
    move: Callable[[Tensor], Tensor], made: bool
) -> None:
    found = _value(move, made)
    assert found.view is None or found.view[2] == 0
    assert found.space > 1  # of its own, and no input


def test_what_begins_at_a_vector_is_read_where_it_is() -> None:
    found = _value(_cloned_far, True)
    assert found.view is not None
    assert found.view[2] == 8


@pytest.mark.parametrize("made", [True, False])
def test_a_view_is_handed_over_as_in_eager_pytorch(made: bool) -> None:
    found = _value(_view, made)
    assert found.view is not None
    assert found.view[2] == 1
