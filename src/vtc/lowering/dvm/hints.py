"""Sizes that a graph holds for only though they are symbols: 0, and 1 of a dimension that is
broadcast.

Dynamo may trace a size as a symbol although it is 1 at the first call and an operator broadcasts
it. The graph's shapes do not say so; the values that the symbols had at that call tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx.experimental._config as symbolic_config
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges

from vtc.graph.functional import updates
from vtc.graph.program import value_of
from vtc.index import IndexMap, Size, affine, sizes

aten = torch.ops.aten


class TooWide(Exception):  # noqa: N818 - a finding about a graph, not an error
    """The graph takes a size for any that has to be 1."""


def anew() -> None:
    """Raises TooWide where 1 is a size like others: by PyTorch's usual rules the sizes and places
    of slices follow from those of the inputs."""
    if symbolic_config.backed_size_oblivious:
        raise TooWide


@dataclass(frozen=True)
class Hints:
    """The values of size symbols at the call that was traced; unbacked ones have none."""

    values: Mapping[sympy.Symbol, sympy.Integer] = field(default_factory=dict)
    asked: dict[sympy.Expr, int | None] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(inputs: Iterable[fx.Node]) -> Hints:
        """Those that the inputs of a captured graph tell."""
        found: dict[sympy.Symbol, sympy.Integer] = {}
        for value in map(value_of, inputs):
            whole = isinstance(value, torch.Tensor)
            for size in (*value.shape, *value.stride()) if whole else (value,):
                known = isinstance(size, torch.SymInt) and size.node.has_hint()
                if known and isinstance(size.node.expr, sympy.Symbol):
                    found[size.node.expr] = sympy.Integer(size.node.hint)
        return Hints(found)

    def value(self, size: Size) -> int | None:
        """The size at that call; None if it is not known."""
        if isinstance(size, int):
            return size
        if size not in self.asked:
            found = size.xreplace(self.values)
            self.asked[size] = int(found) if isinstance(found, sympy.Integer) else None
        return self.asked[size]

    def unit(self, size: Size) -> bool:
        """Was the size, a symbol, 1?"""
        return not isinstance(size, int) and self.value(size) == 1

    def check_broadcast(self, shape: Sequence[Size], wide: Sequence[Size]) -> None:
        """Raises TooWide where a dimension of one shape, a symbol, was broadcast to the other's."""
        for one, two in zip(reversed(shape), reversed(wide), strict=False):
            if one == two:
                continue
            units = self.unit(one) or (self.unit(two) and one != 1)
            if units and self.value(one) != self.value(two):
                raise TooWide

    def check_unguarded(self, shape: Sequence[Size], wide: Sequence[Size]) -> None:
        """The same where no guard of PyTorch's says that two sizes that are 1 now are one."""
        for one, two in zip(reversed(shape), reversed(wide), strict=False):
            if one not in (1, two) and (self.unit(one) or self.unit(two)):
                raise TooWide

    def check_move(self, load: IndexMap, shapes: Sequence[Sequence[Size]]) -> None:
        """Raises TooWide where the map reads behind a source's dimension that was 1; indices from
        tensors are checked by the call."""
        if not any(self.unit(size) for shape in shapes for size in shape):
            return
        try:
            known = load.substitute(self.values)
        except ZeroDivisionError:  # it has no elements now, and is not told for other sizes
            raise TooWide from None
        for piece in known.pieces:
            if not isinstance(piece.source, int) or piece.empty:
                continue
            for form, size in zip(piece.forms, shapes[piece.source], strict=True):
                last = affine.interval(form, piece.bounds)[1]
                if self.unit(size) and isinstance(last, int) and last > 0:
                    raise TooWide


_SQUEEZES = {
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
}


def check_squeeze(node: fx.Node) -> None:
    """Raises TooWide where a dimension to be squeezed is a symbol that is 1 now, or that only a
    result tells; one that is not gets a guard that it never is, which PyTorch leaves out."""
    if node.target not in _SQUEEZES:
        return
    value = value_of(node.args[0])
    dims = node.args[1] if len(node.args) > 1 else range(value.dim())
    for d in [dims] if isinstance(dims, int) else dims:
        size = value.shape[d] if value.dim() else 0
        if not isinstance(size, torch.SymInt):
            continue
        if not size.node.has_hint() or bool(size == 1):
            raise TooWide


_INDEXING = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten._unsafe_index_put.default,
}


def check_indices(node: fx.Node, hints: Hints) -> None:
    """Raises TooWide where a dimension of an index tensor, a symbol, is broadcast to another's."""
    if node.target not in _INDEXING:
        return
    shapes = [
        tuple(map(sizes.as_size, value_of(index).shape))
        for index in node.args[1]
        if isinstance(index, fx.Node)
    ]
    for one, other in itertools.combinations(shapes, 2):
        hints.check_broadcast(one, other)


def settle(graph_module: fx.GraphModule) -> None:
    """Makes numbers of the symbols that a guard says are one.

    Where size 1 is a size like others, PyTorch does not replace a symbol by 1 although the model's
    code went on only since it is: sizes that are the same would then look broadcast.
    """
    values = [n.meta.get("example_value") for n in graph_module.graph.find_nodes(op="placeholder")]
    for env in {id(s.node.shape_env): s.node.shape_env for s in _symbolic_sizes(values)}.values():
        for guard in list(env.guards):
            symbol, number = guard.expr.args if isinstance(guard.expr, sympy.Eq) else (None, None)
            if isinstance(symbol, sympy.Symbol) and isinstance(number, sympy.Integer):
                env.size_like.discard(symbol)
                env._set_replacement(symbol, number, "guarded")


def exclude_empty(inputs: Iterable[fx.Node]) -> None:
    """Leaves tensors without elements to a graph of their own: a symbol counts as positive, so that
    no guard tells which way the model's code went where it asked for a size of 0.

    Raises TooWide if there is such a tensor now.
    """
    for value in map(value_of, inputs):
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(size, torch.SymInt) or not size.node.has_hint():
                continue
            if size.node.hint == 0:
                raise TooWide
            ranges = size.node.shape_env.var_to_range
            known = ranges.get(size.node.expr)
            if known is not None and known.lower < 1:
                ranges[size.node.expr] = ValueRanges(1, known.upper)


_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def check_assumed(nodes: Iterable[fx.Node]) -> None:
    """Raises TooWide where the size of a slice was taken to equal another.

    Where size 1 is a size like others, PyTorch may give the size of a slice a symbol of its own. If
    such a size is broadcast, it is taken for not 1, and an assertion made that it is the other
    size, which eager PyTorch does not ask for. Sizes that depend on data are left: PyTorch asserts
    as much of them by all its rules.
    """
    seen: set[sympy.Symbol] = set()
    for node in nodes:
        for size in _symbolic_sizes(value_of(node)):
            new = [s for s in size.node._expr.free_symbols if _unbacked(s) and s not in seen]
            seen.update(new)
            if any(tag in getattr(node.target, "tags", ()) for tag in _DATA):
                continue
            if any(_assumed(symbol, size.node.shape_env) for symbol in new):
                raise TooWide


_VIEWS_OR_COPIES = ("reshape", "reshape_as", "flatten", "ravel", "contiguous")


def check_copied(graph_module: fx.GraphModule) -> None:
    """Raises TooWide where Dynamo's graph copies a tensor of any sizes that would be a view with
    some of them, and one of both is written: what is written shows in the other then."""
    nodes = list(graph_module.graph.nodes)
    written = [v for n in nodes if updates(n) for v in _values((n.args[:1], n.kwargs.get("out")))]
    storages = set(map(_storage, written))
    for node in nodes:
        if getattr(node.target, "__name__", node.target) not in _VIEWS_OR_COPIES:
            continue
        found = _values((node, node.args[:1]))
        if len(found) != 2 or storages.isdisjoint(map(_storage, found)):
            continue
        made, x = found
        symbolic = any(isinstance(n, torch.SymInt) for n in (*x.shape, *x.stride()))
        if symbolic and _storage(made) != _storage(x):
            raise TooWide


def _values(arguments: Any) -> list[torch.Tensor]:
    """The tensors that Dynamo noted of the nodes among some arguments."""
    nodes = [a for a in pytree.tree_leaves(arguments) if isinstance(a, fx.Node)]
    found = (n.meta.get("example_value") for n in nodes)
    return [v for v in found if isinstance(v, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _symbolic_sizes(value: object) -> list[torch.SymInt]:
    if isinstance(value, list | tuple):
        return [size for one in value for size in _symbolic_sizes(one)]
    if isinstance(value, torch.Tensor):
        return [size for size in value.shape if isinstance(size, torch.SymInt)]
    return [value] if isinstance(value, torch.SymInt) else []


def _unbacked(symbol: sympy.Symbol) -> bool:
    return symbol_is_type(symbol, SymT.UNBACKED_INT)


def _assumed(symbol: sympy.Symbol, env: ShapeEnv) -> bool:
    """Does the symbol stand for another size, or an assertion say that it equals one?"""
    asserted = (a.expr for a in env.deferred_runtime_asserts.get(symbol, ()))
    return symbol in env.replacements or any(expr.atoms(sympy.Eq) for expr in asserted)
