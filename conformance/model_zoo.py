"""Real models of transformers, timm and torchvision with random weights and reduced sizes.

Statistics of batch normalisation are drawn too, as those of a new model (0 and 1) would hide
mistakes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A model: where it is from, how it is built, and arguments for a batch size."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]


# Inputs.


def image(side: int = 64, key: str = "pixel_values") -> Callable[[int], Inputs]:
    return lambda batch: {key: torch.randn(batch, 3, side, side)}


def tokens(length: int = 12, vocabulary: int = 99) -> Callable[[int], Inputs]:
    def make(batch: int) -> Inputs:
        ids = torch.randint(3, vocabulary, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, length - 3 :] = 0
        return {"input_ids": ids, "attention_mask": mask}

    return make


def pair(length: int = 12, vocabulary: int = 99) -> Callable[[int], Inputs]:
    """For an encoder and a decoder."""
    one = tokens(length, vocabulary)
    return lambda batch: {
        **one(batch),
        "decoder_input_ids": torch.randint(3, vocabulary, (batch, length // 2)),
    }


def text_and_image(side: int) -> Callable[[int], Inputs]:
    return lambda batch: {**tokens()(batch), **image(side)(batch)}


def sound(length: int = 2000) -> Callable[[int], Inputs]:
    return lambda batch: {"input_values": torch.randn(batch, length)}


# transformers.

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "use_cache": False}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
       "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}  # fmt: skip
BART = {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 37,
        "decoder_ffn_dim": 37, "max_position_embeddings": 64, "pad_token_id": 0,
        "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False}  # fmt: skip
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0, "pad_token_id": 0, "use_cache": False}  # fmt: skip
EXPERTS = {**GROUPED, "intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2,
           "num_local_experts": 4, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 16}  # fmt: skip
VIT = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
       "num_attention_heads": 4, "intermediate_size": 37}  # fmt: skip
CLIP = {"text_config": {**SMALL, "projection_dim": 16}, "vision_config": {**VIT},
        "projection_dim": 16}  # fmt: skip
SPEECH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
          "intermediate_size": 37, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2),
          "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
          "mask_time_prob": 0.0, "mask_feature_prob": 0.0}  # fmt: skip

TEXT: dict[str, tuple[Mapping[str, Any], str]] = {
    "bert": (SMALL, "AutoModelForMaskedLM"),
    "roberta": (SMALL, "AutoModel"),
    "xlm-roberta": (SMALL, "AutoModelForSequenceClassification"),
    "camembert": (SMALL, "AutoModel"),
    "electra": ({**SMALL, "embedding_size": 16}, "AutoModel"),
    "albert": ({**SMALL, "embedding_size": 16}, "AutoModel"),
    "distilbert": (
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
        "AutoModelForQuestionAnswering",
    ),
    "mobilebert": (
        {**SMALL, "embedding_size": 32, "true_hidden_size": 16, "intra_bottleneck_size": 16},
        "AutoModel",
    ),
    "mpnet": (SMALL, "AutoModel"),
    "convbert": ({**SMALL, "embedding_size": 32}, "AutoModel"),
    "squeezebert": (
        {
            **SMALL,
            "embedding_size": 32,
            "intermediate_size": 64,
            **{
                f"{part}_groups": 2
                for part in ("q", "k", "v", "post_attention", "intermediate", "output")
            },
        },
        "AutoModel",
    ),
    "deberta-v2": (
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "AutoModel",
    ),
    "roformer": ({**SMALL, "embedding_size": 32}, "AutoModel"),
    "rembert": ({**SMALL, "input_embedding_size": 16}, "AutoModel"),
    "megatron-bert": (SMALL, "AutoModel"),
    "nystromformer": ({**SMALL, "num_landmarks": 12, "segment_means_seq_len": 12}, "AutoModel"),
    "layoutlm": (SMALL, "AutoModel"),
    "esm": ({**SMALL, "mask_token_id": 3, "position_embedding_type": "rotary"}, "AutoModel"),
    "fnet": (SMALL, "AutoModel"),
    "funnel": (
        {
            "vocab_size": 99,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 37,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
        },
        "AutoModel",
    ),
    "modernbert": (
        {**SMALL, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
        "AutoModel",
    ),
    "gpt2": (GPT, "AutoModelForCausalLM"),
    "gptj": ({**GPT, "rotary_dim": 4}, "AutoModelForCausalLM"),
    "codegen": ({**GPT, "rotary_dim": 4}, "AutoModelForCausalLM"),
    "gpt_neo": (
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        "AutoModelForCausalLM",
    ),
    "gpt_neox": ({**SMALL, "use_cache": False}, "AutoModelForCausalLM"),
    "opt": (
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "ffn_dim": 37,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 16,
            "use_cache": False,
        },
        "AutoModelForCausalLM",
    ),
    "bloom": (
        {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
        "AutoModelForCausalLM",
    ),
    "mpt": (
        {
            "vocab_size": 99,
            "d_model": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 64,
            "use_cache": False,
        },
        "AutoModelForCausalLM",
    ),
    "falcon": (
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "use_cache": False,
        },
        "AutoModelForCausalLM",
    ),
    "llama": (GROUPED, "AutoModelForCausalLM"),
    "mistral": ({**GROUPED, "sliding_window": 6}, "AutoModelForCausalLM"),
    "qwen2": (GROUPED, "AutoModelForCausalLM"),
    "qwen3": ({**GROUPED, "head_dim": 8}, "AutoModelForCausalLM"),
    "gemma": ({**GROUPED, "head_dim": 8}, "AutoModelForCausalLM"),
    "gemma2": ({**GROUPED, "head_dim": 8, "sliding_window": 6}, "AutoModelForCausalLM"),
    "phi": (GROUPED, "AutoModelForCausalLM"),
    "phi3": (GROUPED, "AutoModelForCausalLM"),
    "stablelm": (GROUPED, "AutoModelForCausalLM"),
    "olmo2": (GROUPED, "AutoModelForCausalLM"),
    "starcoder2": (GROUPED, "AutoModelForCausalLM"),
    "granite": (GROUPED, "AutoModelForCausalLM"),
    "cohere": (GROUPED, "AutoModelForCausalLM"),
    "glm": ({**GROUPED, "head_dim": 8}, "AutoModelForCausalLM"),
    "smollm3": (GROUPED, "AutoModelForCausalLM"),
    "persimmon": (GROUPED, "AutoModelForCausalLM"),
    "mixtral": (EXPERTS, "AutoModelForCausalLM"),
    "mamba": (
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "use_cache": False,
        },
        "AutoModelForCausalLM",
    ),
}
SEQUENCES: dict[str, tuple[Mapping[str, Any], str]] = {
    "t5": (T5, "AutoModelForSeq2SeqLM"),
    "mt5": (T5, "AutoModel"),
    "bart": (BART, "AutoModelForSeq2SeqLM"),
    "mbart": (BART, "AutoModel"),
    "pegasus": (BART, "AutoModel"),
    "marian": (BART, "AutoModel"),
    "blenderbot": (BART, "AutoModel"),
}
IMAGES: dict[str, tuple[Mapping[str, Any], int]] = {
    "vit": (VIT, 32),
    "deit": (VIT, 32),
    "beit": ({**VIT, "out_indices": [1, 2]}, 32),
    "dinov2": (VIT, 32),
    "swin": (
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 2],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        32,
    ),
    "swinv2": (
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 2],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        32,
    ),
    "convnext": ({"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}, 64),
    "convnextv2": ({"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}, 64),
    "resnet": ({"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, 64),
    "regnet": (
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "groups_width": 8,
        },
        64,
    ),
    "segformer": (
        {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
        64,
    ),
    "mobilevit": (
        {
            "image_size": 64,
            "patch_size": 2,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
        },
        64,
    ),
    "mobilenet_v2": ({"image_size": 64, "depth_multiplier": 0.25}, 64),
    "poolformer": ({"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, 64),
    "levit": (
        {
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "num_attention_heads": [2, 3, 4],
        },
        64,
    ),
    "pvt_v2": (
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 4],
        },
        64,
    ),
    "yolos": ({**VIT, "image_size": [32, 32], "num_detection_tokens": 5}, 32),
}
OTHERS: dict[str, tuple[Mapping[str, Any], str, Callable[[int], Inputs]]] = {
    "clip": (CLIP, "AutoModel", text_and_image(32)),
    "siglip": ({"text_config": SMALL, "vision_config": VIT}, "AutoModel", text_and_image(32)),
    "wav2vec2": (SPEECH, "AutoModel", sound()),
    "hubert": (SPEECH, "AutoModel", sound()),
}


def from_transformers(kind: str, config: Mapping[str, Any], task: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = importlib.import_module("transformers")
        made = library.AutoConfig.for_model(kind, **config)
        made.return_dict = True
        if task == "AutoModelForImageClassification":
            made.num_labels = 10
        return getattr(library, task).from_config(made)  # type: ignore[no-any-return]

    return build


def _transformers() -> list[Model]:
    made = []
    for table, inputs in ((TEXT, tokens()), (SEQUENCES, pair())):
        for kind, (config, task) in table.items():
            made.append(_hugging(kind, config, task, inputs))
    for kind, (config, side) in IMAGES.items():
        made.append(_hugging(kind, config, "AutoModel", image(side)))
    for kind, (config, task, inputs) in OTHERS.items():
        made.append(_hugging(kind, config, task, inputs))
    return made


def _hugging(
    kind: str, config: Mapping[str, Any], task: str, inputs: Callable[[int], Inputs]
) -> Model:
    build = from_transformers(kind, config, task)
    return Model(f"transformers/{kind}", "transformers", build, inputs)


# timm and torchvision: the smallest of each family.

TIMM = {
    "resnet10t": 64, "mobilenetv3_small_050": 64, "efficientnet_lite0": 64, "ghostnet_050": 64,
    "convnext_atto": 64, "mixnet_s": 64, "rexnet_100": 64, "repvgg_a0": 64, "mobileone_s0": 64,
    "regnety_002": 64, "vit_tiny_patch16_224": 224, "mixer_s32_224": 224, "gmlp_s16_224": 224,
    "efficientvit_b0": 64, "fastvit_t8": 64, "edgenext_xx_small": 64, "tiny_vit_5m_224": 224,
    "poolformerv2_s12": 64, "cait_xxs24_224": 224, "xcit_nano_12_p16_224": 224,
    "levit_128s": 224, "densenet121": 64, "dla46_c": 64, "hardcorenas_a": 64,
    "res2net50_14w_8s": 64, "shvit_s1": 64, "starnet_s1": 64, "coat_lite_tiny": 224,
}  # fmt: skip
TORCHVISION = {
    "resnet18": 64, "vgg11_bn": 64, "alexnet": 96, "squeezenet1_1": 64, "googlenet": 64,
    "inception_v3": 96, "shufflenet_v2_x0_5": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64,
    "mnasnet0_5": 64, "efficientnet_b0": 64, "regnet_y_400mf": 64, "densenet121": 64,
    "swin_t": 64, "vit_b_32": 224, "convnext_tiny": 64,
}  # fmt: skip


def from_timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = importlib.import_module("timm")
        return library.create_model(name, pretrained=False, num_classes=10)  # type: ignore[no-any-return]

    return build


def from_torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = importlib.import_module("torchvision")
        more = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
        return library.models.get_model(name, weights=None, num_classes=10, **more)  # type: ignore[no-any-return]

    return build


def _vision() -> list[Model]:
    made = [
        Model(f"timm/{name}", "timm", from_timm(name), image(side, "x"))
        for name, side in TIMM.items()
    ]
    made += [
        Model(f"torchvision/{name}", "torchvision", from_torchvision(name), image(side, "x"))
        for name, side in TORCHVISION.items()
    ]
    return made


def models() -> dict[str, Model]:
    return {m.name: m for m in (*_transformers(), *_vision())}


def build(model: Model) -> nn.Module:
    """The model for inference, the same at every call, its statistics drawn."""
    torch.manual_seed(0)
    made = model.build().eval()
    for part in made.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            assert isinstance(part.running_var, Tensor)
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return made.requires_grad_(False)
