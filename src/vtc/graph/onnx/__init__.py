"""ONNX models as torch modules: `vtc.compile("model.onnx")`.

reader.py reads a file and tensors.py its weights, and they trust nothing in it; importer.py turns
the graph into an `fx.GraphModule` that calls the rules of registry.py, one a node; ops_*.py hold
the rules; host.py keeps what is known of shapes and constants out of tensors.

The package onnx is an extra. It is imported when a model is, and not before.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from vtc.errors import MissingExtraError

Model = Callable[..., Any] | str | os.PathLike[str]


def imported(model: Model, *, floating: torch.dtype | None = None) -> Callable[..., Any]:
    """A path as the module that the ONNX file holds, anything else as it is.

    `floating` is the dtype of the file's floating-point tensors, where it is not to be the file's.
    Raises OnnxFileError, UnsupportedOnnxError, and MissingExtraError without the package onnx.
    """
    if isinstance(model, str | os.PathLike):
        module: fx.GraphModule = _part("importer").load(model, floating=floating)
        return module
    return model


def imported_call(
    model: Model, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """As `imported`, with the arguments of one call: for a path without any, those of
    `examples`."""
    module = imported(model)
    given = tuple(args), dict(kwargs or {})
    if module is model or any(given):
        return module, *given
    return module, examples(module), {}


def examples(
    module: Callable[..., Any],
    *,
    batch: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, ...]:
    """Random inputs for an imported module; see `signature.example_inputs`."""
    made: tuple[Tensor, ...] = _part("signature").example_inputs(
        module, batch=batch, seed=seed, device=device
    )
    return made


def has_dynamic_sizes(module: Callable[..., Any]) -> bool:
    """Whether an input of an imported module has a dimension that the file leaves open."""
    return bool(_part("signature").of_module(module).open)


def _part(name: str) -> Any:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("onnx", "google"):
            raise
        raise MissingExtraError("onnx", "an ONNX model", "onnx") from error
