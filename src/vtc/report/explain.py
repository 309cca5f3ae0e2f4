"""`vtc.explain`: compile a model for one call and say what became of its data movement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vtc.compiler import compile_records
from vtc.graph.onnx import Model, imported_call
from vtc.options import Engine, Objective, Options, Search
from vtc.report.report import Report


def explain(
    model: Model,
    *args: Any,
    search: Search | None = None,
    objective: Objective = "latency",
    engine: Engine = "auto",
    options: Options | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Report:
    """Compile `model` for the call `model(*args, **kwargs)` and report on its data movement.

    `model` may be the path of an ONNX file; without arguments its inputs are random ones of the
    sizes that it declares.

    The model's inputs are not updated. `search` overrides `options.search`. Raises what
    `vtc.compile` raises, and `CaptureError` for a model of which no part can be captured, as one
    whose `forward` is compiled already.
    """
    model, args, kwargs = imported_call(model, args, kwargs)
    options = Options.of(options)
    if search is not None:
        options = options.replace(search=search)
    graphs = compile_records(
        model, args, kwargs, engine=engine, objective=objective, options=options
    )
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    device, dtype = _device_and_dtype(chain(weights, tensors))
    settings = {
        "dtype": dtype,
        "engine": engine,
        "objective": objective,
        "search": options.search,
        "freeze": options.freeze,
    }
    return Report(_name_of(model), tuple(graphs), device=device, settings=settings)


def _name_of(model: Callable[..., Any]) -> str:
    """A function's name; the class of a module or another callable object."""
    return getattr(model, "__name__", type(model).__name__)


def _device_and_dtype(tensors: Iterable[torch.Tensor]) -> tuple[str, str | None]:
    """Those of the first floating tensor; the device of any other where there is none."""
    device = "cpu"
    for tensor in tensors:
        device = str(tensor.device)
        if tensor.is_floating_point():
            return device, str(tensor.dtype).removeprefix("torch.")
    return device, None
