"""The models of dvm_gpu.py: each over random pairs of batch and length, from cold and steady."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dvm_models
import torch
from dvm_models import Headless, Inputs, Model, Sweep, machine_code, transformer
from mmoe import MMoE
from torch import nn

import vtc
from vtc.bench.peers import fresh_compiler
from vtc.bench.records import CaseRecord, Config
from vtc.runtime.dvm import counters
from vtc.vm.device import interpreter

PAIRS = 30
ROUNDS = 7  # the first ones before sizes count as recurring, see vtc.runtime.recurring
SYSTEMS = ("eager", "vtc", "inductor")
DEVICE = "cuda"
DTYPE = torch.bfloat16
LAYERS = 4

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
QWEN = {**LLAMA, "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40}

# Of the real widths; vocabularies are cut to that of dvm_models.
MODELS: Mapping[str, Model] = {
    "mmoe": Model(lambda: MMoE(tasks=4), dvm_models.features, 64, 64),
    "bert-base": Model(
        transformer("Bert", 12), dvm_models.tokens, 16, 256, 12, lambda r: r.last_hidden_state
    ),
    "qwen3-14b": Model(
        transformer("Qwen3", LAYERS, **QWEN), dvm_models.tokens, 4, 512, LAYERS, lambda r: r.logits
    ),
    "llama-3.1-8b": Model(
        transformer("Llama", LAYERS, **LLAMA), dvm_models.tokens, 4, 512, LAYERS,
        lambda r: r.logits,
    ),
}  # fmt: skip


def build(name: str) -> nn.Module:
    """A model with random weights by a seed, on the device."""
    torch.manual_seed(0)
    model = MODELS[name]
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device(DEVICE):
            built = model.build().eval()
    finally:
        torch.set_default_dtype(before)
    options = {"use_cache": False} if model.layers == LAYERS else {}
    return Headless(built, model.outputs, options)


def inputs(name: str, seed: int) -> list[Inputs]:
    """Fresh inputs for every pair, on the device."""
    generator = torch.Generator().manual_seed(seed)
    own = MODELS[name]
    made = [own.inputs(b, n, generator) for b, n in pairs(name)]
    return [[t.to(DEVICE, DTYPE if t.is_floating_point() else None) for t in m] for m in made]


def pairs(name: str) -> list[tuple[int, int]]:
    """Random batches and lengths."""
    draw, own = random.Random(7), MODELS[name]
    return [(draw.randint(1, own.batch), draw.randint(1, own.length)) for _ in range(PAIRS)]


def measure(name: str, progress: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's case and its entry of the section `sequences`."""
    module, given = build(name), inputs(name, 1)
    interpreter(torch.cuda.current_device())  # is built once a machine
    sweeps: dict[str, Sweep] = {}
    calls: dict[str, Callable[..., Any]] = {}
    fallbacks: list[str] = []
    done: dict[str, int] = {}
    with torch.no_grad(), fresh_compiler(), torch._inductor.config.patch(force_disable_caches=True):
        for args in given:  # libraries choose and load their kernels
            module(*args)
        counters.reset()
        for system in SYSTEMS:
            with machine_code() as compiled, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", vtc.errors.FallbackWarning)
                calls[system] = dvm_models.compiled_by(system, module)
                sweeps[system] = _cold(calls[system], given)
            progress(f"{name}: {system} from cold {sweeps[system].total_s:.2f} s")
            if system == "vtc":
                done = asdict(counters) | {"compilations": counters.compilations + len(compiled)}
                own = [w for w in caught if issubclass(w.category, vtc.errors.FallbackWarning)]
                fallbacks = sorted({str(w.message) for w in own})
        for r in range(ROUNDS):
            for system in random.Random(r).sample(SYSTEMS, len(SYSTEMS)):
                sweeps[system].steady.append(_sweep(calls[system], given))
        done["replays"] = counters.replays
        fastest = {s: min(w.steady) for s, w in sweeps.items()}
        progress(f"{name}: steady {fastest}")
        dvm_models.judge(module, calls, sweeps, inputs(name, 2))
    entry = dvm_models.sequence(name, pairs(name), sweeps) | {"fallbacks": fallbacks, **done}
    rows = [dvm_models.row(system, sweeps, PAIRS) for system in sweeps]
    own_model = MODELS[name]
    config = Config(
        layers=own_model.layers, context=own_model.length, dtype="bfloat16", engine="dvm"
    )
    return CaseRecord(name, own_model.batch, "cuda", config, rows).to_dict(), entry


def _cold(call: Callable[..., Any], given: Sequence[Inputs]) -> Sweep:
    first = _sweep(call, given[:1])
    return Sweep(first + _sweep(call, given[1:]), first)


def _sweep(call: Callable[..., Any], given: Sequence[Inputs]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for args in given:
        call(*args)
    torch.cuda.synchronize()
    return time.perf_counter() - start
