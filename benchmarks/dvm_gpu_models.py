"""The models of dvm_gpu.py: each over random pairs of batch and length, from cold and steady."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dvm_models
import torch
from dvm_models import Headless, Inputs, Model, Procedure, compared, recorded, transformer
from mmoe import MMoE
from torch import nn

from vtc.bench.records import Config
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
    own = MODELS[name]
    how = Procedure(SYSTEMS, ROUNDS, _begin, _sweep, _sweep)
    found = compared(
        build(name), inputs(name, 1), inputs(name, 2), how, lambda what: progress(f"{name}: {what}")
    )
    config = Config(layers=own.layers, context=own.length, dtype="bfloat16", engine="dvm")
    return recorded(name, own.batch, config, "cuda", pairs(name), found)


def _begin(module: nn.Module, given: Sequence[Inputs]) -> None:
    """The interpreter, which is built once a machine, and the libraries' kernels are loaded."""
    interpreter(torch.cuda.current_device())
    for args in given:
        module(*args)


def _sweep(call: Callable[..., Any], given: Sequence[Inputs]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for args in given:
        call(*args)
    torch.cuda.synchronize()
    return time.perf_counter() - start
