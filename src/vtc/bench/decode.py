"""Decoding with a large language model: one token a sequence, on a cache filled to its context.

The models are those of transformers with a StaticCache, as published, with random weights. A
StaticCache allocates itself in its first call and counts its length from 0 whatever positions it
is given: here it is allocated before any capture, filled, and its counters are set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vtc.bench.case import Case, generator_on
from vtc.bench.extras import need

# Slots of the cache beyond the context, for the tokens that are decoded. A multiple of 64 keeps
# rows of the attention mask aligned, as serving systems allocate them.
ROOM = 64


@dataclass(frozen=True)
class Widths:
    """Sizes of a decoder-only transformer, as its configuration names them."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    layers: int
    context: int
    window: int | None = None

    def __str__(self) -> str:
        window = f", window {self.window}" if self.window else ""
        return (
            f"hidden {self.hidden}, intermediate {self.intermediate}, {self.heads} heads, "
            f"{self.kv_heads} key/value heads of {self.head_dim}, vocabulary {self.vocabulary}"
            f"{window}"
        )


# Llama-3-8B (meta-llama/Meta-Llama-3-8B config.json) with fewer layers, and the widths of
# Llama-3.2-1B with a vocabulary of 32,000, whose head is then not most of the work on a CPU.
LLAMA3_8B = Widths(4096, 14336, 32, 8, 128, 128256, layers=4, context=4096)
LLAMA3_CPU = Widths(2048, 8192, 32, 8, 64, 32000, layers=2, context=2048)
# Gemma-2-9B (google/gemma-2-9b config.json) with fewer layers, and the widths of Gemma-2-2B with
# the same vocabulary of 32,000. The window equals the context in both: it is full.
GEMMA2_9B = Widths(3584, 14336, 16, 8, 256, 256000, layers=4, context=4096, window=4096)
GEMMA2_CPU = Widths(2304, 9216, 8, 4, 256, 32000, layers=2, context=2048, window=2048)


class DecodeStep(nn.Module):
    """One decoding step of a transformers model, as its `generate` calls it.

    forward(tokens (batch, 1) int64, positions (1, 1) int64, cache) -> logits
    (batch, 1, vocabulary). The cache is updated in place.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # transformers renamed the argument; the old name warns in versions that have the new one.
        names = inspect.signature(type(model).forward).parameters
        self.cache_argument = "cache" if "cache" in names else "past_key_values"

    def forward(self, tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        out = self.model(
            input_ids=tokens, position_ids=positions, use_cache=True, **{self.cache_argument: cache}
        )
        return out.logits


class DecodeInputs:
    """Token, position and StaticCache of a decoding step at `context`."""

    def __init__(self, tokens: Tensor, positions: Tensor, cache: Any, widths: Widths) -> None:
        self.tokens, self.positions, self.cache, self.widths = tokens, positions, cache, widths
        self.kwargs: dict[str, Any] = {}

    @property
    def args(self) -> tuple[Any, ...]:
        return self.tokens, self.positions, self.cache

    def reset(self) -> None:
        """Set position and counters so that the next token is written at position `context`."""
        context = self.widths.context
        self.positions.fill_(context)
        for layer in self.cache.layers:
            # A sliding layer counts in a tensor only until its window is full, and in an int.
            layer.cumulative_length.fill_(min(context, layer.max_cache_len))
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = context

    def updated(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for number, layer in enumerate(self.cache.layers):
            tensors[f"keys.{number}"] = layer.keys
            tensors[f"values.{number}"] = layer.values
            tensors[f"length.{number}"] = layer.cumulative_length
        return tensors

    def refill(self, seed: int) -> None:
        """New tokens and cached keys and values up to the context; later slots are zero."""
        generator = generator_on(self.tokens.device, seed)
        for layer in self.cache.layers:
            filled = min(self.widths.context, layer.max_cache_len)
            for tensor in (layer.keys, layer.values):
                tensor[:, :, :filled].normal_(generator=generator)
                tensor[:, :, filled:].zero_()
        self.tokens.random_(self.widths.vocabulary, generator=generator)
        self.reset()

    def advance(self, seed: int, step: int) -> None:
        generator = generator_on(self.tokens.device, seed + 1 + step)
        self.tokens.random_(self.widths.vocabulary, generator=generator)
        self.positions.fill_(self.widths.context + step)

    def cast(self, dtype: torch.dtype) -> None:
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
            if hasattr(layer, "dtype"):
                layer.dtype = dtype


def llama3(
    widths: Widths, *, batch: int, device: torch.device, dtype: torch.dtype, seed: int
) -> Case:
    """Decoding with LlamaForCausalLM. Stock variants: grouped heads, flex attention."""
    transformers = need("transformers", "model llama3")
    config = transformers.LlamaConfig(
        **_common(widths),
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=max(8192, widths.context + ROOM),
        tie_word_embeddings=False,
    )
    return _case(
        "llama3", transformers.LlamaForCausalLM, config, widths, batch, device, dtype, seed
    )


def gemma2(
    widths: Widths, *, batch: int, device: torch.device, dtype: torch.dtype, seed: int
) -> Case:
    """Decoding with Gemma2ForCausalLM: soft-capped attention, every other layer with a window."""
    transformers = need("transformers", "model gemma2")
    config = transformers.Gemma2Config(
        **_common(widths),
        sliding_window=widths.window,
        query_pre_attn_scalar=widths.head_dim,
        max_position_embeddings=max(8192, widths.context + ROOM),
    )
    model = transformers.Gemma2ForCausalLM
    case = _case("gemma2", model, config, widths, batch, device, dtype, seed)
    return replace(case, python_counters=True)


def _common(widths: Widths) -> dict[str, Any]:
    return {
        "hidden_size": widths.hidden,
        "intermediate_size": widths.intermediate,
        "num_attention_heads": widths.heads,
        "num_key_value_heads": widths.kv_heads,
        "head_dim": widths.head_dim,
        "vocab_size": widths.vocabulary,
        "num_hidden_layers": widths.layers,
        "pad_token_id": None,
    }


def _case(
    name: str,
    model_class: Any,
    config: Any,
    widths: Widths,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> Case:
    transformers = need("transformers", f"model {name}")
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model = DecodeStep(model_class._from_config(config, dtype=dtype)).eval()
    model.requires_grad_(False)
    cache = transformers.StaticCache(config=config, max_cache_len=widths.context + ROOM)
    cache.early_initialization(batch, widths.kv_heads, widths.head_dim, dtype, device)
    tokens = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    positions = torch.zeros(1, 1, dtype=torch.int64, device=device)
    inputs = DecodeInputs(tokens, positions, cache, widths)
    inputs.refill(seed)
    described = {
        "size": None,
        "layers": widths.layers,
        "context": widths.context,
        "dtype": str(dtype).removeprefix("torch."),
        "description": str(widths),
    }
    variants = ("flex_attention",) if name == "gemma2" else ("grouped_heads", "flex_attention")
    return Case(
        name=name,
        model=model,
        inputs=inputs,
        config=described,
        device=device,
        dtype=dtype,
        best={variant: _attention(variant) for variant in variants},
    )


def _attention(variant: str) -> Callable[[nn.Module], None]:
    """A change of a DecodeStep to another attention of transformers."""

    def change(step: nn.Module) -> None:
        name = variant
        if variant == "grouped_heads":
            name = "vtc_bench_grouped_heads"
            attention = need("transformers.modeling_utils", "peer inductor-best")
            masks = need("transformers.masking_utils", "peer inductor-best")
            attention.ALL_ATTENTION_FUNCTIONS.register(name, grouped_heads_attention)
            masks.ALL_MASK_ATTENTION_FUNCTIONS.register(name, masks.sdpa_mask)
        model: Any = step.model
        model.config._attn_implementation = name

    return change


def grouped_heads_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers' sdpa attention does under TRANSFORMERS_SDPA_FORCE_GQA=1.

    Registered as an attention of its own, since that variable is for the whole process and not in
    all versions. query (batch, heads, 1, head_dim); key and value (batch, kv_heads, length,
    head_dim); attention_mask broadcast to (batch, heads, 1, length).
    """
    out = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None
