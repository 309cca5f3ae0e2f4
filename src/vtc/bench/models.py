"""The built-in models by name, and models of the user as an ONNX file or as `module:factory`.

Defaults on a CPU are sizes that run in seconds; on CUDA they are the published widths.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vtc.bench import decode, vision
from vtc.bench.case import Case, UserInputs, tensors_in
from vtc.bench.onnx_file import onnx_case
from vtc.errors import (
    DeviceUnavailableError,
    InvalidOptionError,
    UnknownChoiceError,
    UnknownModelError,
)

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Model:
    """A built-in model: where it is from, and its defaults on a CPU and on CUDA."""

    name: str
    title: str
    source: str
    make: Callable[..., Case]
    cpu: dict[str, Any]
    cuda: dict[str, Any]
    cuda_dtype: torch.dtype


MODELS = {
    model.name: model
    for model in (
        Model(
            "llama3",
            "Llama-3-8B, one decoding step",
            "transformers",
            decode.llama3,
            {"widths": decode.LLAMA3_CPU},
            {"widths": decode.LLAMA3_8B},
            torch.bfloat16,
        ),
        Model(
            "gemma2",
            "Gemma-2-9B, one decoding step",
            "transformers",
            decode.gemma2,
            {"widths": decode.GEMMA2_CPU},
            {"widths": decode.GEMMA2_9B},
            torch.bfloat16,
        ),
        Model(
            "efficientvit",
            "EfficientViT-B1 (CPU) or -B2 (CUDA)",
            "timm",
            vision.efficientvit,
            {"variant": "b1", "size": 224},
            {"variant": "b2", "size": 512},
            torch.float16,
        ),
        Model(
            "yolo11",
            "YOLO11n (CPU) or YOLO11s (CUDA)",
            "ultralytics",
            vision.yolo11,
            {"variant": "n", "size": 320},
            {"variant": "s", "size": 640},
            torch.float16,
        ),
        Model(
            "shufflenet",
            "ShuffleNet-v2 x1.0",
            "torchvision",
            vision.shufflenet,
            {"variant": "x1_0", "size": 224},
            {"variant": "x1_0", "size": 224},
            torch.float16,
        ),
    )
}


def check_device(device: str) -> torch.device:
    """The device named. Raises `DeviceUnavailableError` where this PyTorch has none such."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = ("cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(1, count)))
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise DeviceUnavailableError(device, available) from None
    if wanted.type not in ("cpu", "cuda") or (
        wanted.type == "cuda" and (wanted.index or 0) >= count
    ):
        raise DeviceUnavailableError(device, available)
    return wanted


def check_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The floating-point type named. Raises `UnknownChoiceError`."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise UnknownChoiceError("dtype", dtype, DTYPES)
    return DTYPES[dtype]


def build(
    name: str,
    *,
    batch: int = 1,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    size: int | None = None,
    layers: int | None = None,
    context: int | None = None,
    seed: int = 0,
) -> Case:
    """A built-in model, an ONNX file, or `module:factory`, with random inputs of `seed`.

    size: image height and width in pixels. layers, context: of a language model. What is None
    takes the default of the device. A factory is called without arguments, or with those of
    `batch`, `device` and `dtype` that it has parameters for, and returns (model, args) or
    (model, args, kwargs). Raises `UnknownModelError`, `DeviceUnavailableError`,
    `MissingExtraError`, and `InvalidOptionError` for a size that the model does not have.
    """
    where, kind = check_device(str(device)), check_dtype(dtype)
    if batch < 1:
        raise InvalidOptionError("batch", batch, "a whole number from 1")
    given = {"size": size, "layers": layers, "context": context}
    for option, value in given.items():
        if value is not None and value < 1:
            raise InvalidOptionError(option, value, "a whole number from 1")
    if name.endswith(".onnx"):
        _refuse(name, given)
        return onnx_case(name, batch, where, kind, seed)
    if ":" in name:
        _refuse(name, given)
        return _user_case(name, batch, where, kind)
    if name not in MODELS:
        raise UnknownModelError(name, MODELS)
    model = MODELS[name]
    on_cuda = where.type == "cuda"
    settings = dict(model.cuda if on_cuda else model.cpu)
    if "widths" in settings:
        _refuse(name, {"size": size})
        settings["widths"] = _scaled(settings["widths"], layers, context)
    else:
        _refuse(name, {"layers": layers, "context": context})
        settings["size"] = size or settings["size"]
    kind = kind or (model.cuda_dtype if on_cuda else torch.float32)
    return model.make(**settings, batch=batch, device=where, dtype=kind, seed=seed)


def _scaled(widths: decode.Widths, layers: int | None, context: int | None) -> decode.Widths:
    if layers:
        widths = dataclasses.replace(widths, layers=layers)
    if context:
        widths = dataclasses.replace(widths, context=context)
    return widths


def _refuse(name: str, options: dict[str, int | None]) -> None:
    for option, value in options.items():
        if value is not None:
            raise InvalidOptionError(option, value, f"no value: model {name} has no such size")


def _user_case(name: str, batch: int, device: torch.device, dtype: torch.dtype | None) -> Case:
    model, args, kwargs = _call_factory(name, {"batch": batch, "device": device, "dtype": dtype})
    if isinstance(model, nn.Module):
        model = model.eval()
        model.to(device=device, dtype=dtype)
    moved = [_moved(part, device, dtype) for part in (args, kwargs)]
    inputs = UserInputs(moved[0], moved[1])
    floating = [t for _, t in tensors_in([args, kwargs]) if t.is_floating_point()]
    kind = dtype or (floating[0].dtype if floating else torch.float32)
    config = {
        "size": None,
        "layers": None,
        "context": None,
        "dtype": str(kind).removeprefix("torch."),
        "description": name,
    }
    return Case(name, model, inputs, config, device, kind)


def _moved(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """The arguments on the device, floating-point ones as `dtype` if one is given."""

    def move(t: torch.Tensor) -> torch.Tensor:
        return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

    return torch.utils._pytree.tree_map_only(torch.Tensor, move, value)


def _call_factory(
    name: str, offered: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not have the user's folder on its path
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownModelError(name, MODELS, f"no module {error.name!r}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        reason = f"module {module_name!r} has no callable {attribute!r}"
        raise UnknownModelError(name, MODELS, reason)
    made = factory(**_accepted(factory, offered))
    shaped = isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])
    if not shaped or not isinstance(made[1], tuple | list):
        reason = f"{attribute} returned {type(made).__name__}, not (model, args)"
        raise UnknownModelError(name, MODELS, reason)
    return made[0], tuple(made[1]), dict(made[2]) if len(made) == 3 else {}


def _accepted(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that the factory names as parameters."""
    code = getattr(factory, "__code__", None)
    if code is None:
        return {}
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {key: value for key, value in offered.items() if key in names and value is not None}
