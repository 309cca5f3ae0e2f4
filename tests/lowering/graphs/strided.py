"""Outputs, sizes, and strides of inputs and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, randn

from lowering.graphs.table import Graph, graph

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
