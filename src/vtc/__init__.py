"""VTC: a tensor compiler for PyTorch inference that eliminates data movement.

Operators that only move values (reshape, transpose, split, concat, expand, pad, gather, scatter)
become virtual tensors: an index map onto a physical tensor, with no storage and no kernel.
"""

from vtc import errors, index
from vtc.compiler import compile, export
from vtc.graph.movement import register_movement
from vtc.options import Options
from vtc.report.explain import explain
from vtc.runtime.loaded import load
from vtc.runtime.saving import save
from vtc.streaming import stream

__version__ = "0.1.0"

__all__ = [
    "compile",
    "export",
    "explain",
    "load",
    "save",
    "stream",
    "register_movement",
    "Options",
    "errors",
    "index",
    "__version__",
]
