"""The models of dvm.py: each over random pairs of batch and length, from cold and steady."""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from quiet import undisturbed
from torch import Tensor, nn
from torch._dynamo.utils import same
from torch._inductor import compile_fx

import vtc
from vtc.bench.peers import fresh_compiler
from vtc.bench.records import CaseRecord, Config, Row
from vtc.bench.timing import paired_ratio
from vtc.runtime.dvm import counters

sys.path.append(str(Path(__file__).parent.parent / "examples"))
from mmoe import MMoE

PAIRS = 50
ROUNDS = 3
SYSTEMS = ("vtc", "eager", "inductor")
Inputs = Sequence[Tensor]


@dataclass(frozen=True)
class Model:
    """How a model is built, and its inputs for a batch and a length."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int, torch.Generator], Inputs]
    batch: int
    length: int
    layers: int | None = None
    outputs: Callable[[Any], Any] = lambda result: result

    def pairs(self) -> list[tuple[int, int]]:
        """Random batches and lengths, 1 among them."""
        draw = random.Random(7)
        return [(draw.randint(1, self.batch), draw.randint(1, self.length)) for _ in range(PAIRS)]


VOCABULARY = 4096


def tokens(batch: int, length: int, generator: torch.Generator) -> Inputs:
    return [torch.randint(0, VOCABULARY, (batch, length), generator=generator)]


def features(batch: int, length: int, generator: torch.Generator) -> Inputs:
    return [torch.randn(batch, length, 512, generator=generator)]


def transformer(name: str, layers: int, **widths: int) -> Callable[[], nn.Module]:
    """A function that builds a model of transformers: one of language, but for BERT with a head."""

    def build() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=VOCABULARY, num_hidden_layers=layers, **widths
        )
        head = "" if name == "Bert" else "ForCausalLM"
        return getattr(transformers, f"{name}Model" if not head else f"{name}{head}")(config)

    return build


DECODER = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}

MODELS: Mapping[str, Model] = {
    "mmoe-2": Model(lambda: MMoE(tasks=2), features, 8, 64),
    "mmoe-4": Model(lambda: MMoE(tasks=4), features, 8, 64),
    "bert-base": Model(
        transformer("Bert", 12), tokens, 4, 64, 12, lambda result: result.last_hidden_state
    ),
    "qwen3": Model(
        transformer("Qwen3", 4, **DECODER), tokens, 4, 128, 4, lambda result: result.logits
    ),
    "llama": Model(
        transformer("Llama", 4, **DECODER), tokens, 4, 128, 4, lambda result: result.logits
    ),
}


class Headless(nn.Module):
    """A model that returns its one tensor of interest, without caches."""

    def __init__(self, model: nn.Module, outputs: Callable[[Any], Any], options: dict[str, Any]):
        super().__init__()
        self.model, self.outputs, self.options = model, outputs, options

    def forward(self, *args: Tensor) -> Any:
        return self.outputs(self.model(*args, **self.options))


def build(name: str) -> nn.Module:
    """A built-in model with random weights by a seed."""
    torch.manual_seed(0)
    model = MODELS[name]
    built = model.build().eval()
    options = {} if name.startswith("mmoe") else {"use_cache": False}
    return Headless(built, model.outputs, options if name != "bert-base" else {})


@dataclass
class Sweep:
    """What one system did over the pairs. Seconds; steady: a list of seconds a round."""

    total_s: float
    first_call_s: float
    steady: list[float] = field(default_factory=list)
    max_rel_error: float = 0.0
    correct: bool = True


@dataclass(frozen=True)
class Procedure:
    """How systems are compared: they start cold in the order of `systems`, and run so many `rounds`
    in turns. begin: what is done with the model and its inputs before anything is timed. sweep,
    steady: seconds of a call with each of some inputs, from cold and in a round.
    """

    systems: tuple[str, ...]
    rounds: int
    begin: Callable[[nn.Module, Sequence[Inputs]], None]
    sweep: Callable[[Callable[..., Any], Sequence[Inputs]], float]
    steady: Callable[[Callable[..., Any], Sequence[Inputs]], float]

    def cold(self, call: Callable[..., Any], given: Sequence[Inputs]) -> Sweep:
        gc.collect()  # what the systems before it left, and the imports
        first = self.sweep(call, given[:1])
        return Sweep(first + self.sweep(call, given[1:]), first)


def compared(
    module: nn.Module,
    given: Sequence[Inputs],
    fresh: Sequence[Inputs],
    how: Procedure,
    progress: Callable[[str], None],
) -> tuple[dict[str, Sweep], dict[str, Any]]:
    """The sweeps of all systems over the inputs `given`, judged by `fresh` ones, and what was
    counted of vtc."""
    sweeps: dict[str, Sweep] = {}
    calls: dict[str, Callable[..., Any]] = {}
    counted: dict[str, Any] = {}
    with torch.no_grad(), fresh_compiler(), torch._inductor.config.patch(force_disable_caches=True):
        how.begin(module, given)
        counters.reset()
        for system in how.systems:
            with machine_code() as compiled, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", vtc.errors.FallbackWarning)
                calls[system] = compiled_by(system, module)
                sweeps[system] = how.cold(calls[system], given)
            progress(f"{system} from cold: {sweeps[system].total_s:.2f} s")
            if system == "vtc":
                own = [w for w in caught if issubclass(w.category, vtc.errors.FallbackWarning)]
                counted = {"fallbacks": sorted({str(w.message) for w in own})} | asdict(counters)
                counted["compilations"] += len(compiled)
        for r in range(how.rounds):
            for system in random.Random(r).sample(how.systems, len(how.systems)):
                sweeps[system].steady.append(how.steady(calls[system], given))
        counted["replays"] = counters.replays
        progress(f"steady: { ({s: min(w.steady) for s, w in sweeps.items()}) }")
        judge(module, calls, sweeps, fresh)
    return sweeps, counted


def recorded(
    name: str,
    batch: int,
    config: Config,
    device: str,
    pairs: Sequence[tuple[int, int]],
    found: tuple[dict[str, Sweep], dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's case and its entry of the section `sequences`."""
    sweeps, counted = found
    rows = [row(system, sweeps, len(pairs)) for system in sweeps]
    case = CaseRecord(name, batch, device, config, rows).to_dict()
    return case, sequence(name, pairs, sweeps) | counted


def measure(name: str, progress: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's case and its entry of the section `sequences`."""
    model, pairs = MODELS[name], MODELS[name].pairs()

    def inputs(seed: int) -> list[Inputs]:
        generator = torch.Generator().manual_seed(seed)
        return [model.inputs(b, n, generator) for b, n in pairs]

    def say(what: str) -> None:
        progress(f"{name}: {what}")

    def steady(call: Callable[..., Any], given: Sequence[Inputs]) -> float:
        return undisturbed(lambda: _sweep(call, given), say)

    how = Procedure(SYSTEMS, ROUNDS, lambda module, given: None, _sweep, steady)
    found = compared(build(name), inputs(1), inputs(2), how, say)
    config = Config(layers=model.layers, context=model.length, dtype="float32", engine="dvm")
    return recorded(name, model.batch, config, "cpu", pairs, found)


def sequence(
    name: str, pairs: Sequence[tuple[int, int]], sweeps: Mapping[str, Sweep]
) -> dict[str, Any]:
    """The entry of the section `sequences`, but for what was counted."""
    ratio = paired_ratio(sweeps["inductor"].steady, sweeps["vtc"].steady)
    return {
        "model": name,
        "pairs": [list(p) for p in pairs],
        "total_s": {s: own.total_s for s, own in sweeps.items()},
        "steady_s": {s: statistics.median(own.steady) for s, own in sweeps.items()},
        "inductor_total_to_vtc": sweeps["inductor"].total_s / sweeps["vtc"].total_s,
        "inductor_steady_to_vtc": ratio.median,
    }


def compiled_by(system: str, module: nn.Module) -> Callable[..., Any]:
    if system == "vtc":
        return vtc.compile(module, engine="dvm")
    return module if system == "eager" else torch.compile(module, dynamic=True)


class machine_code:  # noqa: N801 - used as a `with` block
    """Counts calls of TorchInductor while it is open."""

    def __enter__(self) -> list[str]:
        self.stock, found = compile_fx.compile_fx, []

        def counting(*args: Any, **kwargs: Any) -> Any:
            found.append("compile_fx")
            return self.stock(*args, **kwargs)

        compile_fx.compile_fx = counting
        return found

    def __exit__(self, *exception: object) -> None:
        compile_fx.compile_fx = self.stock


def _sweep(call: Callable[..., Any], inputs: Sequence[Inputs]) -> float:
    start = time.perf_counter()
    for args in inputs:
        call(*args)
    return time.perf_counter() - start


def judge(
    module: nn.Module,
    calls: Mapping[str, Callable[..., Any]],
    sweeps: Mapping[str, Sweep],
    fresh: Sequence[Inputs],
) -> None:
    """Every system on fresh inputs, against a float64 copy."""
    answers = {s: [_list(call(*args)) for args in fresh] for s, call in calls.items()}
    double = module.double()
    for k, args in enumerate(fresh):
        exact = _list(double(*(a.double() if a.is_floating_point() else a for a in args)))
        for system, sweep in sweeps.items():
            found, eager = answers[system][k], answers["eager"][k]
            sweep.correct &= bool(same(eager, found, exact))
            for f, e in zip(found, exact, strict=True):
                error = (f.double() - e).abs().max() / e.abs().max()
                sweep.max_rel_error = max(sweep.max_rel_error, float(error))


def _list(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def row(system: str, sweeps: Mapping[str, Sweep], pairs: int) -> Row:
    """One system's row; times are of one of so many pairs."""
    sweep = sweeps[system]
    ordered = sorted(sweep.steady)
    each = 1e3 / pairs
    return Row(
        system,
        engine={"vtc": "dvm", "inductor": "dynamic=True"}.get(system),
        median_ms=statistics.median(ordered) * each,
        p10_ms=ordered[0] * each,
        p90_ms=ordered[-1] * each,
        first_call_s=sweep.first_call_s,
        max_rel_error=sweep.max_rel_error,
        correct=sweep.correct,
        ratio_to_vtc=None if system == "vtc" else paired_ratio(sweep.steady, sweeps["vtc"].steady),
        note=f"mean of {pairs} pairs, {len(ordered)} rounds; all from cold {sweep.total_s:.2f} s",
    )
