"""Holds a movement to what PyTorch does: its load and store maps, its sources, its `view`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from vtc.graph.movement import BoundMovement, Movement, movement_of
from vtc.index import Fill, IndexMap, Piece

Found = tuple[BoundMovement | None, Tensor]


def traced(op: OpOverload, *args: Any, **kwargs: Any) -> list[tuple[fx.Node, Tensor]]:
    """The node of a call, or the getitem nodes of one with several outputs, with their values."""
    graph = fx.Graph()

    def placeholder(x: Tensor) -> fx.Node:
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = x
        return node

    node_args, node_kwargs = pytree.tree_map_only(Tensor, placeholder, (args, kwargs))
    call = graph.call_function(op, node_args, node_kwargs)
    value = op(*args, **kwargs)
    if isinstance(value, Tensor):
        call.meta["val"] = value
        return [(call, value)]
    parts = []
    for number, part in enumerate(value):
        node = graph.call_function(operator.getitem, (call, number))
        node.meta["val"] = part
        parts.append((node, part))
    return parts


def check(op: OpOverload, *args: Any, **kwargs: Any) -> list[Movement | None]:
    """Compares the movements of a call with what the call does; None for those that are compute."""
    found: list[Movement | None] = []
    for node, out in traced(op, *args, **kwargs):
        bound = movement_of(node)
        found.append(bound and bound.movement)
        if bound is not None:
            sources = [n.meta["val"] for n in bound.sources]
            lookups = [n.meta["val"] for n in bound.lookups]
            check_movement(bound.movement, sources, lookups, out)
            check_view(bound.movement, sources, out)
    return found


def check_movement(
    movement: Movement, sources: Sequence[Tensor], lookups: Sequence[Tensor], out: Tensor
) -> None:
    """The maps of a movement give `out` from the sources, each way that they claim."""
    assert tuple(movement.shape) == tuple(out.shape)
    assert movement.sources == len(sources)
    assert len(movement.lookups) == len(lookups)
    if movement.load is not None:
        check_map(movement.load, sources, lookups, out)
    for number, store in enumerate(movement.store):
        if store is not None:
            check_store(movement, number, store, sources, lookups, out)


def check_map(
    load: IndexMap, sources: Sequence[Tensor], lookups: Sequence[Tensor], out: Tensor
) -> None:
    """A load map gives `out`, and what it says of itself is true."""
    assert load.covers()
    assert_equal(load.materialize(sources, lookups), out)
    for number in load.sources():
        inverse = load.inverse(number, sources[number].shape)
        if inverse is not None:
            covered, home = homes(inverse, lookups, out.shape)
            live = elements_read(load, number, sources[number], lookups)
            assert covered.tolist() == live.tolist()
            assert_equal(out.flatten()[home], sources[number].flatten()[covered])
    if len(load.sources()) == 1 and not load.lookups():
        (number,) = load.sources()
        check_strides(load, number, sources[number], out)


def check_strides(load: IndexMap, number: int, source: Tensor, out: Tensor) -> None:
    strided = load.strided(source.stride(), number)
    if strided is not None:
        offset = source.storage_offset() + int(strided.offset)
        size, stride = (list(map(int, values)) for values in (strided.shape, strided.stride))
        assert_equal(source.as_strided(size, stride, offset), out)
    for piece in load.pieces:
        if piece.source == number and not piece.empty:
            check_contiguity(IndexMap(load.shape, [piece]), piece, number, source)


def check_contiguity(alone: IndexMap, piece: Piece, number: int, source: Tensor) -> None:
    """The runs of a map of one piece, and where they start."""
    found = alone.contiguity({number: source.stride()})
    own = alone.restrict(piece.lower, piece.upper)
    walked = own.materialize([_addresses(source)] * (number + 1)).flatten()
    starts = torch.arange(walked.numel()) % found.run == 0
    assert bool((starts[1:] | (walked.diff() == 1)).all())
    firsts = walked[starts]
    assert not (firsts % found.alignment if found.alignment else firsts).any()


def _addresses(source: Tensor) -> Tensor:
    """The position in the storage of each element, from the first one on."""
    total = torch.zeros(source.shape, dtype=torch.int64)
    for d, (size, stride) in enumerate(zip(source.shape, source.stride(), strict=True)):
        along = [size if e == d else 1 for e in range(source.dim())]
        total += (torch.arange(size) * stride).reshape(along)
    return total


def check_store(
    movement: Movement,
    number: int,
    store: IndexMap,
    sources: Sequence[Tensor],
    lookups: Sequence[Tensor],
    out: Tensor,
) -> None:
    source = sources[number]
    assert tuple(store.shape) == tuple(source.shape)
    covered, home = homes(store, lookups, out.shape)
    assert home.unique().numel() == home.numel(), "two elements with one home"
    values = source.flatten()[covered]
    # What goes through the map is what the operator leaves at that place.
    assert_equal(out.flatten()[home], values)
    if movement.inplace is not None:
        data = sources[movement.inplace]
        updated = data.flatten().clone()
        updated[home] = values
        assert_equal(updated.reshape(data.shape), out)
    if movement.load is not None:
        # Every element that the output needs of this source has its home.
        live = elements_read(movement.load, number, source, lookups)
        assert live.tolist() == covered.tolist()


def homes(
    store: IndexMap, lookups: Sequence[Tensor], shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Flat source positions that a store map covers, and the flat output position of each."""
    mask = torch.zeros([int(s) for s in store.shape], dtype=torch.bool)
    for lower, upper in store.domain():
        mask[tuple(slice(int(a), int(b)) for a, b in zip(lower, upper, strict=True))] = True
    covered = mask.flatten().nonzero().flatten()
    positions = torch.arange(int(torch.tensor(shape).prod())).reshape(tuple(shape))
    if not covered.numel():
        return covered, covered
    return covered, store.materialize([positions], lookups).flatten()[covered]


def elements_read(load: IndexMap, number: int, source: Tensor, lookups: Sequence[Tensor]) -> Tensor:
    """The flat positions of a source that a load map reads, ascending."""
    ids = torch.arange(source.numel()).reshape(source.shape)
    pieces = [p if p.source == number else Piece(p.lower, p.upper, Fill(-1)) for p in load.pieces]
    everything = [ids] * (number + 1)
    read = IndexMap(load.shape, pieces).materialize(everything, lookups).unique()
    return read[read >= 0]


def check_view(movement: Movement, sources: Sequence[Tensor], out: Tensor) -> None:
    """`view` says whether PyTorch copied, and then the load map is the strides of the output."""
    shared = [s.untyped_storage()._cdata == out.untyped_storage()._cdata for s in sources]
    assert movement.view == any(shared), (movement.operator, movement.view, shared)
    if movement.view and out.numel():
        assert movement.load is not None
        assert movement.load.strided(sources[0].stride()) is not None


def assert_equal(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert torch.equal(a, b)
