"""Attention's kernels on CUDA read vectors of 16 bytes: operands lie as aligned as eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lowering.harness import capture_function, eager
from vtc.kernels import libraries
from vtc.kernels.operators import ATTENTIONS


class Operands(TorchDispatchMode):
    """Collects queries, keys and values of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def watching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*inputs: Any) -> Any:
            with self:
                return run(*inputs)

        return watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in str(func):
            self.found += args[:3]
        return func(*args, **(kwargs or {}))


def stored_in_a_pad(q: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    keys = x[:, :1].expand(2, 2, 3, 4)
    rows = torch.cat([F.pad(keys, (2, 0)), torch.cat([x, x[..., :2]], -1)], 2)
    return F.scaled_dot_product_attention(q, keys, keys), rows > 0


def copied_out_of_a_row(q: Tensor, x: Tensor) -> Tensor:
    keys = torch.cat([x, x], -1)[..., 1:5].clone(memory_format=torch.contiguous_format)
    return F.scaled_dot_product_attention(q, keys, keys)


def repeated_from_a_row(q: Tensor, x: Tensor) -> Tensor:
    rows = (torch.cat([x, x], -1) + 1)[..., 1:5]
    keys = rows[:, :, None].expand(2, 2, 2, 3, 4).reshape(2, 4, 3, 4)
    return F.scaled_dot_product_attention(q.repeat(1, 2, 1, 1), keys, keys)


@pytest.mark.parametrize("fn", [stored_in_a_pad, copied_out_of_a_row, repeated_from_a_row])
def test_operands_of_attention_are_aligned(
    fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "reads_vectors", lambda target, device: target in ATTENTIONS)
    args = torch.randn(2, 2, 4, 4), torch.randn(2, 2, 3, 4)
    captured = capture_function(fn, args)
    want = fn(*args)
    for _, schedule in captured.schedules(12):
        operands = Operands()
        captured.run = operands.watching(eager(schedule, captured.program))
        with torch.no_grad():
            got = captured.call(*args)
        torch.testing.assert_close(got, want)
        assert len(operands.found) >= 3
        for tensor in operands.found:
            assert tensor.data_ptr() % libraries.VECTOR == 0
            assert all(s * tensor.itemsize % libraries.VECTOR == 0 for s in tensor.stride()[:-1])
