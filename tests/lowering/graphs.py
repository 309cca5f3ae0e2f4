"""Small functions that are hard to schedule: GRAPHS is name -> () -> (fn, args).

A few build arguments that are views of larger tensors; `fresh` copies arguments with their strides
and offsets, and a tensor that is passed twice stays one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, randn

Graph = tuple[Callable[..., Any], tuple[Any, ...]]
GRAPHS: dict[str, Callable[[], Graph]] = {}


def graph(build: Callable[[], Graph]) -> Callable[[], Graph]:
    return GRAPHS.setdefault(build.__name__, build)


# Concatenation.


@graph
def chain_of_views_before_cat() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        a = x.relu().view(2, 3, 8).transpose(1, 2).reshape(2, 4, 6).permute(2, 0, 1)
        return torch.cat([a, y.permute(2, 0, 1)], 0) + 1

    return f, (randn(2, 24), randn(2, 4, 5))


@graph
def cat_of_cats() -> Graph:
    def f(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        inner = torch.cat([x.exp(), y @ w], 1)
        outer = torch.cat([y.relu(), inner, x], 1)
        return torch.cat([outer, outer.sin()], 0) * 2

    return f, (randn(4, 3), randn(4, 5), randn(5, 6))


@graph
def one_part_in_two_cats_of_one_output() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        a = x.exp()
        return torch.cat([torch.cat([a, y], 0), torch.cat([y, a], 0)], 1)

    return f, (randn(3, 4), randn(3, 4))


@graph
def the_same_part_twice() -> Graph:
    return lambda x: torch.cat([(a := x.exp()), a, a * 2], 1).sum(1), (randn(3, 4),)


@graph
def stack_in_the_middle() -> Graph:
    def f(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return torch.stack([x @ w, y.relu(), x @ w.t()], 1).view(4, 18) + 1

    return f, (randn(4, 6), randn(4, 6), randn(6, 6))


@graph
def split_pointwise_cat_reordered() -> Graph:
    def f(x: Tensor) -> Tensor:
        a, b, c = x.relu().split([2, 3, 4], 1)
        return torch.cat([c.exp(), a, b.sin(), a * 2], 1)

    return f, (randn(3, 9),)


@graph
def matmuls_of_chunks_into_cat() -> Graph:
    def f(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        a, b = (x * 2).chunk(2, -1)
        y = torch.cat([a @ w, F.linear(b, v)], -1)
        return y.relu() + y

    return f, (randn(2, 3, 8), randn(4, 4), randn(6, 4))


@graph
def bmm_into_stack() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([torch.bmm(x, y), torch.bmm(y, x).tanh()], 2) - 1

    return f, (randn(3, 4, 4), randn(3, 4, 4))


@graph
def cat_with_a_cast_part() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x.to(torch.float64) * 2, y], 0)
        return z, torch.cat([x.half(), z.half()], 0)

    return f, (randn(2, 3), randn(4, 3, dtype=torch.float64))


@graph
def cat_of_an_integer_part() -> Graph:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return torch.cat([x + 1, i + 1], 0) * 2

    return f, (randn(2, 3), torch.arange(6).view(2, 3))


# Padding and fills.


@graph
def pad_of_pointwise() -> Graph:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.pad(x.exp(), (1, 2, 0, 1), value=0.5)
        return y @ w, F.pad(x @ w[:4], (0, 1))

    return f, (randn(3, 4), randn(7, 5))


@graph
def pad_of_pad_beside_cat() -> Graph:
    def f(x: Tensor) -> Tensor:
        y = F.pad(F.pad(x.sin(), (1, 0)), (0, 1), value=float("-inf"))
        return torch.cat([y, y.exp()], 0).softmax(-1)

    return f, (randn(3, 4),)


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


# Outputs.


@graph
def transposed_outputs() -> Graph:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x @ w
        return y.t(), y.t()[1:], torch.cat([y, x], 1).t(), x.t()

    return f, (randn(4, 3), randn(3, 6))


@graph
def outputs_that_are_inputs() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x, torch.cat([x, y], 0), y[1:], x.view(-1)

    return f, (randn(2, 3), randn(4, 3))


@graph
def a_part_and_the_whole_returned() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x.exp()
        z = torch.cat([a, y], 0)
        return a, z, z[1:4], z.t() + 1

    return f, (randn(2, 3), randn(4, 3))


@graph
def an_updated_input_and_its_old_value_returned() -> Graph:
    def f(buf: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        old = buf.clone()
        part = old[1:]
        buf[:1] = x
        return old, part, buf

    return f, (randn(3, 4), randn(1, 4))


@graph
def the_new_value_returned_as_another_tensor() -> Graph:
    def f(buf: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        new = torch.slice_scatter(buf, x * 2, 0, 0, 2)
        buf.copy_(new)
        return new, new[1:] + 1

    return f, (randn(5, 4), randn(2, 4))


@graph
def nothing_but_movement() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.cat([x.t(), y], 1)
        return z.flip(1), z.roll(1, 0), z[:, ::2].contiguous()

    return f, (randn(2, 3), randn(3, 4))


@graph
def outputs_that_share_storage() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x.exp()
        flat = z.view(-1)
        return flat, flat.view(1, 2, 6)[..., -1], x.t()[1:2], torch.cat([z[1:], y], 0)

    return f, (randn(3, 4), randn(2, 4))


@graph
def a_view_of_a_result_in_other_strides() -> Graph:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        a, b = x.chunk(2, -1)
        top = torch.maximum(a, b)
        return top, torch.cat([-b, a], -1), top.narrow(2, 0, 2)

    return f, (randn(4, 9, 4).transpose(0, 2),)


@graph
def a_copy_of_nothing() -> Graph:
    return lambda x, y: torch.stack([y, x], 0).clone(), (randn(0), randn(0))


@graph
def views_of_inputs_without_elements() -> Graph:
    return lambda x: (x[1:1, 2:], x[:0] + 1), (randn(1, 2),)


@graph
def a_view_of_overlapping_arguments() -> Graph:
    x = randn(7, 3)
    return lambda a, b: (a.relu(), b.t(), a[1:]), (x, x[1:])


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


# Sizes.


@graph
def empty_parts() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        e = x[:0].exp()
        return torch.cat([e, y.sin(), x[2:2]], 0), torch.cat([e, e * 2], 0)

    return f, (randn(2, 3), randn(4, 3))


@graph
def sizes_of_one() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        a = x.exp().view(1, 1, 4).expand(1, 3, 4).reshape(3, 4)
        return torch.cat([a[:1], y.view(1, 4), a[2:]], 0).squeeze() * 2

    return f, (randn(4), randn(4, 1))


@graph
def scalar_tensors() -> Graph:
    def f(s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.stack([s.exp(), x.sum(), s])
        return t * 2, t[1] + s.view(1).expand(3)

    return f, (torch.tensor(0.5), randn(2, 2))


@graph
def scalar_counter_updated() -> Graph:
    def f(n: Tensor, x: Tensor) -> Tensor:
        n.add_(1)
        return torch.cat([x * n, x.exp()], 0)

    return f, (torch.tensor(3), randn(2, 2))


# Strides of inputs.


@graph
def inputs_with_offset_and_gaps() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.relu(), y.t().exp(), x[:, ::2]], 1)

    return f, (randn(9, 8)[2:6, 1:6], randn(7, 10)[1:4, ::2].t()[1:].t())


@graph
def updated_input_with_offset_and_gaps() -> Graph:
    def f(buf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        buf[:, 1:3] = x.exp()
        return buf.sum(0), buf[1:]

    return f, (randn(9, 8)[2:6, 1:8:2], randn(4, 2))


@graph
def expanded_input() -> Graph:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x * 2, y.exp(), x], 0).t() @ torch.cat([x, x], 0)

    return f, (randn(1, 4).expand(3, 4), randn(0, 4))


@graph
def one_tensor_in_every_place() -> Graph:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x, y, x + y], 0)
        return z, torch.stack([x, y], 0).transpose(0, 1).reshape(3, 8)

    x = randn(3, 4)
    return f, (x, x)


@graph
def channels_last_chunks() -> Graph:
    def f(x: Tensor, w: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat([a, F.conv2d(b, w, padding=1).relu()], 1)
        return F.channel_shuffle(y, 2)

    nhwc = torch.channels_last
    return f, (randn(2, 8, 5, 5).to(memory_format=nhwc), randn(4, 4, 3, 3).to(memory_format=nhwc))


# Gathers.


@graph
def gathers_of_a_cat() -> Graph:
    def f(x: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x.exp(), y], 0)
        return z[i] * 2, z.gather(0, i[:, None].expand(4, 3)) + z.index_select(0, i)

    return f, (randn(2, 3), randn(3, 3), torch.tensor([4, 0, 2, 2]))


@graph
def embedding_of_a_computed_index() -> Graph:
    def f(ids: Tensor, table: Tensor, x: Tensor) -> Tensor:
        e = F.embedding((ids + 1).view(-1) % 7, table)
        return torch.cat([e, x @ table.t()[:, :4]], 1).view(2, 3, -1)

    return f, (torch.randint(0, 7, (2, 3)), randn(7, 4), randn(6, 4))


@graph
def rotary_halves_into_heads() -> Graph:
    def f(x: Tensor, cos: Tensor, sin: Tensor, w: Tensor) -> Tensor:
        q = (x @ w).view(2, 3, 2, 4).transpose(1, 2)
        a, b = q.chunk(2, -1)
        rotated = torch.cat([-b, a], -1)
        return (q * cos + rotated * sin).transpose(1, 2).reshape(2, 3, 8)

    return f, (randn(2, 3, 8), randn(3, 4), randn(3, 4), randn(8, 8))


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


@graph
def storage_of_a_mean_with_windows() -> Graph:
    def f(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        v = x[:, :].unfold(0, 1, 1)
        squares = v * v
        near = torch.lerp(v, squares, 0.3).float()
        picked = F.threshold(v, 0.5, 0.25)[:, :, at].abs()
        storage = torch.as_strided(near, (3, 46), (12, 2))
        return x.float(), squares.expand_as(v), storage.flatten(0, 1), picked.cummin(0).values

    return f, (randn(1, 5).expand(33, 5), torch.tensor(0))
