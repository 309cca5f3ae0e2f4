"""`model.generate` of transformers on a CPU: the DVM, eager PyTorch, torch.compile(dynamic=True).

    python benchmarks/generate.py [--only llama-static,qwen3-dynamic] [--minutes 3]

Small Llama and Qwen3 with random weights in float32, greedy, 64 tokens after each of five prompts,
the caches of fixed and of growing size. Written to benchmarks/results/cpu-generate.json case by
case; what is in the file is not measured again unless --again is given.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from dvm_models import DECODER, VOCABULARY, machine_code, transformer
from quiet import undisturbed
from rich.console import Console
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer

import vtc
from vtc.bench import records
from vtc.bench.peers import fresh_compiler
from vtc.runtime.dvm import counters

RESULTS = Path(__file__).parent / "results" / "cpu-generate.json"
PROMPTS = (7, 33, 1, 120, 64)
TOKENS = 64
ROUNDS = 5
LAYERS = 2
# Two logits closer than this, relative to the largest, are a tie: either token is greedy.
TIE = 1e-5
SYSTEMS: Mapping[str, Callable[[Any], Any]] = {
    "eager": lambda forward: forward,
    "vtc": lambda forward: vtc.compile(forward, engine="dvm"),
    "inductor": lambda forward: torch.compile(forward, dynamic=True),
}
MODELS = {
    "llama": transformer("Llama", LAYERS, **DECODER),
    "qwen3": transformer("Qwen3", LAYERS, **DECODER),
}
CASES = [f"{model}-{cache}" for model in MODELS for cache in ("static", "dynamic")]
console = Console(width=160)


class Clock(BaseStreamer):  # type: ignore[misc]
    """When each new token was there; `generate` streams the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


@dataclass
class Generated:
    """Seconds to the first token and of the whole call, tokens a second after the first one, the
    new tokens, and the logits that each was chosen from."""

    first_s: float
    total_s: float
    rate: float
    tokens: Tensor
    logits: Tensor


def generate(model: Any, prompt: Tensor, cache: str) -> Generated:
    """One call of `model.generate`."""
    clock, start = Clock(), time.perf_counter()
    found = model.generate(
        prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, streamer=clock,
        cache_implementation=None if cache == "dynamic" else cache, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    end = time.perf_counter()
    _, first, *_, last = clock.times
    new = found.sequences[0, prompt.shape[1] :]
    rate = (TOKENS - 1) / (last - first)
    return Generated(first - start, end - start, rate, new, torch.cat(found.logits))


def agreement(ours: Generated, eager: Generated) -> tuple[bool, int]:
    """Are the tokens eager's, up to a tie of its logits? And the number of ties, at most 1: what
    follows one is another text."""
    differ = (ours.tokens != eager.tokens).nonzero()
    if not len(differ):
        return True, 0
    place = int(differ[0])
    logits = eager.logits[place]
    gap = logits.max() - logits[ours.tokens[place]]
    tie = bool(gap <= TIE * logits.abs().max())
    return tie, int(tie)


@dataclass
class Runs:
    """What one system did: seconds of all prompts from the uncompiled model, and for each prompt
    the steady rounds."""

    cold_s: float = 0.0
    cold: list[Generated] = field(default_factory=list)
    first_ms: list[list[float]] = field(default_factory=lambda: [[] for _ in PROMPTS])
    rate: list[list[float]] = field(default_factory=lambda: [[] for _ in PROMPTS])


def build(name: str) -> nn.Module:
    """A model with random weights by a seed."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def measure(case: str) -> dict[str, Any]:
    """The entry of a case in the section `generation`."""
    name, cache = case.split("-")
    model: Any = build(name)
    plain = model.forward
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, VOCABULARY, (1, n), generator=generator) for n in PROMPTS]
    runs = {system: Runs() for system in SYSTEMS}
    calls: dict[str, Any] = {}
    with torch.no_grad(), fresh_compiler(), torch._inductor.config.patch(force_disable_caches=True):
        counters.reset()
        for system, compile_ in SYSTEMS.items():
            console.log(f"{case}: {system} from cold")
            own = runs[system]
            with machine_code() as compiled, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", vtc.errors.FallbackWarning)
                calls[system] = model.forward = compile_(plain)
                own.cold = [generate(model, prompt, cache) for prompt in prompts]
            own.cold_s = sum(g.total_s for g in own.cold)
            if system == "vtc":
                done = asdict(counters) | {"compilations": counters.compilations + len(compiled)}
                given = [w for w in caught if issubclass(w.category, vtc.errors.FallbackWarning)]
        for r in range(ROUNDS):
            for system in random.Random(r).sample(list(SYSTEMS), len(SYSTEMS)):
                model.forward = calls[system]
                _round(model, prompts, cache, runs[system])
    judged = [agreement(*pair) for pair in zip(runs["vtc"].cold, runs["eager"].cold, strict=True)]
    return {
        "model": name,
        "cache": cache,
        "layers": LAYERS,
        "prompts": list(PROMPTS),
        "tokens": TOKENS,
        "cold_s": {s: own.cold_s for s, own in runs.items()},
        "first_token_ms": {s: [*map(statistics.median, own.first_ms)] for s, own in runs.items()},
        "tokens_per_s": {s: [*map(statistics.median, own.rate)] for s, own in runs.items()},
        "equal": all(equal for equal, _ in judged),
        "ties": sum(ties for _, ties in judged),
        "fallbacks": sorted({str(w.message) for w in given}),
        **done,
    }


def _round(model: Any, prompts: Sequence[Tensor], cache: str, own: Runs) -> None:
    found = undisturbed(lambda: [generate(model, p, cache) for p in prompts], console.log)
    for number, one in enumerate(found):
        own.first_ms[number].append(one.first_s * 1e3)
        own.rate[number].append(one.rate)


def main(
    only: Annotated[str, typer.Option(help="Cases, separated by commas.")] = "",
    minutes: Annotated[float, typer.Option(help="Begin nothing after so long.")] = 1e9,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure generation on this machine's CPU."""
    there = {f"{e['model']}-{e['cache']}": e for e in _generation(output)}
    deadline = time.perf_counter() + 60 * minutes
    for case in CASES:
        chosen = not only or case in only.split(",")
        if chosen and (again or case not in there) and time.perf_counter() < deadline:
            there[case] = measure(case)
            ordered = [there[c] for c in CASES if c in there]
            sections = {"machine": records.versions(), "generation": ordered}
            records.write(output, [], sections)
            console.print(there[case])


def _generation(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = records.read_sections(path).get("generation", [])
    return found


if __name__ == "__main__":
    typer.run(main)
