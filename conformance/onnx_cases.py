"""The node tests of the package onnx: each a model of one operator, inputs and expected outputs.

A case is run eagerly as imported, by its index maps as captured, or compiled by vtc.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from torch import Tensor, fx

import vtc
from dynamo import leave_guards_untimed
from vtc.errors import FallbackWarning, UnsupportedOnnxError
from vtc.graph.capture import capture
from vtc.graph.onnx.importer import load
from vtc.graph.onnx.tensors import read_tensor
from vtc.graph.program import Program
from vtc.index import IndexMap

leave_guards_untimed()

Engine = Literal["eager", "maps", "vtc", "dvm"]
Status = Literal["passed", "failed", "unsupported"]

MOVEMENT = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice"),
    *("Expand", "Tile", "Pad", "Gather", "GatherElements", "GatherND", "ScatterElements"),
    *("ScatterND", "DepthToSpace", "SpaceToDepth"),
)
# Their results are drawn: only shape and dtype are compared.
RANDOM = ("Bernoulli", "Dropout", "RandomUniformLike")
# Inputs that say how to move rather than what. They are values of the model in practice, and only
# the tests pass them as inputs.
KNOWN_INPUTS = {
    "Reshape": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Split": (1,),
    "Slice": (1, 2, 3, 4),
    "Expand": (1,),
    "Tile": (1,),
    "Pad": (1, 2, 3),
}


@dataclass(frozen=True)
class Case:
    """One node test. `operator` is the operator under test, also of a case that writes it out."""

    name: str
    operator: str
    model: ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float

    @property
    def reduces(self) -> bool:
        """A scatter that adds or compares what it writes, which is no movement."""
        attributes = [a for node in self.model.graph.node for a in node.attribute]
        return any(a.name == "reduction" and a.s not in (b"", b"none") for a in attributes)

    @property
    def moves(self) -> bool:
        """Whether the case is of one of the 18 movement operators, on tensors."""
        sequences = any(
            value.type.WhichOneof("value") != "tensor_type" for value in self.model.graph.input
        )
        alone = len(self.model.graph.node) == 1
        return self.operator in MOVEMENT and alone and not self.reduces and not sequences


@dataclass(frozen=True)
class Verdict:
    """What became of a case; `reason` is empty for one that passed.

    movements: the operators of the movement table that the captured graph has ("maps" only).
    fallbacks: what ran as eager PyTorch ("dvm" only; with "vtc" such a case fails).
    """

    case: str
    operator: str
    status: Status
    reason: str = ""
    movements: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()


@functools.cache
def cases() -> tuple[Case, ...]:
    """All node tests, in the order of the package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    operators = {c.name: c.model.graph.node[-1].op_type for c in found}
    made = []
    for c in found:
        base = c.name.partition("_expanded")[0]
        (inputs, outputs), *_ = c.data_sets
        made.append(
            Case(
                c.name,
                operators.get(base, operators[c.name]),
                c.model,
                tuple(inputs),
                tuple(outputs),
                c.rtol,
                c.atol,
            )
        )
    return tuple(made)


def judge(case: Case, engine: Engine) -> Verdict:
    """Import the case and run it. Never raises for what the case or the engine does."""
    verdict = functools.partial(Verdict, case.name, case.operator)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return verdict("passed", **RUN[engine](case))
    except UnsupportedOnnxError as error:
        return verdict("unsupported", error.reason)
    except Mismatch as error:
        return verdict("failed", str(error))
    except Exception as failure:  # a case may fail in any way, and the others go on
        error = getattr(failure, "inner_exception", failure)
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return verdict("failed", f"{type(error).__name__}: {line}")


class Mismatch(Exception):  # noqa: N818 - a verdict, no error
    """The result differs, or came about in another way than it should."""


# The engines.


Ran = dict[str, tuple[str, ...]]
"""Fields of a verdict."""


def run_eager(case: Case) -> Ran:
    module = load(case.model)
    results = module(*[as_value(x) for x in case.inputs])
    compare(case, results)
    return {}


def run_maps(case: Case) -> Ran:
    """The captured graph must be movement from input to output, and its maps give the outputs."""
    module, args = with_known_inputs(case)
    torch._dynamo.reset()
    found: list[tuple[Program, list[Any]]] = []

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        program = capture(graph_module, inputs)

        def run(*values: Any) -> Any:
            by_maps = ByMaps(program)
            return by_maps.run(*values, *program.constants)

        found.append((program, list(inputs)))
        return run

    results = torch.compile(module, backend=backend, dynamic=False)(*args)
    compare(case, results, exact=True)
    if len(found) > 1:
        raise Mismatch(f"Dynamo made {len(found)} graphs of it")
    return {"movements": tuple(name for program, _ in found for name in path_of(program))}


def run_vtc(case: Case) -> Ran:
    module, args = with_known_inputs(case) if case.moves else (load(case.model), values_of(case))
    torch._dynamo.reset()
    options = {"cost": "static", "verify": False}
    compiled = vtc.compile(module, objective="bytes", dynamic=False, options=options)
    with no_fallback():
        results = compiled(*args)
    compare(case, results, exact=case.moves)
    return {}


def run_dvm(case: Case) -> Ran:
    module, args = with_known_inputs(case) if case.moves else (load(case.model), values_of(case))
    torch._dynamo.reset()
    compiled = vtc.compile(module, engine="dvm")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        results = compiled(*args)
    compare(case, results, exact=case.moves)
    messages = [w.message for w in given]
    names = [str(m.what) for m in messages if isinstance(m, FallbackWarning)]
    return {"fallbacks": tuple(dict.fromkeys(names))}


RUN = {"eager": run_eager, "maps": run_maps, "vtc": run_vtc, "dvm": run_dvm}


@contextlib.contextmanager
def no_fallback() -> Iterator[None]:
    """A graph that runs as stock PyTorch is no result of vtc."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield
    for warning in given:
        if issubclass(warning.category, FallbackWarning):
            raise Mismatch(str(warning.message))


def with_known_inputs(case: Case) -> tuple[fx.GraphModule, list[Any]]:
    """The case with shapes, axes and the like as values of the model, and its other inputs."""
    model = ModelProto()
    model.CopyFrom(case.model)
    (node,) = model.graph.node
    known = {node.input[k] for k in KNOWN_INPUTS.get(node.op_type, ()) if k < len(node.input)}
    args = []
    for value, data in zip(list(model.graph.input), case.inputs, strict=True):
        if value.name in known:
            model.graph.input.remove(value)
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(data), value.name))
        else:
            args.append(as_value(data))
    return load(model), args


def path_of(program: Program) -> list[str]:
    """The movement operators between inputs and outputs, raising `Mismatch` for any other operator.

    What computes an index (a lookup of a map) is not on the way.
    """
    names, seen = [], set()
    todo = [n for n in program.outputs if isinstance(n, fx.Node)]
    while todo:
        node = todo.pop()
        if node in seen or node.op == "placeholder":
            continue
        seen.add(node)
        if node not in program.movements:
            raise Mismatch(f"{node.target} is no movement operator")
        bound = program.movements[node]
        names.append(bound.movement.operator)
        todo += bound.sources
    return names[::-1]


class ByMaps(fx.Interpreter):
    """Runs a captured graph with every movement operator replaced by its index maps."""

    def __init__(self, program: Program) -> None:
        # Maps read from further back than the operators do.
        super().__init__(program.graph_module, garbage_collect_values=False)
        self.program = program

    def run_node(self, n: fx.Node) -> Any:
        bound = self.program.movements.get(n)
        if bound is None:
            return super().run_node(n)
        sources = [self.env[s] for s in bound.sources]
        lookups = [self.env[k] for k in bound.lookups]
        movement = bound.movement
        if movement.load is not None:
            return movement.load.materialize(sources, lookups)
        base, updates = sources[movement.inplace or 0], sources[1]
        store = movement.store[1]
        assert isinstance(store, IndexMap)
        places = torch.arange(base.numel()).reshape(base.shape)
        out = base.flatten().clone()
        out[store.materialize([places], lookups).flatten()] = updates.flatten()
        return out.reshape(base.shape)


# Values.


def values_of(case: Case) -> list[Any]:
    return [as_value(x) for x in case.inputs]


def as_value(data: Any) -> Any:
    """A tensor, list or None of the test data; types of less than a byte in bytes."""
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [as_value(x) for x in data]
    if not isinstance(data, TensorProto):
        array = np.asarray(data)
        if array.dtype.kind in "OUS":
            raise Mismatch("the data are strings")
        data = numpy_helper.from_array(array)
    return read_tensor(data, Path())


def compare(case: Case, results: Any, *, exact: bool = False) -> None:
    """Raises `Mismatch` where dtype, shape or a value differs."""
    got = (results,) if len(case.model.graph.output) == 1 else results
    if len(got) != len(case.outputs):
        raise Mismatch(f"{len(got)} outputs, {len(case.outputs)} expected")
    for one, two in zip(got, case.outputs, strict=True):
        _compare(case, one, as_value(two), exact)


def _compare(case: Case, got: Any, want: Any, exact: bool) -> None:
    if isinstance(want, list):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            raise Mismatch(f"a sequence of {len(want)} is expected")
        for one, two in zip(got, want, strict=True):
            _compare(case, one, two, exact)
        return
    if want is None or not isinstance(got, Tensor):
        if got is not want:
            raise Mismatch(f"{want} is expected, not {got}")
        return
    if got.dtype != want.dtype or got.shape != want.shape:
        raise Mismatch(
            f"{got.dtype} {list(got.shape)} where {want.dtype} {list(want.shape)} is expected"
        )
    if draws(case):
        return
    one, two = comparable(got), comparable(want)
    if case.operator in ("Cast", "CastLike"):
        known = has_defined_cast(as_value(case.inputs[0]), case)
        one, two = one[known], two[known]
    if exact and not torch.equal(one, two):
        raise Mismatch("not the same elements")
    if not torch.allclose(one, two, rtol=case.rtol, atol=case.atol, equal_nan=True):
        worst = torch.max(torch.abs(one - two)).item()
        raise Mismatch(f"differs by {worst:.3g} (rtol {case.rtol:g}, atol {case.atol:g})")


def has_defined_cast(source: Tensor, case: Case) -> Tensor:
    """Where ONNX says what a cast gives: not where a float lies outside an integer's range.

    There numpy's answer, which the tests expect, changes from one version of ml_dtypes to the next.
    """
    name = TensorProto.DataType.Name(case.model.graph.output[0].type.tensor_type.elem_type)
    integer = re.fullmatch(r"(U?)INT(\d+)", name)
    if integer is None or not source.is_floating_point():
        return torch.ones(source.shape, dtype=torch.bool)
    bits = int(integer[2]) - (not integer[1])  # without the sign
    low = 0 if integer[1] else -(2**bits)
    whole = source.double().trunc()
    return (low <= whole) & (whole < 2**bits)


def comparable(tensor: Tensor) -> Tensor:
    """In a dtype in which torch compares: floats of one byte and unsigned integers widened."""
    if tensor.is_complex():
        return tensor
    if tensor.dtype == torch.uint64:
        return tensor.view(torch.int64) if tensor.dim() else tensor.reshape(1).view(torch.int64)
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)


def draws(case: Case) -> bool:
    """Whether the results are random: a dropout is in training only."""
    kinds = {node.op_type for node in case.model.graph.node}
    return bool(kinds & set(RANDOM)) and ("Dropout" not in kinds or "training" in case.name)


VERSIONS = {"onnx": onnx.__version__, "torch": torch.__version__}
