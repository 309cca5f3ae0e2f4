"""Exported models: compiled ahead of time for one signature, called without Dynamo.

Dynamo traces a call of the model once, and the trace is stopped before it runs anything. What it
leaves is a function that takes the graph's tensors out of the arguments and of the model, calls the
graph, and puts the result together; that function is kept and called by itself.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from vtc import errors
from vtc.runtime.signature import (
    ARGUMENT,
    CONSTANTS,
    ConstantFacts,
    Signature,
    TensorFacts,
    readable,
    source_name,
)
from vtc.runtime.unchanged import Same, watch, watch_dicts

Compile = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


class Exported:
    """A model compiled for one signature; called like the model.

    Raises SignatureError for arguments of another one. The values of weights may change: a frozen
    weight that was changed or replaced is compiled again before the next call. What else Python
    code reads of the model (flags, numbers, which submodules there are) is as it was at export.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        compile: Compile,
        *,
        freeze: bool,
    ) -> None:
        """Raises CaptureError for a model that is not one graph."""
        self.model, self.compile, self.freeze = model, compile, freeze
        self.signature = Signature(args, kwargs)
        self.name = name_of(model)
        self.trace = _trace(self, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.signature.check(args, kwargs)
        trace = self.trace
        if trace.constants:
            trace.constants.check(args, kwargs)
        trace = self.current(args, kwargs)
        with torch.no_grad():
            return trace.function(*args, **kwargs)

    def current(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Trace:
        """The trace, made again if a frozen weight is another tensor now."""
        if self.trace.weights.replaced(self.model, args, kwargs):
            self.trace = _trace(self, args, kwargs)
        return self.trace

    def live_weights(self) -> dict[int, torch.Tensor]:
        """The graph's inputs that are the model's own tensors, by their number."""
        scope = {"L": {"model": self.model}}
        graph = self.trace.graph
        return {i: eval(graph.sources[i], scope) for i, _, _ in graph.weights}


@dataclass(frozen=True)
class _Trace:
    """What Dynamo left of one trace.

    function: called like the model. graph: what it calls. guards: that every frozen weight is still
    the same tensor; None without such. constants: plain values inside of objects that are passed
    (the length of a cache), by the expressions that lead to them.
    """

    function: Callable[..., Any]
    graph: _Graph
    weights: _Identities
    constants: _Constants

    def rebuilt(self, outputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function returns where the graph gives `outputs`."""
        run, self.graph.run = self.graph.run, lambda *_: tuple(outputs)
        try:
            with torch.no_grad():
                return self.function(*args, **kwargs)
        finally:
            self.graph.run = run


class _Identities:
    """Whether frozen weights are the tensors that were traced, and places that held one tensor hold
    one.

    Dynamo's guards say so; where they all pass through modules alone, they are asked again only
    after something was assigned in one of these modules.
    """

    def __init__(self, model: Callable[..., Any], guards: Any, names: Sequence[str]) -> None:
        """names: the places of the tensors, as Dynamo writes them; guards: on what is there."""
        self.guards = guards if names else None
        self.dicts = _dicts_on_the_way(model, names)
        self.unchanged: Callable[[], bool] = lambda: False

    def replaced(
        self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        if self.guards is None or self.unchanged():
            return False
        dicts = self.dicts
        unchanged = None if dicts is None else watch_dicts(dicts)  # from here on a change is seen
        if not self.guards.check({"model": model, "args": args, "kwargs": kwargs}):
            return True
        if unchanged is not None:
            self.unchanged = unchanged
        return False


_STEP = re.compile(r"\._modules\['([^']*)'\]")
_WEIGHT = re.compile(r"model((?:\._modules\['[^']*'\])*)\.(_parameters|_buffers)\['([^']*)'\]")


def _dicts_on_the_way(
    model: Callable[..., Any], names: Sequence[str]
) -> list[dict[str, Any]] | None:
    """The dictionaries in which the weights of these places are looked up; None if one of the
    places is none of a module's.

    before: model._modules['0']._parameters['weight']
    after:  the model's `__dict__` and `_modules`, its part's `__dict__` and `_parameters`
    """
    found: dict[int, dict[str, Any]] = {}

    def note(*dicts: dict[str, Any]) -> bool:
        found.update({id(d): d for d in dicts})
        return all(isinstance(d, dict) for d in dicts)

    for name in names:
        place = _WEIGHT.fullmatch(name)
        if place is None:
            return None
        module: Any = model
        for part in _STEP.findall(place[1]):
            if not isinstance(module, nn.Module) or not note(vars(module), module._modules):
                return None
            module = module._modules[part]
        if not isinstance(module, nn.Module):
            return None
        if not note(vars(module), vars(module)[place[2]]):
            return None
    return list(found.values())


class _Constants:
    """Plain values inside of objects that are passed, by the expressions over `args` and `kwargs`
    that lead to them."""

    def __init__(self, expected: Mapping[str, Any]) -> None:
        self.facts = [(readable(name), ConstantFacts(value)) for name, value in expected.items()]
        self.values = list(expected.values())
        # One function that takes them all: each by itself would be compiled or evaluated at a call.
        self.take = eval(f"lambda args, kwargs: [{', '.join(expected)}]")

    def __bool__(self) -> bool:
        return bool(self.facts)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises SignatureError for the first value that differs."""
        found = self.take(args, kwargs)
        if all(map(operator.is_, found, self.values)):
            return
        for (name, facts), value in zip(self.facts, found, strict=True):
            facts.check(name, value)


# Guards of Dynamo's on which tensor there is: a frozen one, and one that is found in two places.
_IDENTITY = ("ID_MATCH", "DUPLICATE_INPUT")


def _trace(exported: Exported, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Trace:
    """Trace and compile one call of the model, without running it."""
    graphs: list[_Graph] = []
    kept: list[str] = []
    constants: dict[str, Any] = {}

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> _Graph:
        run = exported.compile(graph_module, list(inputs))
        graphs.append(_Graph(run, graph_module, inputs))
        return graphs[-1]

    def guards_to_keep(guards: Sequence[Any]) -> list[bool]:
        weights = [g.guard_type in _IDENTITY and isinstance(g.value, torch.Tensor) for g in guards]
        chosen = itertools.compress(guards, weights)
        # A guard on two places has the name of one.
        kept[:] = [g.name if g.guard_type == "ID_MATCH" else "two places" for g in chosen]
        for guard in guards:
            plain = guard.has_value and isinstance(guard.value, CONSTANTS)
            if plain and guard.name.startswith(("args", "kwargs")):
                constants[guard.name] = guard.value
        return weights

    call = _caller(exported.model)
    traced = torch.compile(
        call,
        backend=backend,
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": guards_to_keep},
    )
    name = name_of(exported.model)
    try:
        with torch.no_grad(), _tracing(exported.freeze):
            traced(*args, **kwargs)
    except _Traced:
        pass
    except torch._dynamo.exc.Unsupported as error:
        reason = str(error).strip().partition("\n")[0]
        raise errors.CaptureError(name, reason) from error
    entries = _debug_get_cache_entry_list(call.__code__)
    if len(graphs) != 1 or len(entries) != 1:
        raise errors.CaptureError(name, "Dynamo found no tensors in it")
    (graph,), (entry,) = graphs, entries
    graph.traced = True
    names = {
        key: graph if getattr(value, "_torchdynamo_orig_callable", value) is graph else value
        for key, value in call.__globals__.items()
    }
    function = types.FunctionType(entry.code, names, "call", None, call.__closure__)
    weights = _Identities(exported.model, entry.guard_manager, kept)
    return _Trace(function, graph, weights, _Constants(constants))


@contextlib.contextmanager
def _tracing(freeze: bool) -> Iterator[None]:
    """Dynamo leaves weights as attributes of the graph where they are frozen, and puts no profiler
    calls into what it compiles."""
    dynamo = torch._dynamo.config
    quiet = {"record_runtime_overhead": False} if hasattr(dynamo, "record_runtime_overhead") else {}
    with torch._inductor.config.patch(freezing=freeze), dynamo.patch(quiet):
        yield


class _Traced(Exception):  # noqa: N818 - ends a trace, no error
    """The call was traced and compiled; it is not to run."""


class _Graph:
    """The compiled graph. Until the trace is over, a call of it ends the trace.

    The signature knows the tensors that are arguments, or items of lists, tuples and dictionaries.
    Those that come from elsewhere are checked here.
    """

    def __init__(
        self, run: Callable[..., Any], graph_module: fx.GraphModule, inputs: Sequence[Any]
    ) -> None:
        self.run, self.traced = run, False
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        self.sources = [
            source_name(getattr(n.meta.get("grapharg"), "source", None)) for n in placeholders
        ]
        self.weights: list[tuple[int, str, TensorFacts]] = []
        self.others: list[tuple[int, str, TensorFacts]] = []
        for i, (name, value) in enumerate(zip(self.sources, inputs, strict=True)):
            if isinstance(value, torch.Tensor) and not ARGUMENT.fullmatch(name):
                own = name.startswith("L['model']")
                facts = i, readable(name), TensorFacts.of(value)
                (self.weights if own else self.others).append(facts)
        self.known: tuple[list[torch.Tensor], Callable[[], bool]] = [], lambda: False
        self.same: Same[bool] = Same()

    def __call__(self, *inputs: Any) -> Any:
        if not self.traced:
            raise _Traced
        if self.others:
            self._check_others(inputs)
        if self.weights:
            self._check_weights(inputs)
        return self.run(*inputs)

    def _check_others(self, inputs: Sequence[Any]) -> None:
        """Those that are what they were in the last call are not looked at."""
        tensors = [inputs[i] for i, _, _ in self.others]
        # The watch does not see whether PyTorch negates or conjugates a tensor as it is read.
        if self.same(tensors) and not any(map(torch.Tensor.is_neg, tensors)):
            return
        for tensor, (_, name, facts) in zip(tensors, self.others, strict=True):
            facts.check(name, tensor)
        if not any(map(torch.is_complex, tensors)):
            self.same.note(tensors, True)

    def _check_weights(self, inputs: Sequence[Any]) -> None:
        """A weight that is the same tensor as in the last call, as it was, is not looked at."""
        tensors = [inputs[i] for i, _, _ in self.weights]
        known, unchanged = self.known
        if any(map(operator.is_not, tensors, known)) or not unchanged():
            unchanged = watch(tensors, [False] * len(tensors))
            for tensor, (_, name, facts) in zip(tensors, self.weights, strict=True):
                facts.check(name, tensor)
            self.known = tensors, unchanged


def _caller(model: Callable[..., Any]) -> types.FunctionType:
    """A function that calls the model, with a code object and globals of its own: Dynamo keeps what
    it compiles by code object, and no more than a few for each."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    names = {"__builtins__": builtins, "__name__": __name__}
    return types.FunctionType(call.__code__.replace(), names, "call", None, call.__closure__)


def name_of(model: Callable[..., Any]) -> str:
    """A function's name; the class of a module or another callable object."""
    return getattr(model, "__name__", type(model).__name__)
