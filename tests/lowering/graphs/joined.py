"""Concats, pads and gathers."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, randn

from lowering.graphs.table import Graph, graph

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
