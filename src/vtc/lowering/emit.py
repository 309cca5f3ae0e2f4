"""Writing the graph of one step: regions, the movement operators that they read through, stores."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from vtc.graph.movement import is_movement_target, is_registered
from vtc.graph.program import is_tensor, value_of
from vtc.graph.regions import Region
from vtc.graph.strides import alike, known, restrided
from vtc.kernels import libraries
from vtc.kernels.inductor import Slot
from vtc.kernels.libraries import Grouped
from vtc.lowering.homes import Homes, Store
from vtc.lowering.schedule import Operand, View
from vtc.lowering.written import writable, write_out

aten = torch.ops.aten
# Operators that go by the strides of an operand as by its values.
_BY_STORAGE = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
)


class StepGraph:
    """A graph under construction.

    `outside(node)` says where a tensor that this step does not compute is found, or None for a
    movement operator that is to be written out here, over its sources.
    """

    def __init__(self, homes: Homes, outside: Callable[[fx.Node], Operand | None]) -> None:
        self.homes, self.outside = homes, outside
        self.graph = fx.Graph()
        self.env: dict[fx.Node, Any] = {}
        self.operands: dict[Operand, fx.Node] = {}
        self.targets: list[Operand] = []
        self.pending: list[tuple[Operand, fx.Node]] = []
        self.last_placeholder: fx.Node | None = None

    def region(self, region: Region) -> None:
        for node in region.nodes:
            self._compute(node)

    def value(self, node: fx.Node) -> Any:
        """The step's node for the value of `node`."""
        if node in self.env:
            return self.env[node]
        operand = self.outside(node)
        if operand is not None:
            self.env[node] = self.operand(operand, node)
        elif self._dropped(node):
            self.env[node] = self.value(node.all_input_nodes[0])
        else:
            self.env[node] = self._copy(node)
        return self.env[node]

    def operand(self, operand: Operand, like: fx.Node) -> fx.Node:
        """The placeholder of an operand, added when it is first used."""
        if operand not in self.operands:
            value = operand_value(operand, like)
            after = self.last_placeholder or self.graph._root
            with self.graph.inserting_after(after):
                made = self.graph.placeholder(f"arg{len(self.operands)}")
            made.meta["val"] = value
            for key in ("tensor_dict", "grapharg", "_dynamo_source"):
                if operand.kind == "input" and operand.view is None and key in like.meta:
                    made.meta[key] = like.meta[key]
            self.operands[operand] = self.last_placeholder = made
        return self.operands[operand]

    def store(self, store: Store, place: Callable[[Slot], Operand]) -> None:
        """Write a value into its views, at the end of the step."""
        for slot in store.slots:
            operand = place(slot)
            target = self.operand(operand, self.homes.nodes[slot.base])
            if store.node is None:
                self._write(operand, self._fill(target, store.fill))
                continue
            runs = store.operator == store.node.name  # the operator itself, into its place
            value = self._copy(store.node) if runs else self.value(store.node)
            part = self._part(value, value_of(store.node).shape, slot)
            self._write(operand, part)

    def update(self, number: int, node: fx.Node) -> None:
        """Leave the value of `node` in input `number`."""
        target = Operand("input", number)
        self.operand(target, self.homes.program.inputs[number])
        self._write(target, self.value(node))

    def finish(self, results: Iterable[fx.Node]) -> tuple[fx.GraphModule, tuple[int, ...]]:
        """The step's module and the numbers of the operands that it stores into."""
        results = list(results)
        values = [self._result(n) for n in results]
        targets = []
        for operand, value in self.pending:
            self.graph.call_function(aten.copy_.default, (self.operands[operand], value))
            targets.append(operand)
        self.graph.output(tuple(values))
        self.graph.eliminate_dead_code()
        module = fx.GraphModule({}, self.graph)
        if self.homes.chosen or any(operand.view is not None for operand in self.operands):
            _keep_strides(module, results)
            _keep_storages(module)
        order = list(self.operands)
        return module, tuple(dict.fromkeys(order.index(t) for t in targets))

    def _write(self, operand: Operand, value: fx.Node) -> None:
        self.pending.append((operand, value))

    def _fill(self, target: fx.Node, fill: Any) -> fx.Node:
        made = self.graph.call_function(aten.full_like.default, (target, fill))
        made.meta["val"] = value_of(target)
        return made

    def _part(self, value: fx.Node, shape: Iterable[int], slot: Slot) -> fx.Node:
        for dim, size in enumerate(shape):
            low, high = slot.lower[dim], slot.upper[dim]
            if (low, high) != (0, size):
                value = self._moved(aten.slice.Tensor, value, dim, low, high)
        extent = tuple(high - low for low, high in zip(slot.lower, slot.upper, strict=True))
        if tuple(slot.shape) != extent:
            value = self._moved(aten.reshape.default, value, list(slot.shape))
        return value

    def _moved(self, operator: Any, value: fx.Node, *args: Any) -> fx.Node:
        made = self.graph.call_function(operator, (value, *args))
        fake = value_of(value)
        if fake is not None:
            with fake.fake_mode:
                made.meta["val"] = operator(fake, *args)
        return made

    def _result(self, node: fx.Node) -> fx.Node:
        """The value that other steps read, which expect it in its own strides."""
        made = self.value(node)
        if self._dropped(node) and value_of(made).stride() != value_of(node).stride():
            return self._copy(node)
        return made

    def _dropped(self, node: fx.Node) -> bool:
        """A clone that a chosen edge takes away: readers see its source."""
        return (
            node.target in (aten.clone.default, aten.contiguous.default)
            and node.name in self.homes.chosen
            and bool(self.homes.edges(node, "load"))
        )

    def _compute(self, node: fx.Node) -> None:
        if node in self.env:
            return
        if node in self.homes.program.movements and self._dropped(node):
            self.env[node] = self.value(node.all_input_nodes[0])
        else:
            self.env[node] = self._grouped(node) or self._transposed(node) or self._copy(node)

    def _transposed(self, node: fx.Node) -> fx.Node | None:
        if node.name not in self.homes.transposed:
            return None
        made = libraries.transposed_call(self.graph, node, self.value)
        made.meta["origin"] = node
        return made

    def _grouped(self, node: fx.Node) -> fx.Node | None:
        """The anchor on operands whose heads are not repeated, where the strategy has it so."""
        found = {}
        for (user, position), (source, index_map) in self.homes.through.items():
            if user is node:
                heads = libraries.grouped_operand(node, position, index_map)
                if heads is not None:
                    found[position] = source, heads, index_map.shape
        if len({heads.repeats for _, heads, _ in found.values()}) != 1:
            return None
        repeats = next(iter(found.values()))[1].repeats
        values = {position: self._narrowed(*read) for position, read in found.items()}
        made = libraries.grouped_call(self.graph, node, values, repeats, self.value)
        if made is not None:
            made.meta["origin"] = node
        return made

    def _narrowed(self, source: fx.Node, heads: Grouped, shape: tuple[int, ...]) -> fx.Node:
        """The part of `source` that a map of `shape` reads: the start of every dimension."""
        value = self.value(source)
        sizes = (*shape[:-2], shape[-1], shape[-2]) if heads.swapped else shape
        for dim, (size, whole) in enumerate(zip(sizes, value_of(source).shape, strict=True)):
            kept = size // heads.repeats if dim == heads.dim else size
            if kept != whole:
                value = self.graph.call_function(aten.slice.Tensor, (value, dim, 0, kept))
        if heads.swapped:
            value = self.graph.call_function(aten.transpose.int, (value, -2, -1))
        return value

    def _copy(self, node: fx.Node) -> fx.Node:
        bound = self.homes.program.movements.get(node)
        if bound is not None and is_registered(node) and writable(bound.movement):
            made = write_out(self.graph, node, bound.movement, self._tensors(node))
        else:
            made = self.graph.node_copy(node, self.value)
        made.meta["origin"] = node
        if node.target in (aten.view.default, aten._unsafe_view.default):
            # What it reads may have other strides here than in eager PyTorch: another home, or a
            # kernel called another way. Where it is a view, this is one too.
            made.target = aten.reshape.default
        return made

    def _tensors(self, node: fx.Node) -> list[fx.Node]:
        """The values of a call's tensor operands, in the order of its arguments."""
        operands: list[fx.Node] = []
        fx.map_arg((node.args, node.kwargs), operands.append)
        return [self.value(n) for n in operands if is_tensor(n)]


def _keep_strides(module: fx.GraphModule, results: Sequence[fx.Node]) -> None:
    """Give results their own strides, where operands in other strides lead to others.

    A view gets them with what it is a view of.
    """
    if not results or not _known_operands(module):
        return
    (end,) = module.graph.find_nodes(op="output")
    found: dict[fx.Node, Any] = {}
    for k in range(len(results)):
        found = found or _values(module)
        made = end.args[0][k]
        own = value_of(results[k])
        while _is_view(made):
            made = made.args[0]
            own = value_of(made.meta["origin"])
        if not isinstance(own, torch.Tensor) or alike(found[made], own):
            continue
        _restride(made, found[made], own.stride())
        found = {}  # views of it have other strides now


def _is_view(node: fx.Node) -> bool:
    """Is it, in eager PyTorch, a view of what the step makes before it?

    Where the step has other strides it may be a copy yet, as a reshape is, and becomes a view when
    that has its own.
    """
    origin, source = node.meta.get("origin"), node.args[0] if node.args else None
    if origin is None or not isinstance(source, fx.Node) or "origin" not in source.meta:
        return False
    if node.target is operator.getitem and isinstance(value_of(origin.args[0]), list | tuple):
        return _is_view(source)  # a part of a split
    value = value_of(origin)
    value = value[0] if isinstance(value, list | tuple) and value else value
    viewed = value_of(source.meta["origin"])
    if not isinstance(value, torch.Tensor) or not isinstance(viewed, torch.Tensor):
        return False
    return bool(value.untyped_storage()._cdata == viewed.untyped_storage()._cdata)


def _keep_storages(module: fx.GraphModule) -> None:
    """Let what reads or writes a tensor by places in its storage find it in its own strides."""
    if not _known_operands(module):
        return
    for target in _BY_STORAGE:
        for node in module.graph.find_nodes(op="call_function", target=target):
            if "origin" not in node.meta:
                continue
            operand, value = node.args[0], value_of(node.meta["origin"].args[0])
            found = _values(module)[operand]
            if not alike(found, value):
                last = restrided(operand, found, value.stride(), before=node)
                if last is not None:
                    node.replace_input_with(operand, last)
                    module.recompile()


def _known_operands(module: fx.GraphModule) -> bool:
    """Are there tensors among the operands of a step, and are all of their sizes numbers?"""
    tensors = [v for v in _operands(module) if isinstance(v, FakeTensor)]
    return bool(tensors) and all(map(known, tensors))


def _operands(module: fx.GraphModule) -> list[Any]:
    return [value_of(n) for n in module.graph.find_nodes(op="placeholder")]


def _values(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """The fake value of every node of a step."""
    inputs = _operands(module)
    mode = next(v.fake_mode for v in inputs if isinstance(v, FakeTensor))
    run = fx.Interpreter(module, garbage_collect_values=False)
    with torch.no_grad(), mode:
        # Stores go into copies: the operands' fake values are others' too.
        run.run(*map(_apart, inputs))
    return run.env


def _restride(node: fx.Node, value: torch.Tensor, stride: Sequence[int]) -> None:
    """Let all that uses the node, its views too, use the same in these strides."""
    users = list(node.users)
    last = restrided(node, value, stride)
    if last is not None:
        for user in users:
            user.replace_input_with(node, last)
        node.graph.owning_module.recompile()


def _apart(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def operand_value(operand: Operand, like: fx.Node) -> Any:
    """A fake value for an operand, in storage of its own, with its strides and offset."""
    value = value_of(like)
    if not is_tensor(like):
        return value
    if operand.view is None and operand.kind == "input":
        return value
    view = operand.view or View(tuple(value.shape), tuple(value.stride()), 0)
    if view.offset == 0:
        with value.fake_mode:
            return torch.empty_strided(
                view.shape, view.stride, dtype=value.dtype, device=value.device
            )
    extent = (
        view.offset
        + 1
        + sum((size - 1) * step for size, step in zip(view.shape, view.stride, strict=True))
    )
    with value.fake_mode:
        storage = torch.empty(max(extent, 0), dtype=value.dtype, device=value.device)
        return storage.as_strided(view.shape, view.stride, view.offset)


def needs(node: fx.Node) -> bool:
    """A node that is written out where it is used: movement operators and size arithmetic."""
    return is_movement_target(node) or not is_tensor(node)
