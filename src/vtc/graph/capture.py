"""Capture: what Dynamo hands a backend -> functional ATen that still shows its data movement.

The trace stops above decomposition: attention, linear, roll, im2col, channel_shuffle, expand and
cat stay, `index_copy_` becomes `index_copy`, and each updated input is listed with the value that
the program leaves in it. Full decomposition would turn roll or reflection padding into arithmetic
on index tensors, from which no map can be read.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from vtc import errors
from vtc.graph import program
from vtc.graph.culprit import Interpreter, failure, named
from vtc.graph.dropout import IdleDropouts, stale_outputs
from vtc.graph.functional import traced
from vtc.graph.literals import placed
from vtc.graph.memory_format import Laid, misjudged, scatter_densely
from vtc.graph.program import InputView, Program
from vtc.graph.strided_calls import refuse_strided
from vtc.graph.strides import alike, is_empty, numbers, restrided
from vtc.graph.vmaps import functorch_restored, without_vmap

aten = torch.ops.aten


def capture(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, branches: bool = False
) -> Program:
    """Trace a Dynamo graph into a Program, under the fake mode that Dynamo already uses.

    `branches` lets `torch.cond` and `while_loop` be captured, their functions as graph modules.
    Raises CaptureError, with the first operator that stands in the way, for a graph that has other
    control-flow or higher-order operators, or that cannot be made functional.
    """
    control_flow = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)
    mode_type = None
    for node in graph_module.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            if branches and node.target in control_flow:
                mode_type = FunctionalTensorMode  # the operators know no other
                continue
            raise errors.CaptureError(str(node.target), "higher-order operators are not captured")
    mode = detect_fake_mode(list(example_inputs)) or FakeTensorMode(allow_non_fake_inputs=True)
    lifted, constants = lift_attributes(without_idle_autocast(graph_module))
    fakes = [fake(mode, a) for a in (*example_inputs, *constants)]
    lifted = without_vmap(lifted, fakes, mode)
    updated: list[int] = []
    try:
        with torch.no_grad(), mode, functorch_restored(), fx.traceback.preserve_node_meta():
            trace = traced(lifted, fakes, mode, updated, mode_type)
            refuse_strided(trace, fakes, updated)
            scatter_densely(trace)
            with _no_new_sizes(mode):
                outputs, aliases, storages = returned(lifted, fakes, updated)
            restride(trace, outputs, storages)
    except errors.CaptureError:
        raise
    except Exception as error:
        raise failure(error) from error
    keep_placeholder_meta(lifted, trace)
    drop_unused_attributes(trace)
    trace, literals = lift_attributes(trace)  # what torch.tensor([...]) in the model makes
    updates = tidy(trace, updated)
    literals = placed(trace, literals)
    result = program.build(trace, updates, (*constants, *literals), aliases, storages)
    return explicit_autocast(result) if ambient_autocast(result) else result


def without_idle_autocast(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph without regions that switch autocast off where it is off already.

    Raises CaptureError for a region that changes what operators compute.
    """
    enters = [n for n in graph_module.graph.nodes if n.target is torch.amp._enter_autocast]
    if not enters:
        return graph_module
    for node in enters:
        device, _, enabled = node.args[:3]
        if enabled or torch.is_autocast_enabled(device):
            raise errors.CaptureError(node.name, "the graph switches autocast inside")
    stripped = copy.copy(graph_module)
    stripped.graph = copy.deepcopy(graph_module.graph)
    switches = (torch.amp._exit_autocast, torch.amp._enter_autocast)
    for target in switches:  # an exit uses its enter
        for node in stripped.graph.find_nodes(op="call_function", target=target):
            stripped.graph.erase_node(node)
    stripped.recompile()
    return stripped


def fake(mode: FakeTensorMode, value: Any) -> Any:
    """The fake twin of an argument; Dynamo's own one where it has made it already."""
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return mode.from_tensor(value)
    return value


def lift_attributes(
    graph_module: fx.GraphModule,
) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """Turn `get_attr` tensors into trailing inputs, so that weights are inputs in every mode."""
    attributes = [n for n in graph_module.graph.nodes if is_tensor_attribute(n, graph_module)]
    if not attributes:
        return graph_module, ()
    lifted = fx.GraphModule(graph_module, fx.Graph())
    values: dict[fx.Node, fx.Node] = {}
    lifted.graph.graph_copy(graph_module.graph, values)
    (output,) = (n for n in graph_module.graph.nodes if n.op == "output")
    lifted.graph.output(fx.map_arg(output.args[0], lambda n: values[n]))
    constants: dict[str, torch.Tensor] = {}
    placeholders = [n for n in lifted.graph.nodes if n.op == "placeholder"]
    last = placeholders[-1] if placeholders else lifted.graph._root
    made: dict[str, fx.Node] = {}
    for node in [n for n in lifted.graph.nodes if is_tensor_attribute(n, graph_module)]:
        value = attribute_of(graph_module, node)
        if not isinstance(value, torch.Tensor):
            raise errors.CaptureError(str(node.target), "a graph attribute is not a tensor")
        if node.target not in made:
            with lifted.graph.inserting_after(last):
                last = lifted.graph.placeholder(str(node.target).replace(".", "_"))
            last.meta.update(node.meta)
            made[str(node.target)], constants[str(node.target)] = last, value
        node.replace_all_uses_with(made[str(node.target)])
        lifted.graph.erase_node(node)
    lifted.recompile()
    return lifted, tuple(constants.values())


def is_tensor_attribute(node: fx.Node, owner: fx.GraphModule) -> bool:
    """A `get_attr` of anything but a graph module, which is an arm of a branch."""
    if node.op != "get_attr":
        return False
    return not isinstance(attribute_of(owner, node), fx.GraphModule)


def attribute_of(owner: fx.GraphModule, node: fx.Node) -> Any:
    """What a `get_attr` gets."""
    value: Any = owner
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def returned(
    graph_module: fx.GraphModule, fakes: Sequence[Any], updated: Sequence[int]
) -> tuple[list[Any], dict[int, InputView], dict[int, int]]:
    """What eager PyTorch returns, as fake values; `Program.aliases` and `Program.storages` of it.

    Raises CaptureError for a view of an updated input that no sizes, strides and offset say.
    """
    (node,) = graph_module.graph.find_nodes(op="output")
    fakes, outputs = _run(graph_module, fakes)
    inputs = {
        f.untyped_storage()._cdata: i
        for i, f in reversed(list(enumerate(fakes)))
        if isinstance(f, torch.Tensor)
    }
    holders = _holders(fakes)
    made: dict[int, int] = {}
    aliases: dict[int, InputView] = {}
    storages: dict[int, int] = {}
    for k, (out, given) in enumerate(zip(outputs, node.args[0], strict=True)):
        if not isinstance(out, torch.Tensor):
            continue
        storage = out.untyped_storage()._cdata
        source = inputs.get(storage)
        storages[k] = made.setdefault(storage, ~k) if source is None else source
        if source is None or is_empty(out):
            continue
        view = InputView(
            source,
            numbers(out.shape),
            numbers(out.stride()),
            *numbers((out.storage_offset() - fakes[source].storage_offset(),)),
        )
        parts = (*view.size, *view.stride, view.offset)
        if source in updated:
            if not _alike(out, fakes[source]) or any(map(free_unbacked_symbols, parts)):
                reason = "an output is a view of an updated input that depends on data or bits"
                raise errors.CaptureError(_operator(given), reason)
            aliases[k] = view
        elif (
            holders[storage] == 1
            and all(isinstance(n, int) for n in parts)
            and _alike(out, fakes[source])
            and given.op != "placeholder"
        ):
            aliases[k] = view
    return outputs, aliases, storages


def _run(graph_module: fx.GraphModule, fakes: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
    """Fake inputs and outputs: those of Dynamo's own run, or of one more, which may guard sizes.

    Dynamo's inputs may share storage where `fakes` were parted; its strides may be wrong
    (`memory_format`).
    """
    (node,) = graph_module.graph.find_nodes(op="output")
    inputs = graph_module.graph.find_nodes(op="placeholder")
    nodes = [*inputs, *(out for out in node.args[0] if isinstance(out, fx.Node))]
    wrong = any(map(misjudged, graph_module.graph.nodes)) or bool(stale_outputs(graph_module))
    if not wrong and all("example_value" in n.meta for n in nodes):
        given = [n.meta["example_value"] for n in inputs]
        if max(_holders(given).values(), default=1) == 1:
            return given, fx.map_arg(list(node.args[0]), lambda n: n.meta["example_value"])
    # In C++ some operators that are made of others read sizes that are to be numbers.
    sized = any(isinstance(n, torch.SymInt) for f in fakes for n in _numbers(f))
    interpreter = Laid if wrong else Interpreter
    with IdleDropouts(), enable_python_dispatcher() if sized else contextlib.nullcontext():
        return fakes, list(interpreter(graph_module).run(*fakes))


def _numbers(value: Any) -> tuple[Any, ...]:
    """What a value's symbols can be: itself, or its sizes and strides."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, *value.stride())
    return (value,)


def _holders(values: Sequence[Any]) -> Counter[int]:
    """How many tensors have each storage."""
    return Counter(v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor))


def restride(traced: fx.GraphModule, outputs: Sequence[Any], storages: dict[int, int]) -> None:
    """Give outputs the strides that eager PyTorch gives them, where those of functional operators
    differ: an update in place keeps strides."""
    (end,) = traced.graph.find_nodes(op="output")
    results = list(end.args[0])
    for k, (node, out) in enumerate(zip(results, outputs, strict=True)):
        same = [j for j, storage in storages.items() if storage == ~k]
        if not same or any(results[j] is not node for j in same):
            continue  # an input's, or one that others are views of
        value = node.meta.get("val")
        if not alike(value, out):
            made = restrided(node, value, out.stride()) or node
            for j in same:
                results[j] = made
    end.args = (type(end.args[0])(results),)
    traced.recompile()


def _no_new_sizes(mode: FakeTensorMode) -> contextlib.AbstractContextManager[Any]:
    """Sizes that depend on data are none of the graph's when it runs a second time."""
    if mode.shape_env is None:
        return contextlib.nullcontext()
    return mode.shape_env.ignore_fresh_unbacked_symbols()


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Do both read the elements of a storage as the same values?"""
    bits = (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    return bits and one.dtype == other.dtype


def keep_placeholder_meta(source: fx.GraphModule, target: fx.GraphModule) -> None:
    """Carry what Dynamo notes of an input (is it a parameter, where does it come from) over."""
    before = [n for n in source.graph.nodes if n.op == "placeholder"]
    after = [n for n in target.graph.nodes if n.op == "placeholder"]
    for old, new in zip(before, after, strict=True):
        for key in ("tensor_dict", "grapharg", "_dynamo_source", "stack_trace"):
            if key in old.meta:
                new.meta[key] = old.meta[key]
        new.meta["user_name"] = old.name


def tidy(graph_module: fx.GraphModule, updated: list[int]) -> tuple[tuple[int, fx.Node], ...]:
    """Drop checks and dead nodes; take the trailing copies out and return them as pairs."""
    graph = graph_module.graph
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    updates = []
    for node in list(graph.nodes):
        if node.target is aten.unfold_backward.default:  # which forgets what no window holds
            reason = "an update is made through windows"
            raise errors.CaptureError(str(node.target), reason, stock=False)
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif node.target is aten.copy_.default and node.args[0].op == "placeholder":
            updates.append((inputs.index(node.args[0]), node.args[1]))
            graph.erase_node(node)
    if sorted(i for i, _ in updates) != sorted(updated):
        raise errors.CaptureError("copy_", "an updated input has no final value in the trace")
    kept = {value for _, value in updates}
    graph.eliminate_dead_code(is_impure_node=lambda n: n in kept or _impure(n))
    graph_module.recompile()
    return tuple(updates)


def drop_unused_attributes(graph_module: fx.GraphModule) -> None:
    """Erase, in place, attributes that nothing reads: PyTorch 2.11 leaves the tensor itself behind
    where a graph asks for its storage offset."""
    for node in graph_module.graph.find_nodes(op="get_attr"):
        if not node.users:
            graph_module.graph.erase_node(node)


def _impure(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or node.is_impure()


def ambient_autocast(captured: Program) -> bool:
    """Is autocast on around the call, for a device that the graph uses?"""
    kinds = {
        value.device.type
        for n in captured.graph_module.graph.nodes
        if isinstance(value := program.value_of(n), torch.Tensor)
    }
    return any(
        torch.is_autocast_enabled(kind) for kind in kinds if torch.amp.is_autocast_available(kind)
    )


def explicit_autocast(captured: Program) -> Program:
    """Write ambient autocast's casts into the graph.

    linear(x: f32, w: f32) -> bf16   becomes   linear(cast(x, bf16), cast(w, bf16)) -> bf16

    An operator that autocast touched is known by its result: another dtype than the operator
    gives by itself on the same operands. Raises CaptureError where casting the floating-point
    operands to the result's dtype does not reproduce it.
    """
    graph = captured.graph_module.graph
    for node in captured.nodes:
        value = program.value_of(node)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if _result_dtype(node, None) == value.dtype and not _mixed_operands(node):
            continue
        if _result_dtype(node, value.dtype) != value.dtype:
            raise errors.CaptureError(str(node.target), "autocast of this operator is not known")

        def cast(operand: fx.Node, node: fx.Node = node, value: torch.Tensor = value) -> fx.Node:
            operand_value = program.value_of(operand)
            if not _floating(operand_value) or operand_value.dtype == value.dtype:
                return operand
            with graph.inserting_before(node):
                made = graph.call_function(
                    aten._to_copy.default, (operand,), {"dtype": value.dtype}
                )
            made.meta["val"] = operand_value.to(value.dtype)
            made.meta["stack_trace"] = node.meta.get("stack_trace")
            return made

        node.args = fx.map_arg(node.args, cast)
        node.kwargs = fx.map_arg(node.kwargs, cast)
    captured.graph_module.recompile()
    return program.build(
        captured.graph_module,
        captured.updates,
        captured.constants,
        captured.aliases,
        captured.storages,
    )


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _mixed_operands(node: fx.Node) -> bool:
    """Does autocast know the operator, and do its floats not all have the result's dtype?

    mm(x: bf16, w: f32) -> bf16: that the kernel refuses this by itself does not show on fakes.
    """
    value, target = program.value_of(node), node.target
    key = "AutocastCPU" if value.device.type == "cpu" else "AutocastCUDA"
    if not isinstance(target, torch._ops.OpOverload) or not (
        torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key)
    ):
        return False
    operands = map(program.value_of, node.all_input_nodes)
    return any(_floating(o) and o.dtype != value.dtype for o in operands)


def _result_dtype(node: fx.Node, operand_dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype of the node's result without autocast, its floats first cast if one is given."""

    def operand(n: fx.Node) -> Any:
        value = program.value_of(n)
        return value.to(operand_dtype) if operand_dtype and _floating(value) else value

    args, kwargs = fx.map_arg(node.args, operand), fx.map_arg(node.kwargs, operand)
    value = program.value_of(node)
    with value.fake_mode, torch.autocast(value.device.type, enabled=False):
        try:
            result = node.target(*args, **kwargs)
        except RuntimeError:
            return None
    return result.dtype if isinstance(result, torch.Tensor) else None


def _operator(node: fx.Node) -> str:
    """What an output is called by: an input, or the operator that gives it or a list with it."""
    while node.target is operator.getitem:
        if isinstance(node.args[0].meta.get("example_value"), torch.Tensor):
            break  # it is indexed
        node = node.args[0]
    return node.name if node.op == "placeholder" else named(node.target)
