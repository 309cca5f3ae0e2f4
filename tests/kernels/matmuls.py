"""Matmuls for the tests: descriptions with random operands, and what they should give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vtc.index import Fill, IndexMap, Layout, Piece, axes
from vtc.kernels.epilogue import Body, Tensor
from vtc.kernels.matmul import Matmul, Part
from vtc.program.dtypes import DType


@dataclass
class Tensors:
    """The tensors of one call, and how they are described."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    values: list[torch.Tensor] = field(default_factory=list)

    def random(self, *shape: int, scale: float = 1.0) -> int:
        value = torch.randn(shape, device=self.device, dtype=torch.float32) * scale
        return self.add(value.to(self.dtype))

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> int:
        return self.add(
            torch.full(shape, float("nan"), device=self.device, dtype=dtype or self.dtype)
        )

    def add(self, value: torch.Tensor) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def whole(self, number: int) -> IndexMap:
        return IndexMap.identity(self.values[number].shape, number)

    def view(self, number: int, view: torch.Tensor) -> IndexMap:
        """A view of tensor `number` as a map."""
        base = self.values[number]
        assert base.is_contiguous()
        offset = view.storage_offset() - base.storage_offset()
        return IndexMap.strided_view(base.shape, view.shape, view.stride(), offset, number)

    def transposed(self, number: int) -> IndexMap:
        """A weight [n, k] over (k, n)."""
        return IndexMap.permute(self.values[number].shape, (1, 0), number)

    def described(self) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(DType.of(v.dtype), Layout(v.shape, v.stride()))  # type: ignore[arg-type]
            for v in self.values
        )

    def double(self, number: int) -> torch.Tensor:
        return self.values[number].double()


def columns(parts: Sequence[int], rows: int, widths: Sequence[int]) -> IndexMap:
    """Tensors side by side along the columns."""
    pieces, at = [], 0
    i, j = axes(2)
    for source, width in zip(parts, widths, strict=True):
        pieces.append(Piece((0, at), (rows, at + width), source, (i, j - at)))
        at += width
    return IndexMap((rows, at), pieces)


def broadcast_row(number: int, m: int, n: int) -> IndexMap:
    """A vector of n elements over (m, n)."""
    return IndexMap.single((m, n), [axes(2)[1]], number)


def plain_body(out: IndexMap) -> tuple[Body, int]:
    body = Body()
    body.store(body.product(), out)
    return body, 0


def linear(
    tensors: Tensors, m: int, n: int, k: int, *, bias: bool = False, scale: float = 1.0
) -> tuple[Matmul, int]:
    """x [m, k] @ w [n, k]^T (+ bias) -> out [m, n]; the number of `out`."""
    x, w = tensors.random(m, k), tensors.random(n, k, scale=scale)
    body = Body()
    value = body.product()
    if bias:
        b = tensors.random(n)
        value = body.scalar("add", value, body.load(broadcast_row(b, m, n)))
    out = tensors.empty(m, n)
    body.store(value, tensors.whole(out))
    part = Part(n, (tensors.transposed(w),), body.build())
    return Matmul((), m, k, tensors.whole(x), (part,), tensors.described()), out


def gated(tensors: Tensors, m: int, n: int, k: int, scale: float = 1.0) -> tuple[Matmul, int]:
    """silu(x @ gate^T) * (x @ up^T), both weights where they are."""
    x = tensors.random(m, k)
    gate, up = tensors.random(n, k, scale=scale), tensors.random(n, k, scale=scale)
    out = tensors.empty(m, n)
    body = Body()
    g, u = body.product(0), body.product(1)
    silu = body.scalar("mul", g, body.scalar("sigmoid", g))
    body.store(body.scalar("mul", silu, u), tensors.whole(out))
    rights = (tensors.transposed(gate), tensors.transposed(up))
    part = Part(n, rights, body.build())
    return Matmul((), m, k, tensors.whole(x), (part,), tensors.described()), out


@dataclass(frozen=True)
class Attended:
    """The tensors of a query, key, value projection: numbers."""

    x: int
    weights: tuple[int, int, int]
    cosine: int
    sine: int
    query: int
    keys: int
    values: int
    position: int
    expected: tuple[int, int, int]


def projections(
    tensors: Tensors, m: int, k: int, heads: int, groups: int, width: int, context: int,
    scale: float = 1.0,
) -> tuple[Matmul, Attended]:  # fmt: skip
    """Query, key and value of m sequences' next token, in one launch.

    Rotary embedding of query and key; key and value go into slot `position` of caches
    [m, groups, context, width].
    """
    x = tensors.random(m, k)
    weights = tuple(tensors.random(h * width, k, scale=scale) for h in (heads, groups, groups))
    cosine, sine = tensors.random(m, width), tensors.random(m, width)
    query = tensors.empty(m, heads * width)
    keys, values = (tensors.empty(m, groups, context, width) for _ in range(2))
    position = context // 3
    half = width // 2
    i, j = axes(2)

    def rotated(weight: int, count: int, out: list[IndexMap]) -> Part:
        n = count * half
        kk, jj = axes(2)
        rights = tuple(
            IndexMap.single((k, n), [jj // half * width + jj % half + shift, kk], weight)
            for shift in (0, half)
        )
        body = Body()
        low, high = body.product(0), body.product(1)
        c0, c1 = (body.load(IndexMap.single((m, n), [i, j % half + s], cosine)) for s in (0, half))
        s0, s1 = (body.load(IndexMap.single((m, n), [i, j % half + s], sine)) for s in (0, half))
        first = body.scalar("sub", body.scalar("mul", low, c0), body.scalar("mul", high, s0))
        second = body.scalar("add", body.scalar("mul", high, c1), body.scalar("mul", low, s1))
        body.store(first, out[0])
        body.store(second, out[1])
        return Part(n, rights, body.build())

    def in_query(shift: int) -> IndexMap:
        return IndexMap.single((m, heads * half), [i, j // half * width + j % half + shift], query)

    def in_cache(cache: int, size: int, shift: int) -> IndexMap:
        index = [i, j // size, position, j % size + shift]
        return IndexMap.single((m, groups * size), index, cache)

    body = Body()
    body.store(body.product(), in_cache(values, width, 0))
    parts = (
        rotated(weights[0], heads, [in_query(0), in_query(half)]),
        rotated(weights[1], groups, [in_cache(keys, half, 0), in_cache(keys, half, half)]),
        Part(groups * width, (tensors.transposed(weights[2]),), body.build()),
    )
    matmul = Matmul((), m, k, tensors.whole(x), parts, tensors.described())
    expected = []
    for weight, count, turned in zip(weights, (heads, groups, groups), (1, 1, 0), strict=True):
        y = (tensors.double(x) @ tensors.double(weight).T).view(m, count, width)
        if turned:
            a, b = y[..., :half], y[..., half:]
            c, s = tensors.double(cosine)[:, None], tensors.double(sine)[:, None]
            y = y * c + torch.cat([-b, a], -1) * s
        expected.append(tensors.add(y))
    names = Attended(
        x,
        weights,
        cosine,
        sine,
        query,
        keys,
        values,
        position,
        tuple(expected),  # type: ignore[arg-type]
    )
    return matmul, names


def padded_rows(source: int, before: int, rows: int, after: int, k: int) -> IndexMap:
    """Zero rows around a tensor [rows, k]."""
    i, j = axes(2)
    total = before + rows + after
    pieces = [
        Piece((0, 0), (before, k), Fill(0)),
        Piece((before, 0), (before + rows, k), source, (i - before, j)),
        Piece((before + rows, 0), (total, k), Fill(0)),
    ]
    return IndexMap((total, k), [p for p in pieces if not p.empty])
