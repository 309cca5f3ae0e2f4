"""Small ONNX models, built node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Shape = Sequence[int | str | None] | None


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Names are separated by blanks; "-" is an absent one."""
    names = [[("" if n == "-" else n) for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, **attributes)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> GraphProto:
    """A graph of float inputs, others by their `kinds`; constants are arrays or TensorProtos."""
    initializers = [
        value
        if isinstance(value, TensorProto)
        else numpy_helper.from_array(np.asarray(value), name)
        for name, value in (constants or {}).items()
    ]
    element = dict(kinds or {})
    return helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(n, element.get(n, FLOAT), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, element.get(n, FLOAT), None) for n in outputs],
        initializers,
    )


def model(made: GraphProto, opset: int = 21, functions: Sequence[Any] = ()) -> ModelProto:
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, 1) for d in sorted({f.domain for f in functions})]
    return helper.make_model(made, opset_imports=imports, functions=list(functions), ir_version=10)


def simple(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
    **more: Any,
) -> ModelProto:
    return model(graph(nodes, inputs, outputs, constants, **more), opset)
