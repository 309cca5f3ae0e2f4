"""All rules: importing this module fills the registry."""

from vtc.graph.onnx import (
    ops_attention,
    ops_control,
    ops_create,
    ops_elementwise,
    ops_image,
    ops_indexed,
    ops_loss,
    ops_movement,
    ops_nn,
    ops_pool,
    ops_quant,
    ops_reduce,
    ops_resize,
    ops_rnn,
)
from vtc.graph.onnx.registry import RULES, find

__all__ = [
    "RULES",
    "find",
    "ops_attention",
    "ops_control",
    "ops_create",
    "ops_elementwise",
    "ops_image",
    "ops_indexed",
    "ops_loss",
    "ops_movement",
    "ops_nn",
    "ops_pool",
    "ops_quant",
    "ops_reduce",
    "ops_resize",
    "ops_rnn",
]
