"""What is written through a view reaches what it is a view of bit for bit, infinities too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from graph.test_capture import captured, run

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "adjoint": lambda a: a.adjoint(),
    "as_strided": lambda a: a.as_strided((2, 3), (7, 2)),
    "broadcast_tensors": lambda a: torch.broadcast_tensors(a, a)[0],
    "broadcast_to": lambda a: a.broadcast_to(1, *a.shape),
    "diagonal": lambda a: a.diagonal(),
    "dropout": lambda a: torch.nn.functional.dropout(a, 0.5, training=False),
    "expand in front": lambda a: a.expand(1, 1, -1, -1),
    "expand to itself": lambda a: a.expand(-1, 6),
    "expand of one": lambda a: a[:, None].expand(-1, 1, -1),
    "expand_as": lambda a: a.expand_as(a),
    "movedim": lambda a: a.movedim(0, 1),
    "narrow": lambda a: a.narrow(0, 1, 2),
    "reshape": lambda a: a.reshape(-1),
    "select": lambda a: a.select(0, 2),
    "slice": lambda a: a[1::2],
    "split": lambda a: a.split(2, 0)[1],
    "squeeze": lambda a: a[None].squeeze(0),
    "sum to its size": lambda a: a.sum_to_size(a.shape),
    "tensor_split": lambda a: torch.tensor_split(a, 3, 1)[1],
    "transpose of a chunk": lambda a: a.t().chunk(2)[0],
    "unbind": lambda a: a.unbind(1)[1],
    "unflatten": lambda a: a.unflatten(1, (2, 3)),
    "unsafe_chunk": lambda a: a.unsafe_chunk(2, 1)[1],
    "unsafe_split": lambda a: a.unsafe_split(2)[1],
    "unsafe_split_with_sizes": lambda a: a.unsafe_split_with_sizes([1, 2, 4])[1],
    "view as integers": lambda a: a.view(torch.int32).view(torch.float32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_through_a_view_is_exact(name: str) -> None:
    def f(a: Tensor) -> Tensor:
        own = a * 3
        for base in (a, own):
            view = VIEWS[name](base)
            view.masked_fill_(view > 0, 0.1)
        return own

    a = torch.randn(7, 6) * torch.logspace(-6, 6, 6)
    a[1, 2], a[2, 0], a[3, 1] = torch.inf, -torch.inf, torch.nan
    program = captured(f, (a.clone(),))
    ((number, value),) = program.updates
    assert number == 0
    (output,) = program.graph_module.graph.find_nodes(op="output")
    output.args = ((*output.args[0], value),)
    program.graph_module.recompile()
    updated = a.clone()
    expected = f(updated)
    found, left = run(program, a)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(left, updated, rtol=0, atol=0, equal_nan=True)
