"""An ONNX graph as an `fx.GraphModule` that calls one rule a node.

Weights become parameters and buffers, nodes keep their names, and what is known without running the
model (constants of shape arithmetic) is written into the calls as `Host` values. Local functions
are written out where they are called; subgraphs become modules of their own, which get what they
take from the graphs around them as further arguments.
"""

from __future__ import annotations

import operator
import os
from typing import Any

import onnx
import torch
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
from torch import Tensor, fx

from vtc.errors import UnsupportedOnnxError
from vtc.graph.onnx import host, reader
from vtc.graph.onnx.dtypes import DTYPES, ORDINARY_FLOATS, PACKED, name_of
from vtc.graph.onnx.host import Host
from vtc.graph.onnx.narrow import Narrow, Refusal, result_kind
from vtc.graph.onnx.ops import find
from vtc.graph.onnx.registry import ALL, HOST_LIMIT, Rule, first
from vtc.graph.onnx.scope import Builder, Scope, identifier
from vtc.graph.onnx.signature import Signature, signature_of
from vtc.graph.onnx.tensors import Refused, read_tensor

MAX_NODES = 100_000
MAX_CALLS = 24
ANCHOR = ""  # among the names that a subgraph captures
DTYPE_ATTRIBUTES = (
    *("to", "dtype", "output_dtype"),
    *("output_datatype", "precision", "softmax_precision"),
)
# Their results are Python numbers whatever their inputs are, or may be.
MAKES_HOST = (
    *("Shape", "Size", "Range", "ConstantOfShape", "SequenceLength", "OptionalHasElement"),
    *("If", "Loop", "Scan", "SequenceMap", "SequenceConstruct", "SequenceInsert"),
    *("SequenceErase", "SequenceAt", "Optional", "OptionalGetElement"),
)


def load(
    source: str | os.PathLike[str] | ModelProto, *, floating: torch.dtype | None = None
) -> fx.GraphModule:
    """An ONNX model as a module in eval mode: call it with the graph's inputs, in order or by name.

    One output is returned as it is, several as a tuple. `floating` makes every ordinary
    floating-point tensor of the model one of this dtype instead. Raises OnnxFileError for a file
    that is damaged or not to be trusted, UnsupportedOnnxError for what is not imported.
    """
    model = reader.read(source)
    return _Importer(model, floating).run()


class _Importer:
    """One import: the model, and how much of it has been written so far."""

    def __init__(self, model: reader.Model, floating: torch.dtype | None) -> None:
        self.model, self.floating = model, floating
        self.nodes = 0
        self.functions = {
            (reader.domain_of(f.domain), f.name, f.overload): f for f in model.proto.functions
        }
        self.narrow = Narrow()

    def run(self) -> fx.GraphModule:
        proto = self.model.proto
        opsets = {reader.domain_of(o.domain): o.version for o in proto.opset_import}
        signature = signature_of(self.model, self.floating)
        scope = Scope({}, Builder(), None, opsets)
        self._constants(proto.graph, scope)
        inputs = []
        for entry, value in zip(signature.inputs, graph_inputs(proto.graph), strict=True):
            node = scope.builder.input(entry.name)
            inputs.append(entry.renamed(str(node.target)))
            scope.values[value.name] = node
            self.narrow.note(node, value.type.tensor_type.elem_type)
            if scope.builder.anchor is None and entry.dtype is not None:
                scope.builder.anchor = node
        self._nodes(proto.graph.node, scope)
        results = tuple(self._tensor(scope, value.name) for value in proto.graph.output)
        scope.builder.graph.output(results[0] if len(results) == 1 else results)
        module = scope.builder.module(identifier(self.model.name))
        module.meta["onnx"] = Signature(self.model.path, tuple(inputs), signature.outputs)
        module.__name__ = self.model.name
        return module.eval()

    # Values.

    def _constants(self, graph: GraphProto, scope: Scope) -> None:
        for proto in graph.initializer:
            scope.values[proto.name] = self._read(proto)
            self.narrow.note(scope.values[proto.name], proto.data_type)

    def _read(self, proto: TensorProto) -> Tensor:
        try:
            value = read_tensor(proto, self.model.folder)
        except Refused as error:
            raise self.model.wrong(str(error)) from error
        if self.floating is not None and value.dtype in ORDINARY_FLOATS:
            return value.to(self.floating)
        return value

    def _value(self, scope: Scope, name: str) -> Any:
        """A value as the scope's builder can use it: what is of a graph around it is captured."""
        value, owner = scope.find(name)
        if owner is scope.builder or isinstance(value, Host) or value is None:
            return value
        if isinstance(value, Tensor) and value.numel() <= host.LARGEST:
            return value
        if name not in scope.builder.captured:
            scope.builder.captured[name] = scope.builder.input(name)
            scope.builder.maybe_host.add(scope.builder.captured[name])
            self.narrow.note(scope.builder.captured[name], self.narrow.kind(value))
        return scope.builder.captured[name]

    def _argument(self, scope: Scope, name: str, rule: Rule, position: int) -> Any:
        """The value as input `position` of a rule."""
        if not name:
            return None
        value = self._value(scope, name)
        numbers = position in rule.host
        if isinstance(value, Tensor):
            small = value.numel() <= (1 if value.is_floating_point() else host.LARGEST)
            plain = not value.is_complex() and value.dtype.itemsize > 1
            if (plain or value.dtype == torch.bool) and (
                (numbers and value.numel() <= HOST_LIMIT) or (ALL in rule.host and small)
            ):
                return host.of_tensor(value)
        if numbers or ALL in rule.host:
            return self._node(scope, value, name) if isinstance(value, Tensor) else value
        return self._tensor(scope, name)

    def _node(self, scope: Scope, value: Tensor, name: str) -> fx.Node:
        return scope.builder.attribute(value, name)

    def _tensor(self, scope: Scope, name: str) -> Any:
        """The value, as a tensor where it may be Python numbers."""
        value = self._value(scope, name)
        if isinstance(value, Tensor):
            return self._node(scope, value, name)
        builder = scope.builder
        if isinstance(value, Host) or (isinstance(value, fx.Node) and value in builder.maybe_host):
            return builder.call(host.tensor, (value, builder.anchor), name)
        return value

    # Nodes.

    def _nodes(self, nodes: Any, scope: Scope) -> None:
        for node in nodes:
            self.nodes += 1
            if self.nodes > MAX_NODES:
                raise self.model.wrong(f"it has more than {MAX_NODES} nodes, functions written out")
            function = self.functions.get(
                (reader.domain_of(node.domain), node.op_type, node.overload)
            )
            if function is not None:
                self._function(function, node, scope)
            else:
                self._operator(node, scope)

    def _operator(self, node: NodeProto, scope: Scope) -> None:
        rule = self._rule(node, scope)
        attributes = self._attributes(node, rule, scope)
        kind = self._result_kind(node, rule, scope)
        if not rule.variadic and len(node.input) > len(rule.inputs):
            raise self._unsupported(node, scope, f"it has {len(node.input)} inputs")
        args = tuple(self._argument(scope, name, rule, k) for k, name in enumerate(node.input))
        if len(args) < rule.least or (
            any(a is None for a in args[: rule.least])
            and (rule.domain == "" and not rule.name.startswith("Optional"))
        ):
            raise self.model.wrong(f"node {reader.title(node)!r} ({node.op_type!r}) lacks an input")
        if "outputs" in rule.special:
            attributes["outputs"] = len(node.output)
        if "anchor" in rule.special:
            attributes["anchor"] = scope.builder.anchor
        if "bits" in rule.special:
            attributes["bits"] = PACKED[kind][1] if kind is not None else 0
        known = self._folded(rule, args, attributes) if kind is None else None
        if known is not None and len(node.output) == 1:
            scope.values[node.output[0]] = known
            return
        self._write(node, rule, args, attributes, scope)
        for name in node.output if kind is not None else ():
            self.narrow.note(scope.values[name], kind)

    def _write(
        self,
        node: NodeProto,
        rule: Rule,
        args: tuple[Any, ...],
        attributes: dict[str, Any],
        scope: Scope,
    ) -> None:
        builder = scope.builder
        several = len(node.output) > 1
        name = scope.prefix + reader.title(node)
        made = builder.call(rule.run, args, name, **attributes)
        nodes = [made]
        if several:
            nodes = [
                builder.call(operator.getitem, (made, k), output) if output else None
                for k, output in enumerate(node.output)
            ]
        elif rule.several:
            nodes = [builder.call(first, (made,), node.output[0])]
        # Numbers at the positions that a rule names say how to do it, and not with what.
        operands = [a for k, a in enumerate(args) if a is not None and k not in rule.host]
        numbers = ALL in rule.host and all(
            isinstance(a, Host) or (isinstance(a, fx.Node) and a in builder.maybe_host)
            for a in operands
        )
        for output, result in zip(node.output, nodes, strict=True):
            if not output:
                continue
            scope.values[output] = result
            if node.op_type in MAKES_HOST or numbers:
                builder.maybe_host.add(result)

    def _folded(self, rule: Rule, args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        """The result of an operator on known numbers, where it is a few numbers too.

        Nothing is allocated: tensors that a rule makes on the way have no storage.
        """
        if rule.name == "Constant":
            value = attributes.get("value")
            return value if value is not None else rule.run(**attributes)
        if not args or not all(a is None or isinstance(a, Host) for a in args):
            return None
        if any(
            isinstance(v, tuple) and v and isinstance(v[0], fx.Node) for v in attributes.values()
        ):
            return None
        if "anchor" in attributes:
            attributes = {**attributes, "anchor": None}
        try:
            with torch.device("meta"):
                result = rule.run(*args, **attributes)
        except Exception:  # what is wrong with it is said where it runs
            return None
        return result if host.is_static(result) else None

    def _rule(self, node: NodeProto, scope: Scope) -> Rule:
        domain = reader.domain_of(node.domain)
        if domain not in scope.opsets:
            raise self.model.wrong(f"node {reader.title(node)!r} is of domain {domain!r}, no opset")
        try:
            schema = onnx.defs.get_schema(node.op_type, scope.opsets[domain], domain)
        except onnx.defs.SchemaError:
            raise self._unsupported(
                node, scope, "there is no such operator in this opset"
            ) from None
        rule = find(domain, node.op_type, schema.since_version)
        if rule is None:
            raise self._unsupported(node, scope, "vtc has no rule for it")
        return rule

    def _unsupported(self, node: NodeProto, scope: Scope, reason: str) -> UnsupportedOnnxError:
        domain = reader.domain_of(node.domain)
        opset = scope.opsets.get(domain, 0)
        return UnsupportedOnnxError(node.op_type, reader.title(node), domain, opset, reason)

    def _result_kind(self, node: NodeProto, rule: Rule, scope: Scope) -> int | None:
        given = [self.narrow.kind(scope.find(name)[0]) if name else None for name in node.input]
        named = self._resolved(node, scope)
        wanted = [a.i for name, a in named if name in DTYPE_ATTRIBUTES and a.i in PACKED]
        try:
            return result_kind(rule, given, wanted)
        except Refusal as error:
            raise self._unsupported(node, scope, str(error)) from None

    # Attributes.

    def _attributes(self, node: NodeProto, rule: Rule, scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, attribute in self._resolved(node, scope):
            if name not in rule.attributes:
                raise self._unsupported(node, scope, f"its attribute {name!r} has no meaning here")
            found[name] = self._attribute(attribute, name, node, scope)
        missing = set(rule.required) - set(found)
        if rule.name == "Constant" and not found:
            missing = {"value"}
        if missing:
            here = f"node {reader.title(node)!r} ({node.op_type!r})"
            raise self.model.wrong(f"{here} lacks the attribute {min(missing)!r}")
        return found

    def _resolved(self, node: NodeProto, scope: Scope) -> list[tuple[str, AttributeProto]]:
        """A node's attributes by name, those of the function around it looked up. One that the
        function's caller leaves out is absent."""
        found = []
        for attribute in node.attribute:
            held = attribute
            if attribute.ref_attr_name:
                held = scope.bound.get(attribute.ref_attr_name)
            if held is not None:
                found.append((attribute.name, held))
        return found

    def _attribute(
        self, attribute: AttributeProto, name: str, node: NodeProto, scope: Scope
    ) -> Any:
        kind = attribute.type
        if kind == AttributeProto.INT:
            number = attribute.i
            return self._dtype(number, node, scope) if name in DTYPE_ATTRIBUTES else number
        if kind == AttributeProto.FLOAT:
            return attribute.f
        if kind == AttributeProto.STRING:
            return self._text(attribute.s, node)
        if kind == AttributeProto.INTS:
            return tuple(attribute.ints)
        if kind == AttributeProto.FLOATS:
            return tuple(attribute.floats)
        if kind == AttributeProto.STRINGS:
            return tuple(self._text(s, node) for s in attribute.strings)
        if kind == AttributeProto.TENSOR:
            return self._literal(attribute.t, node, scope)
        if kind == AttributeProto.GRAPH:
            return self._subgraph(attribute.g, scope)
        if kind == AttributeProto.TYPE_PROTO:
            return None
        raise self._unsupported(node, scope, f"its attribute {name!r} is of an unknown type")

    def _text(self, data: bytes, node: NodeProto) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            where = f"node {reader.title(node)!r} ({node.op_type!r})"
            raise self.model.wrong(f"{where} has an attribute that is no text") from error

    def _dtype(self, number: int, node: NodeProto, scope: Scope) -> torch.dtype | None:
        if number == 0:
            return None
        if number in PACKED:
            return PACKED[number][0]
        if number not in DTYPES:
            reason = f"torch has no element type {name_of(number)}"
            raise self._unsupported(node, scope, reason)
        dtype = DTYPES[number]
        return self.floating if self.floating and dtype in ORDINARY_FLOATS else dtype

    def _literal(self, proto: TensorProto, node: NodeProto, scope: Scope) -> Any:
        """A tensor attribute: of Constant the tensor itself, of others its numbers."""
        if proto.data_type not in DTYPES and (
            proto.data_type not in PACKED or node.op_type != "Constant"
        ):
            kind = name_of(proto.data_type)
            raise self._unsupported(node, scope, f"it holds elements of type {kind}")
        value = self._read(proto)
        self.narrow.note(value, proto.data_type)
        return value if node.op_type == "Constant" else host.of_tensor(value)

    def _subgraph(self, graph: GraphProto, outer: Scope) -> tuple[fx.Node, tuple[Any, ...]]:
        """A module for the graph, and the values of `outer` that it takes after its inputs."""
        builder = Builder()
        scope = Scope({}, builder, outer, outer.opsets, outer.bound, outer.calls)
        self._constants(graph, scope)
        for value in graph_inputs(graph):
            node = builder.input(value.name)
            scope.values[value.name] = node
            builder.maybe_host.add(node)
        if outer.builder.anchor is not None:
            builder.anchor = builder.captured[ANCHOR] = builder.input("anchor")
        self._nodes(graph.node, scope)
        results = []
        for value in graph.output:
            held = self._value(scope, value.name)
            if isinstance(held, Tensor):
                held = self._node(scope, held, value.name)
            elif isinstance(held, Host):  # fx writes a named tuple into a call, not into results
                held = builder.call(host.constant, (held,), value.name)
            results.append(held)
        builder.graph.output(tuple(results))
        module = builder.module(identifier(graph.name))
        captured = tuple(
            outer.builder.anchor
            if name == ANCHOR
            else self._held(outer, self._value(outer, name), name)
            for name in builder.captured
        )
        return outer.builder.attribute(module, graph.name or "body"), captured

    def _held(self, scope: Scope, value: Any, name: str) -> Any:
        return self._node(scope, value, name) if isinstance(value, Tensor) else value

    # Functions.

    def _function(self, function: FunctionProto, node: NodeProto, scope: Scope) -> None:
        """Write the body of a local function in the place of its call."""
        key = (reader.domain_of(function.domain), function.name, function.overload)
        if key in scope.calls or len(scope.calls) >= MAX_CALLS:
            raise self.model.wrong(f"function {function.name!r} calls itself, or too many others")
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise self.model.wrong(f"node {reader.title(node)!r} has more values than its function")
        bound = {a.name: a for a in function.attribute_proto}
        bound.update(self._resolved(node, scope))
        values: dict[str, Any] = dict.fromkeys(function.input)
        for formal, actual in zip(function.input, node.input, strict=False):
            values[formal] = self._value(scope, actual) if actual else None
        opsets = {reader.domain_of(o.domain): o.version for o in function.opset_import}
        body = Scope(
            values,
            scope.builder,
            None,
            opsets or scope.opsets,
            bound,
            (*scope.calls, key),
            f"{scope.prefix}{reader.title(node)}/",
        )
        self._nodes(function.node, body)
        for formal, actual in zip(function.output, node.output, strict=False):
            if actual:
                scope.values[actual] = self._value(body, formal)


def graph_inputs(graph: GraphProto) -> list[Any]:
    """The inputs that a caller gives. Old models list initializers as well."""
    constants = {proto.name for proto in graph.initializer}
    return [value for value in graph.input if value.name not in constants]
