"""`model.generate` of transformers with the DVM: eager's tokens, no machine code, few captures."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import compile_fx

import vtc
from vtc.runtime import dvm
from vtc.runtime.dvm import counters

transformers = pytest.importorskip("transformers")
try:
    dvm.native_machine()
except vtc.errors.EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_dynamo")]

PROMPTS = (5, 17, 1, 32, 9)
TOKENS = 64
# Prompts and the steps after them are one graph each; a prompt of one token finds an empty cache.
CAPTURES = {"static": 3, "dynamic": 4}


def small(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=512, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, eos_token_id=None,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def generate(model: Any, prompt: Tensor, cache: str) -> Any:
    return model.generate(
        prompt, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0,
        cache_implementation=None if cache == "dynamic" else cache,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip


class Counted:
    """A compiled forward, and how often it was called."""

    def __init__(self, forward: Any) -> None:
        self.forward, self.calls = forward, 0
        functools.update_wrapper(self, forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.forward(*args, **kwargs)


def assert_same_text(found: Any, want: Any) -> None:
    """The same tokens, up to the first that two equal logits tie for."""
    assert found.sequences.shape == want.sequences.shape
    start = found.sequences.shape[1] - TOKENS
    for step, (ours, theirs) in enumerate(zip(found.logits, want.logits, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        one, two = (g.sequences[:, start + step] for g in (found, want))
        if not torch.equal(one, two):
            gap = theirs.max(-1).values - theirs.gather(-1, one[:, None])[:, 0]
            assert gap.max() < 1e-5, f"token {step}"
            return


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
@torch.no_grad()
def test_text_is_that_of_eager_pytorch(
    name: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, plain = small(name), small(name)
    prompts = [torch.randint(1, 512, (1, n)) for n in PROMPTS]
    compiled: list[Any] = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda *args, **kwargs: compiled.append(args))
    counters.reset()
    model.forward = forward = Counted(vtc.compile(model.forward, engine="dvm"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", vtc.errors.VtcWarning)
        for prompt in prompts:
            assert_same_text(generate(model, prompt, cache), generate(plain, prompt, cache))
    assert forward.calls == TOKENS * len(PROMPTS)  # each token is the compiled model's
    assert counters.captures == CAPTURES[cache]
    assert counters.compilations == len(compiled) == counters.eager == 0


@torch.no_grad()
def test_other_methods_of_a_compiled_model_run_it_as_it_is() -> None:
    """As those of `torch.compile(model)`: `generate` is compiled through the model's `forward`."""
    model = small("Llama")
    counters.reset()
    vtc.compile(model, engine="dvm").generate(
        torch.randint(1, 512, (1, 5)), max_new_tokens=3, do_sample=False, pad_token_id=0
    )
    assert counters.captures == 0


@torch.no_grad()
def test_a_batch_of_padded_prompts() -> None:
    model, plain = small("Llama"), small("Llama")
    prompts, mask = torch.randint(1, 512, (3, 11)), torch.ones(3, 11, dtype=torch.long)
    for row, pad in enumerate((0, 4, 7)):
        prompts[row, :pad], mask[row, :pad] = 0, 0
    model.forward = vtc.compile(model.forward, engine="dvm")
    ours, theirs = (
        m.generate(
            prompts, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0,
            return_dict_in_generate=True, output_logits=True,
        )
        for m in (model, plain)
    )  # fmt: skip
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.sequences, theirs.sequences)
