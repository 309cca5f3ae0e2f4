"""Real models, small, over changing batches and lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lowering.dvm.evaluated import Compiled

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=True)


def llama() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def qwen3() -> Any:
    config = transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8)
    return transformers.Qwen3ForCausalLM(config)


@pytest.mark.parametrize("make", [bert, llama, qwen3])
def test_a_model_of_any_batch_and_length(make: Any) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().eval()
    options = {} if make is bert else {"use_cache": False}

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids, attention_mask=mask, **options)[0]

    compiled = Compiled(run)
    for batch, length in ((2, 7), (3, 12), (1, 5), (2, 1)):
        ids, mask = torch.randint(0, 64, (batch, length)), torch.ones(batch, length).long()
        mask[0, : length // 3] = 0
        with torch.no_grad():
            want = run(ids, mask)
        got = compiled(ids, mask)
        torch.testing.assert_close(got[mask > 0], want[mask > 0], rtol=1e-4, atol=1e-4)
    assert not compiled.eager, compiled.eager
    assert all(plan.copies == 0 for plan in compiled.plans)
    # transformers' code branches on a batch and on a length of 1.
    assert len(compiled.plans) <= 3
