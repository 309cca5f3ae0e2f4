"""Recognising attention in a captured graph, and writing it as one operator.

Two forms are known: `scaled_dot_product_attention`, and what it stands for written out, as in the
eager attention of transformers (Gemma 2 among them, which caps its logits):

    matmul(q, transpose(k)) [* scale] [-> cap * tanh(x / cap)] [+ mask]
        -> softmax in float32 -> [cast] -> [dropout that does nothing] -> matmul with v

or, where tokens are the last dimension, as in YOLO11, with operands and result transposed:

    matmul(transpose(q * scale), k) -> .. -> matmul(v, transpose(weights))

Written out, the logits and weights may have no other use: they are not computed any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from vtc.graph import program as programs
from vtc.graph.program import Program, is_tensor, value_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Attention:
    """Attention whose result is `node`.

    query (batch, heads, queries, d); key (batch, kv_heads, keys, d), heads repeated or not; value
    alike; mask broadcasts to (batch, heads, queries, keys). `absorbed` are the operators that it
    stands for beside `node`, in the order of the program. A row that sees no key gives 0 if `safe`,
    else NaN. turned: the numbers of the operands whose nodes have the last two dimensions swapped.
    Of a swapped one `node` gives the result with these swapped.
    """

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    mask: fx.Node | None
    scale: float
    softcap: float | None = None
    causal: bool = False
    safe: bool = True
    absorbed: tuple[fx.Node, ...] = ()
    turned: frozenset[int] = frozenset()
    swapped: bool = False

    @property
    def operands(self) -> tuple[fx.Node | None, ...]:
        return self.query, self.key, self.value, self.mask

    @property
    def values(self) -> tuple[torch.Tensor | None, ...]:
        """The fake values of the operands as the operator takes them."""
        found = [None if o is None else value_of(o) for o in self.operands]
        return tuple(v.mT if k in self.turned and v is not None else v for k, v in enumerate(found))

    @property
    def call(self) -> fx.Node:
        """The call of the operator once `rewrite` has made it; before, `node`."""
        operand = self.node.args[0]
        made = self.swapped and self.node.target is aten.transpose.int
        return operand if made and isinstance(operand, fx.Node) else self.node

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `vtc::attention`."""
        return {
            "causal": self.causal,
            "scale": self.scale,
            "softcap": self.softcap,
            "safe": self.safe,
        }


def find(program: Program) -> tuple[Attention, ...]:
    """Every attention over four-dimensional tensors, in the order of the program."""
    kept = {value for _, value in program.updates}
    kept |= {o for o in program.outputs if isinstance(o, fx.Node)}
    found = []
    for node in program.nodes:
        attention = _library(node) or _written_out(node, kept)
        if attention is not None:
            found.append(attention)
    return tuple(found)


def _library(node: fx.Node) -> Attention | None:
    """scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=, enable_gqa=)."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    query, key, value = given["query"], given["key"], given["value"]
    mask = given.get("attn_mask")
    if given.get("dropout_p") or not _four_dimensional(query, key, value, mask):
        return None
    scale = given.get("scale")
    if scale is None:
        scale = 1 / math.sqrt(value_of(query).shape[-1])
    causal = bool(given.get("is_causal"))
    return Attention(node, query, key, value, _unexpanded(mask), float(scale), causal=causal)


def _written_out(node: fx.Node, kept: set[fx.Node]) -> Attention | None:
    if node.target is not aten.matmul.default or not _four_dimensional(*node.args):
        return None
    weights, value = node.args
    return _weighted(node, kept, weights, value) or _swapped(node, kept, value, weights)


def _swapped(
    node: fx.Node, kept: set[fx.Node], turned_weights: Any, value: Any
) -> Attention | None:
    """matmul(v, transpose(weights))"""
    weights = _transposed(turned_weights)
    if weights is None or len(turned_weights.users) > 1 or turned_weights in kept:
        return None
    found = _weighted(node, kept, weights, value)
    if found is None:
        return None
    absorbed, turned = (*found.absorbed, turned_weights), found.turned | {2}
    return replace(found, absorbed=absorbed, turned=turned, swapped=True)


def _weighted(node: fx.Node, kept: set[fx.Node], weights: Any, value: Any) -> Attention | None:
    """What adds up values with weights that are the softmax of products."""
    walk = _Chain(node, kept)
    weights = walk.through(weights, _is_idle_dropout)
    weights = walk.through(weights, _is_cast)
    softmax = walk.take(weights, _is_softmax)
    if softmax is None:
        return None
    logits, mask = walk.addend(softmax.args[0])
    logits, softcap = walk.softcap(logits)
    logits, scale = walk.factor(logits)
    scores = walk.take(logits, lambda n: n.target is aten.matmul.default)
    if scores is None:
        return None
    query, factor, query_turned = walk.query(scores.args[0])
    key = _transposed(scores.args[1])
    turned = {0} if query_turned else set()
    if key is None:
        key, turned = scores.args[1], turned | {1}
    if not _four_dimensional(query, key, value, mask):
        return None
    if value_of(scores).shape != value_of(softmax).shape:  # a mask that adds rows
        return None
    absorbed = tuple(reversed(walk.taken))
    mask = _unexpanded(mask)
    found = Attention(node, query, key, value, mask, scale * factor, softcap, safe=False)
    return replace(found, absorbed=absorbed, turned=frozenset(turned))


class _Chain:
    """A walk back from `end` over operators whose results only the next one uses."""

    def __init__(self, end: fx.Node, kept: set[fx.Node]) -> None:
        self.end, self.kept = end, kept
        self.taken: list[fx.Node] = []

    def take(self, node: Any, accepts: Callable[[fx.Node], bool]) -> fx.Node | None:
        """`node` if it is accepted and has no other use, noted as absorbed."""
        if not self._private(node) or not accepts(node):
            return None
        self.taken.append(node)
        return node

    def _private(self, node: Any) -> bool:
        return is_tensor(node) and len(node.users) == 1 and node not in self.kept

    def through(self, node: Any, accepts: Callable[[fx.Node], bool]) -> Any:
        """What an accepted `node` reads, else `node`."""
        taken = self.take(node, accepts)
        return node if taken is None else taken.args[0]

    def addend(self, node: Any) -> tuple[Any, fx.Node | None]:
        """before: x + mask   after: x, mask. The mask is the operand that broadcasts, or that is
        no product of the logits."""
        if not self._private(node) or node.target is not aten.add.Tensor:
            return node, None
        if node.kwargs.get("alpha", 1) != 1 or not all(map(is_tensor, node.args)):
            return node, None
        shape = value_of(node).shape
        for logits, mask in (node.args, node.args[::-1]):
            if _computes_logits(logits) and value_of(logits).shape == shape:
                self.taken.append(node)
                return logits, mask
        return node, None

    def softcap(self, node: Any) -> tuple[Any, float | None]:
        """before: tanh(x / c) * c   after: x, c"""
        before = len(self.taken)
        inner, cap = self.factor(node)
        tanh = self.take(inner, lambda n: n.target is aten.tanh.default)
        if tanh is not None:
            inner, divisor = self.factor(tanh.args[0])
            if cap > 0 and math.isclose(divisor * cap, 1.0, rel_tol=1e-6):
                return inner, cap
        del self.taken[before:]
        return node, None

    def query(self, node: Any) -> tuple[Any, float, bool]:
        """before: x * a, or transpose(x * a)   after: x, a, and whether x was transposed."""
        plain, factor = self.factor(node)
        inner = _transposed(plain)
        if inner is None or not self._private(plain):
            return plain, factor, False
        before = len(self.taken)
        self.taken.append(plain)
        below, more = self.factor(inner)
        if below is inner:
            del self.taken[before:]
            return plain, factor, False
        return below, factor * more, True

    def factor(self, node: Any) -> tuple[Any, float]:
        """before: x * a or x / (1 / a)   after: x, a"""
        if not self._private(node) or node.target not in (aten.mul.Tensor, aten.div.Tensor):
            return node, 1.0
        left, right = node.args
        if not isinstance(right, int | float) or not is_tensor(left) or right == 0:
            return node, 1.0
        self.taken.append(node)
        return left, float(right) if node.target is aten.mul.Tensor else 1 / float(right)


def _computes_logits(node: fx.Node) -> bool:
    elementwise = (aten.mul.Tensor, aten.div.Tensor, aten.tanh.default)
    while node.target in elementwise and is_tensor(node.args[0]):
        node = node.args[0]
    return node.target is aten.matmul.default


def _is_idle_dropout(node: fx.Node) -> bool:
    if node.target is aten.alias.default:  # what a trace makes of it
        return True
    return node.target is aten.dropout.default and (not node.args[1] or not node.args[2])


def _is_cast(node: fx.Node) -> bool:
    if node.target is aten._to_copy.default:
        return set(node.kwargs) <= {"dtype"}
    return node.target is aten.type_as.default


def _is_softmax(node: fx.Node) -> bool:
    """Over the last dimension; of half-precision logits PyTorch computes it in float32 anyway."""
    if node.target is not aten.softmax.int:
        return False
    dim = node.args[1]
    return dim in (-1, value_of(node).dim() - 1)


def _transposed(node: Any) -> fx.Node | None:
    """What `node` is the matrix transpose of, or None."""
    if not is_tensor(node):
        return None
    rank = value_of(node).dim()
    if node.target is aten.transpose.int:
        dims = {d % rank for d in node.args[1:3]}
        return node.args[0] if dims == {rank - 2, rank - 1} else None
    if node.target is aten.permute.default:
        order = [d % rank for d in node.args[1]]
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        return node.args[0] if order == swapped else None
    return None


def _four_dimensional(*nodes: Any) -> bool:
    """Tensors of four dimensions of known size and layout; the mask, last, may have fewer or be
    None."""
    *tensors, last = nodes if len(nodes) == 4 else (*nodes, None)
    if last is not None and (not is_tensor(last) or value_of(last).dim() > 4):
        return False
    for node in tensors:
        if not is_tensor(node) or value_of(node).dim() != 4 or programs.has_symbol(node):
            return False
    return True


def _unexpanded(mask: fx.Node | None) -> fx.Node | None:
    """The mask before it is expanded: a kernel broadcasts it by itself."""
    while mask is not None and mask.target is aten.expand.default:
        mask = mask.args[0]
    return mask


def rewrite(
    program: Program, chosen: Mapping[Attention, Mapping[str, Any]], operator: Any
) -> Program:
    """`program` with each of `chosen` as a call of `operator` with the given further arguments.

    The graph is changed in place, and nodes keep their names. An attention stays as it is where
    what reads its result is a view that the layout of the operator's result does not have.
    """
    graph_module = program.graph_module
    kept = {value for _, value in program.updates}
    for attention, options in chosen.items():
        _replace(attention, options, operator, kept)
    graph_module.graph.lint()
    graph_module.recompile()
    return programs.build(
        graph_module, program.updates, program.constants, program.aliases, program.storages
    )


def _replace(
    attention: Attention, options: Mapping[str, Any], operator: Any, kept: set[fx.Node]
) -> None:
    node, old = attention.node, value_of(attention.node)
    kwargs = {**attention.options, **options}
    with old.fake_mode:
        made = operator(*attention.values, **kwargs)
    new = made.mT if attention.swapped else made
    values = values_after(node, new)
    if values is None or new.dtype != old.dtype:
        return
    with node.graph.inserting_before(node):
        operands = tuple(
            _turned(o) if k in attention.turned and o is not None else o
            for k, o in enumerate(attention.operands)
        )
        if attention.swapped:
            call = node.graph.call_function(operator, operands, kwargs)
            call.meta["val"] = made
            node.target, node.args, node.kwargs = aten.transpose.int, (call, 2, 3), {}
        else:
            node.target, node.args, node.kwargs = operator, operands, kwargs
    for changed, value in {node: new, **values}.items():
        changed.meta["val"] = value
    read = {o: None for a in attention.absorbed for o in a.all_input_nodes}
    for absorbed in reversed(attention.absorbed):
        node.graph.erase_node(absorbed)
    for operand in set(read) - set(attention.absorbed) - kept:  # the transpose of keys
        if not operand.users and operand.op == "call_function":
            node.graph.erase_node(operand)


def _turned(operand: fx.Node) -> fx.Node:
    """A view of an operand with its last two dimensions swapped."""
    made = operand.graph.call_function(aten.transpose.int, (operand, 2, 3))
    made.meta["val"] = value_of(operand).mT
    return made


def values_after(node: fx.Node, made: torch.Tensor) -> dict[fx.Node, Any] | None:
    """The fake values of what depends on `node` once its value is `made`: only layouts change.
    None where a view is not possible any more."""
    new: dict[fx.Node, Any] = {}
    if _alike(made, value_of(node)):
        return new
    new[node] = made
    for later in _following(node):
        if not any(operand in new for operand in later.all_input_nodes):
            continue

        def argument(operand: fx.Node) -> Any:
            return new.get(operand, value_of(operand))

        args, kwargs = fx.map_arg(later.args, argument), fx.map_arg(later.kwargs, argument)
        with made.fake_mode:
            try:
                value = later.target(*args, **kwargs)
            except (RuntimeError, ValueError):
                return None
        if not isinstance(value, torch.Tensor) or not _alike(value, value_of(later)):
            new[later] = value
    return new


def _following(node: fx.Node) -> Iterator[fx.Node]:
    while node.next.op == "call_function":
        node = node.next
        yield node


def _alike(one: torch.Tensor, other: Any) -> bool:
    """The same memory layout; the stride of a single element does not matter."""
    if not isinstance(other, torch.Tensor) or one.shape != other.shape:
        return False
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in pairs)
