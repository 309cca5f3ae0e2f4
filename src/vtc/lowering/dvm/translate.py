"""A captured program -> tensor expressions.

Each operator is a movement of the table, or has a rule, or is decomposed by PyTorch into operators
that have; what is left runs as eager PyTorch. An operator whose result's size depends on data is
such a call too, and what follows uses the new size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from vtc import errors
from vtc.graph.culprit import note
from vtc.graph.movement import BoundMovement, is_movement_target, movement_of
from vtc.graph.program import Program, value_of
from vtc.lowering.dvm import (
    rules_activation,
    rules_adaptive,
    rules_contract,
    rules_convolution,
    rules_fold,
    rules_make,
    rules_norm,
    rules_pointwise,
    rules_pool,
)
from vtc.lowering.dvm.calls import ATTENTION, called, in_library, new_symbols
from vtc.lowering.dvm.decompose import decomposition
from vtc.lowering.dvm.graph import Graph
from vtc.lowering.dvm.hints import Hints, check_indices, check_squeeze
from vtc.lowering.dvm.loops import Loop, submodule
from vtc.lowering.dvm.masks import unmasked
from vtc.lowering.dvm.nodes import Conditional, Node, Scatter, Unsupported, Weak
from vtc.lowering.dvm.plan import CPU, SliceBounds
from vtc.lowering.dvm.rules import RULES, Lowering, dtype_of, shape_of
from vtc.lowering.dvm.translation import Translation, conformed, plain
from vtc.program.dtypes import DType

aten = torch.ops.aten

RULE_FILES = (
    rules_pointwise,
    rules_activation,
    rules_fold,
    rules_make,
    rules_norm,
    rules_contract,
    rules_convolution,
    rules_pool,
    rules_adaptive,
)

# What the device's interpreter has no instructions for, or no room: the places in pools' windows.
_LACKS = frozenset({"matmul", "attention", "convolution", "scan", "places"})
# Checks of Dynamo's, which hold by the guards of the captured graph.
_CHECKS = {
    aten._assert_scalar.default,
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    torch._check,
}
_ITEM = (aten.item.default, aten._local_scalar_dense.default)
# Python's arithmetic on changing floats, as scalar operators in f64.
_FLOATS: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div",
    operator.pow: "pow", operator.neg: "neg", operator.floordiv: "floordiv",
    torch.sym_max: "maximum", torch.sym_min: "minimum", torch.sym_sqrt: "sqrt",
    math.sqrt: "sqrt", math.exp: "exp", math.log: "log", math.sin: "sin", math.cos: "cos",
    math.tanh: "tanh", operator.abs: "abs", abs: "abs",
}  # fmt: skip


def translate(program: Program, rounded: bool = False) -> Translation:
    """The whole program. Raises CaptureError for what the engine has no way to run, and TooWide."""
    device = _device(program)
    lacks = _LACKS if device.type == "cuda" else frozenset[str]()
    graph = Graph(hints=Hints.of(program.inputs), lacks=lacks)
    own = Translation(graph, rounded=rounded, device=device)
    for number, node in enumerate(program.inputs):
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            dtype = _input_dtype(value)
            found = own.graph.node("input", shape_of(value), dtype, (), number)
            own.values[node], own.fakes[found] = found, value
        else:
            own.values[node] = plain(value)
        own.known |= free_symbols(value) if _sized(value) else set()
    for node in program.nodes:
        try:
            found = own.values[node] = _translated(own, node, program.movements, calls=True)
        except Exception as error:
            note(error, node.target)
            raise
        if isinstance(found, Node):
            own.fakes.setdefault(found, value_of(node))
    return own


def _device(program: Program) -> torch.device:
    """The one device of all inputs. Raises CaptureError."""
    tensors = [n for n in program.inputs if isinstance(value_of(n), torch.Tensor)]
    found = {value_of(n).device: n for n in tensors}
    made = {v.device for n in program.nodes if isinstance(v := value_of(n), torch.Tensor)}
    devices = [*found, *(d for d in made if not found)]
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise errors.CaptureError(str(found.get(device)), f"the DVM does not run on {device}")
    if len(devices) > 1:
        node = list(found.values())[-1]
        raise errors.CaptureError(node.name, "its inputs are on several devices")
    return devices[0] if devices else CPU


def _sized(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat)


def _input_dtype(value: torch.Tensor) -> DType:
    try:
        return dtype_of(value.dtype)
    except Unsupported as error:
        raise errors.CaptureError("an input", f"the DVM has no {value.dtype}") from error


def _translated(
    own: Translation, node: fx.Node, movements: Mapping[fx.Node, BoundMovement], calls: bool
) -> Any:
    """The value of one FX node; `calls` allows eager calls."""
    target, value = node.target, value_of(node)
    if target in _CHECKS:
        return None
    check_squeeze(node)
    check_indices(node, own.graph.hints)
    if node in movements and not new_symbols(own, value):
        return _moved(own, movements[node])
    if target is aten.slice.Tensor and (found := _sliced(own, node)) is not None:
        return found
    if target is operator.getitem and not isinstance(own.values[node.args[0]], Node):
        return own.values[node.args[0]][node.args[1]]
    if is_movement_target(node) and all(u in movements for u in node.users):
        return None
    if target in _ITEM:
        return _item(own, node, calls)
    if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
        return plain(value)
    if target is aten.size.default:
        return tuple(map(plain, value))
    if isinstance(value, torch.SymFloat):
        return _float(own, node)
    if isinstance(value, torch.SymBool):
        return value.node.expr
    if isinstance(value, bool | float | None):
        return value
    if target is torch.ops.higher_order.cond:
        return _conditional(own, node)
    if target is torch.ops.higher_order.while_loop:
        return _loop(own, node, calls)
    args, kwargs = own.value((node.args, dict(node.kwargs)))
    return _operator(own, node, target, args, kwargs, calls)


def _moved(own: Translation, bound: BoundMovement) -> Node:
    movement = bound.movement
    sources = [own.values[n] for n in bound.sources]
    lookups = [own.values[n] for n in bound.lookups]
    if movement.inplace is not None:
        base, written = sources
        store = movement.store[1]
        assert store is not None
        operands = (base, written, *lookups)
        return own.graph.node("scatter", base.shape, base.dtype, operands, Scatter(store))
    assert movement.load is not None
    return own.graph.move(movement.load, sources, lookups, movement.store, movement.view)


def _sliced(own: Translation, node: fx.Node) -> Node | None:
    """A slice whose bounds are clamped at the call; None if they are not known before it.

    PyTorch makes a symbol for the length of such a slice, and maybe one for where it begins in
    storage.
    """
    x, *given = list(own.value(node.args))
    defaults: list[Any] = [0, None, None, 1]
    dim, start, end, step = given + defaults[len(given) :]
    if not isinstance(x, Node) or not isinstance(step, int):
        return None
    dim %= len(x.shape)
    length = shape_of(value_of(node))[dim]
    if not isinstance(length, sympy.Symbol) or any(isinstance(b, Weak) for b in (start, end)):
        return None
    begin = sympy.Symbol(f"{length}_begin", integer=True, nonnegative=True)
    bounds = SliceBounds(str(begin), str(length), x.shape[dim], start, end, step)
    if not bounds.needs <= {str(s) for s in own.known}:
        return None
    own.bounds.append(bounds)
    own.known |= {begin, length}
    return own.graph.slice(x, dim, begin, length, step)


def _item(own: Translation, node: fx.Node, calls: bool) -> Any:
    """The value of a tensor as a Python number: a float stays on the device, and is read from there
    if a size is computed from it."""
    value = value_of(node)
    tensor = own.values[node.args[0]]
    if isinstance(value, torch.SymFloat):
        if _sizes_need(node, value):
            called(own, node, node.target, (tensor,), {})
        flat = own.graph.reshape(tensor, ())
        return Weak(own.graph.cast(flat, DType.F64))
    if not calls:
        raise Unsupported("a number read in a decomposition")
    called(own, node, node.target, (tensor,), {})
    return plain(value)


def _sizes_need(node: fx.Node, number: torch.SymFloat) -> bool:
    """Is a size of the graph computed from a number that a node reads from a tensor?"""
    values = (value_of(n) for n in node.graph.nodes)
    sized = (v for v in values if isinstance(v, torch.Tensor | torch.SymInt))
    return any(number.node.expr in free_symbols(v) for v in sized)


def _float(own: Translation, node: fx.Node) -> Weak | float:
    name = "" if node.target is torch.sym_float else _FLOATS.get(node.target)
    if name is None:
        raise errors.CaptureError(str(node.target), "arithmetic on a changing number")
    lowering = Lowering(own.graph, node.meta["val"])
    operands = [lowering.operand(own.value(a), DType.F64) for a in node.args]
    return Weak(own.graph.scalar(name, *operands) if name else operands[0])


def _operator(
    own: Translation, node: fx.Node, target: Any, args: Any, kwargs: Any, calls: bool
) -> Any:
    value = value_of(node)
    if target is ATTENTION:
        args, kwargs = unmasked(own.graph.closed, args, kwargs)
    try:
        if new_symbols(own, value):
            raise Unsupported("a size that depends on data")
        found = _by_rule(own, node, target, args, kwargs)
    except Unsupported:
        if not calls:
            raise
        return called(own, node, target, args, kwargs)
    return _rounded(own, found) if own.rounded and calls else found


def _rounded(own: Translation, found: Any) -> Any:
    """An operator's results, those in half precision rounded now."""
    if isinstance(found, tuple):
        return tuple(_rounded(own, f) for f in found)
    if not isinstance(found, Node) or found.dtype.compute is not DType.F32:
        return found
    return own.graph.cast(own.graph.cast(found, DType.F32), found.dtype)


def _by_rule(own: Translation, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
    """By the operator's rule, or by those of what it decomposes into. Raises Unsupported."""
    value = value_of(node)
    for leaf in value if isinstance(value, tuple | list) else (value,):
        if isinstance(leaf, torch.Tensor):
            dtype_of(leaf.dtype)
            if leaf.device != own.device or leaf.layout is not torch.strided:
                raise Unsupported(f"a result on {leaf.device}")
    rule = RULES.get(target)
    if rule is not None:
        try:
            found = rule(Lowering(own.graph, value), *args, **kwargs)
        except (Unsupported, TypeError):
            # A TypeError: an argument that the rule does not know of.
            pass
        else:
            return conformed(own, found, value)
    if in_library(own, target):
        # Tracing attention on a device asks for sizes, and guards on them.
        raise Unsupported(str(target))
    return _decomposed(own, node, target)


def _decomposed(own: Translation, node: fx.Node, target: Any) -> Any:
    """The operator as PyTorch decomposes it, by the rules of what that gives."""
    if any(isinstance(own.values[a], Weak) for a in node.all_input_nodes):
        raise Unsupported(str(target))
    given = [
        a for a in node.all_input_nodes if isinstance(value_of(a), torch.Tensor | torch.SymInt)
    ]
    placeholders, inner, result = decomposition(node, target, given)
    own.values |= {p: own.values[a] for p, a in zip(placeholders, given, strict=True)}
    try:
        movements = movements_in(inner)
    except AssertionError as error:  # sizes that index algebra does not divide
        raise Unsupported(str(target)) from error
    for one in inner:
        own.values[one] = _translated(own, one, movements, calls=False)
    found = own.value(result)
    return tuple(found) if isinstance(found, list | tuple) else found


def movements_in(nodes: Sequence[fx.Node]) -> dict[fx.Node, BoundMovement]:
    """The movement operators among nodes that no capture has looked at."""
    found = {}
    for node in nodes:
        if isinstance(value_of(node), torch.Tensor) and not is_movement_target(node):
            movement = movement_of(node)
            if movement is not None:
                found[node] = movement
    return found


def _conditional(own: Translation, node: fx.Node) -> Any:
    """`torch.cond` as two arms."""
    if own.device.type not in ("cpu", "cuda"):
        raise errors.CaptureError("cond", f"the DVM does not branch on {own.device}")
    predicate, first, second, operands = node.args
    condition = own.value(predicate)
    if not isinstance(condition, Node):
        raise errors.CaptureError("cond", "its predicate is no tensor")
    lowering = Lowering(own.graph, value_of(predicate))
    condition = own.graph.reshape(lowering.operand(condition, DType.BOOL), ())
    arms = [_arm(own, module, own.value(operands)) for module in (first, second)]
    pairs = list(zip(value_of(node), *arms, strict=True))
    arms = [tuple(conformed(own, p[k], p[0]) for p in pairs) for k in (1, 2)]
    made = Conditional(condition, *arms)
    results = tuple(
        own.graph.node("arm", a.shape, a.dtype, (), (made, k)) for k, a in enumerate(arms[0])
    )
    own.graph.results[made] = results
    return results


def _loop(own: Translation, node: fx.Node, calls: bool) -> Any:
    condition, body, carried, others = node.args
    if not calls:
        raise Unsupported("a loop in an arm of a branch")
    given = own.value((tuple(carried), tuple(others)))
    return called(own, node, Loop(submodule(condition), submodule(body)), given, {})


def _arm(own: Translation, module: fx.Node, operands: Sequence[Any]) -> tuple[Any, ...]:
    graph = submodule(module).graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    own.values |= dict(zip(placeholders, operands, strict=True))
    inner = [n for n in graph.nodes if n.op == "call_function"]
    movements = movements_in(inner)
    for node in inner:
        try:
            own.values[node] = _translated(own, node, movements, calls=False)
        except Unsupported as error:
            raise errors.CaptureError(str(node.target), "in an arm of torch.cond") from error
    (output,) = (n for n in graph.nodes if n.op == "output")
    return tuple(own.value(list(output.args[0])))
