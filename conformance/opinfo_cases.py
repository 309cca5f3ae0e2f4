"""Samples of PyTorch's operator database, and what an engine makes of one.

A sample becomes a graph of one call, as Dynamo would hand it to a backend: its tensors are the
inputs, everything else is a constant. Below Dynamo that graph goes straight to the engine; on the
full path a module that makes the same call goes through `vtc.compile`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.testing._utils import wrapper_set_seed
from torch.utils import _pytree as pytree

import vtc
from dynamo import leave_guards_untimed
from opinfo_judge import Outcome, Wrong, in_float64, judge
from vtc.errors import FallbackWarning
from vtc.lowering.settings import Settings
from vtc.runtime import dvm, dvm_compile
from vtc.runtime.tracing import quick_tracing
from vtc.virtual.record import GraphReport

Engine = Literal["dvm", "dvm-static", "dvm-full", "inductor", "stock"]
Variant = Literal["function", "inplace", "view", "base"]
Status = Literal["compiled", "split", "partly", "eager", "refused", "wrong", "crash", "skipped"]
RIGHT: tuple[Status, ...] = ("compiled", "split", "partly", "eager")

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}
SECONDS = {"dvm": 60, "dvm-static": 60, "dvm-full": 120, "inductor": 300, "stock": 300}
QUICK = {"cost": "static", "verify": False}
# What these give is whatever was in memory.
UNINITIALISED = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
)


leave_guards_untimed()
# The database seeds the generator inside of random operators, where a captured graph cannot see it.
wrapper_set_seed.__code__ = (lambda op, *args, **kwargs: op(*args, **kwargs)).__code__


@dataclass(frozen=True)
class Verdict:
    """What became of a sample.

    status: "compiled" (nothing runs as eager PyTorch), "split" (eager operators whose result's size
    depends on data, at which a program is cut by design), "partly" (kernels around operators that
    run eagerly), "eager" (the whole graph does), "refused", "wrong", "crash", or "skipped" where
    eager PyTorch itself raises. fallbacks: the operators that ran eagerly; unwarned: those of them
    that no warning named.
    """

    operator: str
    dtype: str
    sample: int
    status: Status
    reason: str = ""
    fallbacks: tuple[str, ...] = ()
    unwarned: tuple[str, ...] = ()


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@functools.cache
def operators() -> dict[str, OpInfo]:
    return {name_of(op): op for op in op_db}


def samples(op: OpInfo, dtype: torch.dtype) -> Iterator[Any]:
    """The forward samples, the same at every call."""
    torch.manual_seed(0)
    yield from op.sample_inputs("cpu", dtype, requires_grad=False)


@dataclass
class Call:
    """One call: a function of tensors alone, those tensors, and how many results it gives.
    `precise` gives the results on float64 inputs, and after them those inputs as they are left."""

    run: Callable[..., tuple[Any, ...]]
    tensors: list[Tensor]
    precise: Callable[[], Any]
    results: int = 0


def function_of(op: OpInfo, variant: Variant) -> Callable[..., Any]:
    """What is called: the operator, its in-place variant, or the operator with an update through a
    view that it returns ("view") or of what that is a view of ("base")."""
    if variant == "inplace":
        return op.inplace_variant
    if variant == "function":
        return op.op

    def updating(first: Any, *args: Any, **kwargs: Any) -> Any:
        result = op.op(first, *args, **kwargs)
        leaves = [a for a in pytree.tree_leaves(result) if isinstance(a, Tensor)]
        sources = [a for a in pytree.tree_leaves((first, args, kwargs)) if isinstance(a, Tensor)]
        changed = leaves[-1] if variant == "view" else sources[0]
        changed.logical_not_() if changed.dtype is torch.bool else changed.add_(1)
        return result

    return updating


def call_of(op: OpInfo, sample: Any, variant: Variant) -> Call:
    """The sample as a call. A tensor that is passed twice is one input."""
    function = function_of(op, variant)
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = list({id(a): a for a in leaves if isinstance(a, Tensor)}.values())
    places = {id(a): k for k, a in enumerate(tensors)}
    where = [places.get(id(a)) if isinstance(a, Tensor) else None for a in leaves]

    def op_under_test(*given: Tensor, constants: Sequence[Any] = leaves) -> tuple[Any, ...]:
        values = [a if k is None else given[k] for a, k in zip(constants, where, strict=True)]
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        return tuple(pytree.tree_leaves(function(first, *args, **kwargs)))

    # By the name, as in a graph of Dynamo's, capture knows whose strides it has to correct.
    op_under_test.__name__ = f"call_{op.name.replace('.', '_')}"

    def precise() -> Any:
        given = in_float64(copy.deepcopy(tensors))
        return (*op_under_test(*given, constants=in_float64(leaves)), *given)

    return Call(op_under_test, tensors, precise)


class Module(torch.nn.Module):
    """The call as a module: Dynamo takes a module's attributes for constants."""

    def __init__(self, op: OpInfo, sample: Any, variant: Variant) -> None:
        super().__init__()
        self.function = function_of(op, variant)
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = list({id(a): a for a in self.leaves if isinstance(a, Tensor)}.values())
        places = {id(a): k for k, a in enumerate(tensors)}
        self.where = [places.get(id(a)) if isinstance(a, Tensor) else None for a in self.leaves]
        self.leaves = [None if isinstance(a, Tensor) else a for a in self.leaves]

    def forward(self, *given: Tensor) -> Any:
        values = [
            a if k is None else given[k] for a, k in zip(self.leaves, self.where, strict=True)
        ]
        first, args, kwargs = pytree.tree_unflatten(values, self.spec)
        return self.function(first, *args, **kwargs)


# The engines: from a call to something to call in its place.


@dataclass
class Compiled:
    run: Callable[..., Any]
    records: list[GraphReport] = field(default_factory=list)
    whole: bool = False


def by_graph(call: Call, symbolic: bool) -> Compiled:
    """Below Dynamo: the graph of the call, captured and lowered."""
    settings = Settings(engine="dvm", records=[])
    if symbolic:
        try:
            with dvm_compile._traced(oblivious=True), quick_tracing():
                inputs = symbolic_inputs(call.tensors)
                if inputs:
                    mode = inputs[0].fake_mode
                    ignoring = mode.shape_env.ignore_fresh_unbacked_symbols()
                    with mode, enable_python_dispatcher(), ignoring:
                        # As Dynamo does before it calls a backend; it hands over the inputs in
                        # the shapes that they have before the call.
                        call.run(*(i.detach() for i in inputs))
                return _by_graph(call, settings, inputs)
        except Exception:  # as vtc does it: traced again by PyTorch's usual rules
            assert settings.records is not None
            settings.records.clear()
    with dvm_compile._traced(oblivious=False), quick_tracing():
        inputs = symbolic_inputs(call.tensors) if symbolic else call.tensors
        return _by_graph(call, settings, inputs)


def _by_graph(call: Call, settings: Settings, inputs: Sequence[Any]) -> Compiled:
    graph = fx.Graph()
    nodes = tuple(graph.placeholder(f"a{k}") for k in range(len(inputs)))
    made = graph.call_function(call.run, nodes)
    graph.output(tuple(graph.call_function(getitem, (made, k)) for k in range(call.results)))
    module = fx.GraphModule(torch.nn.Module(), graph)
    run = dvm_compile.compile_graph(module, inputs, settings)
    assert settings.records is not None
    return Compiled(run, settings.records, not settings.records)


def symbolic_inputs(tensors: Sequence[Tensor]) -> list[Any]:
    """Fake tensors whose sizes are symbols, as Dynamo makes them with `dynamic=True`."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    found = []
    for k, tensor in enumerate(tensors):
        context = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DUCK] * tensor.dim(),
            dynamic_strides=[DimDynamic.INFER_STRIDE] * tensor.dim(),
        )
        source = torch._dynamo.source.LocalSource(f"a{k}")
        found.append(mode.from_tensor(tensor, source=source, symbolic_context=context))
    return found


def by_dynamo(module: Module, engine: Engine) -> Compiled:
    """The full path."""
    torch._dynamo.reset()
    if engine == "stock":
        return Compiled(torch.compile(module, dynamic=False))
    if engine == "dvm-full":
        return Compiled(vtc.compile(module, engine="dvm"))
    return Compiled(vtc.compile(module, objective="bytes", dynamic=False, options=QUICK))


# A verdict.


def verdict_of(
    op: OpInfo, dtype: str, number: int, sample: Any, engine: Engine, variant: Variant
) -> Verdict:
    """Never raises for what the operator or the engine does.

    Where TorchInductor's engine is not right, the reason says what stock torch.compile does."""
    found = _verdict_of(op, dtype, number, sample, engine, variant)
    if engine != "inductor" or found.status not in ("refused", "wrong"):
        return found
    stock = _verdict_of(op, dtype, number, sample, "stock", variant)
    told = "right" if stock.status in RIGHT else f"{stock.status}, {stock.reason}"
    return dataclasses.replace(found, reason=f"{found.reason}; stock torch.compile: {told}")


def _verdict_of(
    op: OpInfo, dtype: str, number: int, sample: Any, engine: Engine, variant: Variant
) -> Verdict:
    made = functools.partial(Verdict, name_of(op), dtype, number)
    if ends_process(op, sample):
        return made("skipped", "PyTorch's fake kernel may end the process")
    call = call_of(op, sample, variant)
    try:
        want = observed(call.run, call.tensors)
        call.results = len(want.results)
    except Exception as error:
        return made("skipped", f"eager: {line_of(error)}")
    if not want.tensors:
        return made("skipped", "no tensor results")
    if variant in ("view", "base") and not any(h and h[0] == "input" for h in want.homes):
        return made("skipped", "no result is a view")
    before = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            with timed(SECONDS[engine]), torch.no_grad(), poisoned():
                if engine in ("dvm", "dvm-static"):
                    compiled = by_graph(call, engine == "dvm")
                else:
                    compiled = by_dynamo(Module(op, sample, variant), engine)
                if not torch.equal(before, torch.get_rng_state()):
                    return made("wrong", "compiling draws random numbers")
                eager = dvm.counters.eager
                got = observed(flat(compiled.run), call.tensors)
                eager = dvm.counters.eager - eager
        except Exception as error:
            return made("refused", line_of(getattr(error, "inner_exception", None) or error))
    warned = [w.message for w in given if issubclass(w.category, FallbackWarning)]
    try:
        judge(got, want, call.precise, values=op.name not in UNINITIALISED)
    except Wrong as error:
        return made("wrong", str(error), tuple(str(w.what) for w in warned))
    return made(*classified(compiled, warned, eager))


def classified(
    compiled: Compiled, warned: Sequence[FallbackWarning], eager: int
) -> tuple[Any, ...]:
    whole = [w for w in warned if w.instead == "eager PyTorch" and w.what == "the graph"]
    names = tuple(dict.fromkeys(str(w.what) for w in warned))
    reasons = "; ".join(dict.fromkeys(f"{w.what}: {w.reason}" for w in warned))
    run = [n.removesuffix(" runs as eager PyTorch") for r in compiled.records for n in r.notes]
    if compiled.whole or whole:
        return "eager", reasons, names, () if warned else ("the graph",)
    if warned:
        return "partly", reasons, names, ()
    if run or eager:
        return "split", "", tuple(dict.fromkeys(run))
    return ("compiled",)


def flat(run: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda *args: tuple(pytree.tree_leaves(run(*args)))


def ends_process(op: OpInfo, sample: Any) -> bool:
    """Whether PyTorch's own kernel on fake tensors reads what is no memory of its own: `batch_norm`
    asks for the size of the second dimension of a vector."""
    return op.name == "nn.functional.batch_norm" and sample.input.dim() < 2


def observed(run: Callable[..., tuple[Any, ...]], tensors: Sequence[Tensor]) -> Outcome:
    """Calls on copies that share storage as the tensors do, from a known state of the generator."""
    own = copy.deepcopy(list(tensors))
    torch.manual_seed(1)
    with torch.no_grad():
        results = run(*own)
    return Outcome.of(results, own)


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """New tensors of compiled programs hold values that a result can be told from."""
    plain = torch.empty_strided

    def empty_strided(*args: Any, **options: Any) -> Tensor:
        made = plain(*args, **options)
        if type(made) is Tensor and made.device.type == "cpu":
            made.untyped_storage().fill_(0xA5) if made.dtype != torch.bool else made.fill_(True)
        return made

    torch.empty_strided = empty_strided
    try:
        yield
    finally:
        torch.empty_strided = plain


class _TimeUp(Exception):  # noqa: N818 - says what happened
    pass


@contextlib.contextmanager
def timed(seconds: int) -> Iterator[None]:
    """Raises after so much time of this process, whatever others on the machine do."""

    def stop(*_: Any) -> None:
        raise _TimeUp(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def line_of(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line}"
