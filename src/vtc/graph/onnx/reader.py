"""Reading a model file, and the checks of its structure before anything of it is used.

The checks hold what the importer relies on: nodes are in an order in which every value is made
before it is read (so there is no cycle), names are made once, and nesting is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from vtc.errors import OnnxFileError

MAX_BYTES = 2**31 - 1  # protobuf's own limit
MAX_DEPTH = 24
Known = tuple[set[str], ...]
"""The names of a graph, after those of the graphs around it."""

NEWEST = onnx.defs.onnx_opset_version()


@dataclass(frozen=True)
class Model:
    """A checked model: its proto, the folder of its external data, and what messages call it."""

    proto: ModelProto
    folder: Path
    path: str

    def wrong(self, reason: str) -> OnnxFileError:
        return OnnxFileError(self.path, reason)

    @property
    def name(self) -> str:
        return Path(self.path).name


def read(source: str | os.PathLike[str] | ModelProto) -> Model:
    """A model from a file, or one that is in memory (external data then in the current folder).

    Raises OnnxFileError.
    """
    if isinstance(source, ModelProto):
        model = Model(source, Path.cwd(), source.graph.name or "the model")
    else:
        path = Path(source)
        model = Model(_parsed(path), path.parent, os.fspath(source))
    check(model)
    return model


def _parsed(path: Path) -> ModelProto:
    try:
        if not path.is_file():
            raise OnnxFileError(path, "there is no such file")
        if path.stat().st_size > MAX_BYTES:
            raise OnnxFileError(path, "it is larger than 2 GiB; keep the weights as external data")
        data = path.read_bytes()
    except OSError as error:
        raise OnnxFileError(path, error.strerror or str(error)) from error
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise OnnxFileError(path, f"it is no ONNX model, or cut off ({error})") from error
    return proto


def check(model: Model) -> None:
    """Raises OnnxFileError for a model whose structure is not sound."""
    proto = model.proto
    if not proto.HasField("graph") or not proto.opset_import:
        raise model.wrong("it has no graph or no opset")
    _check_text(model, *(entry.domain for entry in proto.opset_import))
    domains = [domain_of(entry.domain) for entry in proto.opset_import]
    repeated(model, domains, "opset of domain")
    for entry in proto.opset_import:
        if domain_of(entry.domain) == "" and not 1 <= entry.version <= NEWEST:
            raise model.wrong(
                f"it has opset {entry.version}, and onnx {onnx.__version__} knows 1 to {NEWEST}"
            )
    names = [(domain_of(f.domain), f.name, f.overload) for f in proto.functions]
    repeated(model, names, "function")
    for function in proto.functions:
        _check_function(model, function)
    _check_graph(model, proto.graph, ())


def _check_function(model: Model, function: FunctionProto) -> None:
    label = f"function {function.name!r}"
    _check_text(model, function.name, function.domain, *function.input, *function.output)
    _check_text(model, *(o.domain for o in function.opset_import))
    _check_text(model, *(a.name for a in function.attribute_proto))
    repeated(model, function.input, f"input of {label}")
    known = (set(function.input),)
    _check_nodes(model, function.node, known, label)
    _check_known(model, function.output, known, label)


def _check_graph(model: Model, graph: GraphProto, outer: Known) -> None:
    label = f"graph {graph.name!r}"
    if len(outer) > MAX_DEPTH:
        raise model.wrong(f"its graphs are nested more than {MAX_DEPTH} deep")
    inputs = [value.name for value in graph.input]
    initializers = [tensor.name for tensor in graph.initializer]
    _check_text(model, graph.name, *inputs, *initializers, *(v.name for v in graph.output))
    if graph.sparse_initializer:
        raise model.wrong(f"{label} has sparse initializers, which are not supported")
    repeated(model, inputs, f"input of {label}")
    repeated(model, initializers, f"initializer of {label}")
    if "" in inputs or "" in initializers:
        raise model.wrong(f"{label} has an input or initializer without a name")
    known = (*outer, {*inputs, *initializers})
    _check_nodes(model, graph.node, known, label)
    outputs = [value.name for value in graph.output]
    if not outputs and not outer:
        raise model.wrong(f"{label} has no outputs")
    _check_known(model, outputs, known, label)


def _check_nodes(model: Model, nodes: Iterable[NodeProto], known: Known, label: str) -> None:
    """Adds the names that the nodes make to the last of `known` on the way."""
    for node in nodes:
        names = (a.name for a in node.attribute)
        references = (a.ref_attr_name for a in node.attribute)
        _check_text(model, node.op_type, node.domain, node.name, node.overload)
        _check_text(model, *node.input, *node.output, *names, *references)
        here = f"node {title(node)!r} ({node.op_type!r})"
        for name in node.input:
            if name and not is_known(name, known):
                raise model.wrong(
                    f"{here} reads {name!r}, which nothing before it makes: it is missing, or the "
                    f"nodes of {label} form a cycle or are out of order"
                )
        repeated(model, [a.name for a in node.attribute], f"attribute of {here}")
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                _check_graph(model, graph, known)
        for name in filter(None, node.output):
            if name in known[-1]:
                raise model.wrong(f"{here} makes {name!r}, which {label} has already")
            known[-1].add(name)


def _check_text(model: Model, *names: object) -> None:
    """Protobuf hands over bytes where a string is not UTF-8."""
    for name in names:
        if not isinstance(name, str):
            raise model.wrong(f"the name {name!r} is no text")


def is_known(name: str, known: Known) -> bool:
    return any(name in names for names in known)


def _check_known(model: Model, names: Iterable[str], known: Known, label: str) -> None:
    for name in names:
        if not is_known(name, known):
            raise model.wrong(f"nothing makes {name!r}, an output of {label}")


def repeated(model: Model, names: Iterable[object], what: str) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise model.wrong(f"there are two of the {what} {name!r}")
        seen.add(name)


def subgraphs(attribute: AttributeProto) -> list[GraphProto]:
    own = [attribute.g] if attribute.type == AttributeProto.GRAPH else []
    return [*own, *attribute.graphs]


def domain_of(domain: str) -> str:
    """The default domain has two names."""
    return "" if domain == "ai.onnx" else domain


def title(node: NodeProto) -> str:
    """The node's name, or what it makes where it has none."""
    return str(node.name or next((name for name in node.output if name), ""))
