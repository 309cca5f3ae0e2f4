"""What is written: temporaries, inputs, and places that hold the value already."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, randn

from lowering.graphs.table import GRAPHS, Graph, graph

# Scatters into temporaries.


@graph
def slices_of_a_temporary() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros(4, 9)
        out[:, :3] = x.exp()
        out[:, 3:8] = y * 2
        return out.relu() + 1

    return f, (randn(4, 3), randn(4, 5))


@graph
def overlapping_slices_of_a_temporary() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = x.new_zeros(6, 3)
        out[:4] = x.exp()
        before = out[1:5] * 2
        out[2:] = y.sin()
        return before, out

    return f, (randn(4, 3), randn(4, 3))


@graph
def select_scatter_of_matmul() -> Graph:
    def f(x: Tensor, w: Tensor, base: Tensor) -> Tensor:
        y = torch.select_scatter(base.relu(), x @ w, 1, 2)
        return torch.slice_scatter(y, (x @ w)[:, None], 1, 0, 1).sum(0)

    return f, (randn(3, 4), randn(4, 5), randn(3, 4, 5))


@graph
def diagonal_of_a_temporary() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = torch.diagonal_scatter(x.exp(), y.sin())
        return z.t().flip(0) + x

    return f, (randn(4, 4), randn(4))


# Updated inputs.


@graph
def two_updates_of_one_input() -> Graph:
    def f(buf: Tensor, x: Tensor, y: Tensor) -> Tensor:
        buf[:3].copy_(x.exp())
        mid = buf[2:4] + 1
        buf[2:5].copy_(y.sin())
        return mid

    return f, (randn(6, 4), randn(3, 4), randn(3, 4))


@graph
def old_values_before_and_after() -> Graph:
    def f(buf: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = buf[1:3] * 2
        buf[:2] = x
        after = buf[1:3] * 2
        buf.add_(1)
        return before, after, buf.sum(0)

    return f, (randn(4, 3), randn(2, 3))


@graph
def update_computed_from_the_old_value() -> Graph:
    def f(state: Tensor, x: Tensor) -> Tensor:
        shifted = torch.cat([state[:, 1:], x[:, None].exp()], 1)
        state.copy_(shifted)
        return state.mean(1)

    return f, (randn(3, 5, 4), randn(3, 4))


@graph
def two_inputs_swapped() -> Graph:
    def f(a: Tensor, b: Tensor) -> Tensor:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
        return a - b

    return f, (randn(4, 3), randn(4, 3))


@graph
def key_and_value_caches() -> Graph:
    def f(q: Tensor, kv: Tensor, kc: Tensor, vc: Tensor, at: Tensor) -> Tensor:
        k, v = kv.view(2, 1, 2, 2, 8).unbind(2)
        kc.index_copy_(2, at, k.transpose(1, 2) * 2)
        vc.index_copy_(2, at, v.transpose(1, 2))
        keys = kc[:, :, None, :6].expand(2, 2, 3, 6, 8).reshape(2, 6, 6, 8)
        values = vc[:, :, None, :6].expand(2, 2, 3, 6, 8).reshape(2, 6, 6, 8)
        out = F.scaled_dot_product_attention(q, keys, values)
        return out.transpose(1, 2).reshape(2, 1, 48)

    at = torch.tensor([5])
    return f, (randn(2, 6, 1, 8), randn(2, 32), randn(2, 2, 9, 8), randn(2, 2, 9, 8), at)


@graph
def cache_by_index_put() -> Graph:
    def f(k: Tensor, v: Tensor, kc: Tensor, vc: Tensor, slot: Tensor) -> Tensor:
        rows = torch.arange(3)
        kc[rows, slot] = k.relu()
        vc.index_put_((rows, slot), v)
        return (kc[:, :4] * vc[:, :4]).sum(-1)

    slot = torch.tensor([1, 3, 0])
    return f, (randn(3, 5), randn(3, 5), randn(3, 6, 5), randn(3, 6, 5), slot)


@graph
def cache_returned_with_a_view_of_it() -> Graph:
    def f(cache: Tensor, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache.index_copy_(1, at, x)
        return cache, cache[:, 1:3].transpose(0, 1), cache[0] + 1

    return f, (randn(3, 6, 2), randn(3, 2, 2), torch.tensor([4, 0]))


@graph
def grouped_matmul_on_a_cache() -> Graph:
    def f(q: Tensor, kc: Tensor, k: Tensor, at: Tensor) -> Tensor:
        kc.index_copy_(2, at, k)
        keys = kc[:, :, None].expand(2, 2, 3, 7, 8).reshape(2, 6, 7, 8)
        return torch.matmul(q, keys.transpose(2, 3)).softmax(-1) @ keys

    at = torch.tensor([6])
    return f, (randn(2, 6, 1, 8), randn(2, 2, 7, 8), randn(2, 2, 1, 8), at)


@graph
def counter_and_cache() -> Graph:
    def f(step: Tensor, cache: Tensor, x: Tensor) -> Tensor:
        cache.index_copy_(0, step, x[None] * 2)
        step.add_(1)
        return cache.sum(0) * step

    return f, (torch.tensor([2]), randn(5, 4), randn(4))


@graph
def update_through_a_transposed_view() -> Graph:
    def f(buf: Tensor, x: Tensor) -> Tensor:
        buf.t()[1:3] = x.exp()
        return buf * 2

    return f, (randn(4, 5), randn(2, 4))


@graph
def an_input_updated_twice_and_read_in_between() -> Graph:
    def f(x: Tensor, fill: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        x[2:-1] = fill
        pooled = F.avg_pool1d(x, 3, 2, 1, count_include_pad=False)
        x.index_copy_(0, at, new)
        return pooled, x.logsumexp(-2)

    return f, (randn(9, 4, 17), randn(()), randn(7, 4, 17), torch.randperm(9)[:7])


# Copies of what lies in its place already.


@graph
def part_of_a_broadcast_stored() -> Graph:
    def f(x: Tensor) -> Tensor:
        return torch.select_scatter(x, x[:, 0:2][:, 0], 1, 1)

    return f, (randn(4, 2, 1).expand(4, 2, 9),)


@graph
def a_diagonal_put_back() -> Graph:
    return lambda x: torch.diagonal_scatter(x, x.diagonal()).amin(0), (randn(4, 8, 32)[:, :, ::2],)


@graph
def an_element_of_a_row_updated() -> Graph:
    def f(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.stack([a, b, a])
        x[6, 1] = row
        return row, x[6, 1]

    return f, (randn(8, 3, 3), randn(()), randn(()))


@graph
def an_input_filled_and_updated() -> Graph:
    def f(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        x.fill_(0)
        part = x[8:-1]
        x[8:-1] = y
        return F.linear(part, w)

    return f, (randn(17), randn(8), randn(4, 8))


@graph
def rows_gathered_and_put_back() -> Graph:
    def f(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
        part = x[:, :, i]
        flat = part.flatten(1, 2)
        wide, same = F.pad(flat, (2, 2), value=3), flat == flat
        x.index_put_((j,), part)
        return wide, same, part

    return f, (randn(3, 2, 2), torch.tensor([-1, 1]), torch.tensor([-1, -3, -2]))


@graph
def results_of_operands_in_other_strides() -> Graph:
    def f(x: Tensor, i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        part = x[:, :, i]
        return part * y, torch.cat([part, y], 2)

    x, y = randn(3, 5, 3).transpose(2, 0), randn(5, 3, 3).transpose(0, 1)
    return f, (x, torch.tensor([2, -3, 0]), y)


# Runtime indices into a dimension of size 1, of which only the look-up is left: another input says
# which, and is updated in place afterwards.
ONE_ROW: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda row, at: row[at],
    "index_select": lambda row, at: row.index_select(0, at),
    "gather": lambda row, at: row.gather(0, at[:, None].expand(-1, 2)),
    "take": lambda row, at: row[:, 0].take(at)[:, None].expand(-1, 2),
    "embedding": lambda row, at: F.embedding(at, row),
}


def _one_row(form: str) -> Callable[[], Graph]:
    def f(x: Tensor, at: Tensor, new: Tensor, place: Tensor) -> tuple[Tensor, ...]:
        row = -x
        x.copy_(row)
        both = torch.cat([row, ONE_ROW[form](row, at)])
        at.index_copy_(0, place, new)
        return both, both + both

    arguments = randn(1, 2), torch.zeros(2, dtype=torch.int64), torch.arange(5, 7)
    return lambda: (f, (*arguments, torch.tensor([1, 0])))


for form in ONE_ROW:
    GRAPHS[f"one_row_by_{form}"] = _one_row(form)
