"""The inputs and outputs that an ONNX file declares, and example inputs for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from vtc.errors import InvalidOptionError, OnnxFileError, UnsupportedOnnxError
from vtc.graph.onnx.dtypes import DTYPES, ORDINARY_FLOATS, PACKED, name_of
from vtc.graph.onnx.reader import Model, domain_of, title

MAX_EXAMPLE_BYTES = 2**33
# What a dimension without a size gets in an example, apart from the batch.
USUAL = 8


@dataclass(frozen=True)
class Input:
    """An input: the name of the module's argument, its dtype and shape.

    A dimension is a size, the name of a dynamic one, or None where the file says nothing. `shape`
    None: the rank is not given, or the input is no tensor (dtype None).
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[int | str | None, ...] | None

    def renamed(self, name: str) -> Input:
        return dataclasses.replace(self, name=name)


@dataclass(frozen=True)
class Signature:
    """What a file declares. `path` is the file."""

    path: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether any dimension has no size."""
        return any(not isinstance(d, int) for i in self.inputs for d in i.shape or ())

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The named dimensions, each once."""
        dims = [d for i in self.inputs for d in i.shape or () if isinstance(d, str)]
        return tuple(dict.fromkeys(dims))


def signature_of(model: Model, floating: torch.dtype | None = None) -> Signature:
    """Raises OnnxFileError for sizes below 0, and UnsupportedOnnxError for an input that is read
    and has an element type that torch does not have."""
    graph = model.proto.graph
    constants = {proto.name for proto in graph.initializer}
    inputs = []
    for value in graph.input:
        if value.name in constants:
            continue
        if value.type.WhichOneof("value") != "tensor_type":
            inputs.append(Input(value.name, None, None))
            continue
        kind = value.type.tensor_type
        if kind.elem_type not in DTYPES and kind.elem_type not in PACKED:
            _refuse_type(model, value.name, kind.elem_type)
            inputs.append(Input(value.name, None, None))
            continue
        dtype = DTYPES.get(kind.elem_type) or PACKED[kind.elem_type][0]
        if floating is not None and dtype in ORDINARY_FLOATS:
            dtype = floating
        shape = None
        if kind.HasField("shape"):
            shape = tuple(_dimension(model, value.name, d) for d in kind.shape.dim)
        inputs.append(Input(value.name, dtype, shape))
    return Signature(model.path, tuple(inputs), tuple(value.name for value in graph.output))


def _refuse_type(model: Model, name: str, element_type: int) -> None:
    """Raises the error of the node that reads an input whose element type is not one of torch's."""
    reason = f"input {name!r} has element type {name_of(element_type)}, which torch does not have"
    for node in model.proto.graph.node:
        if name in node.input:
            domain = domain_of(node.domain)
            opsets = {domain_of(o.domain): o.version for o in model.proto.opset_import}
            opset = opsets.get(domain, 0)
            raise UnsupportedOnnxError(node.op_type, title(node), domain, opset, reason)


def _dimension(model: Model, name: str, dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        if dim.dim_value < 0:
            raise model.wrong(f"input {name!r} has the negative size {dim.dim_value}")
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def of_module(module: Any) -> Signature | None:
    """The signature of a module that was imported from ONNX; None for others."""
    found = getattr(module, "meta", {}).get("onnx") if isinstance(module, fx.GraphModule) else None
    return found if isinstance(found, Signature) else None


def example_inputs(
    module: fx.GraphModule,
    *,
    batch: int = 1,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, ...]:
    """Random inputs: normal floats, and integers that are 0 or 1, which index almost anything.

    A dynamic dimension has the size that `sizes` gives by name. Otherwise a first dimension, and
    one whose name has "batch" in it, is `batch`, and others are 8. Raises OnnxFileError for an
    input that no example can be made for.
    """
    signature = of_module(module)
    if signature is None:
        raise InvalidOptionError("module", type(module).__name__, "a module that vtc imported")
    generator = torch.Generator().manual_seed(seed)
    given = dict(sizes or {})
    for name in given:
        if name not in signature.dynamic:
            raise InvalidOptionError("sizes", name, f"names of {', '.join(signature.dynamic)}")
    return tuple(
        _example(signature, i, batch, given, generator).to(device) for i in signature.inputs
    )


def _example(
    signature: Signature,
    entry: Input,
    batch: int,
    sizes: Mapping[str, int],
    generator: torch.Generator,
) -> Tensor:
    if entry.dtype is None or entry.shape is None:
        reason = f"input {entry.name!r} has no tensor shape, so it needs example inputs of yours"
        raise OnnxFileError(signature.path, reason)
    shape = []
    for k, d in enumerate(entry.shape):
        if isinstance(d, int):
            shape.append(d)
            continue
        usual = batch if k == 0 or "batch" in str(d).lower() else USUAL
        shape.append(sizes.get(d, usual) if d is not None else usual)
    if math.prod(shape) * entry.dtype.itemsize > MAX_EXAMPLE_BYTES:
        reason = f"input {entry.name!r} of shape {shape} is too large for an example"
        raise OnnxFileError(signature.path, reason)
    if entry.dtype.is_floating_point or entry.dtype.is_complex:
        wide = torch.complex64 if entry.dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(entry.dtype)
    drawn = torch.randint(0, 2, shape, generator=generator)
    return drawn.to(entry.dtype)
