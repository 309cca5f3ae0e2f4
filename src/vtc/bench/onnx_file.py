"""An ONNX file as a case: random inputs of the sizes that the file declares."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from vtc.bench.case import Case, UserInputs
from vtc.errors import InvalidOptionError
from vtc.graph.onnx import examples, has_dynamic_sizes, imported


@dataclass
class OnnxCase(Case):
    """A case whose float64 twin is imported anew.

    The dtypes of casts are part of an ONNX graph, and would undo what casting the weights does.
    """

    path: str = ""

    def double(self) -> Case:
        inputs = copy.deepcopy(self.inputs)
        inputs.cast(torch.float64)
        model = cast(nn.Module, imported(self.path, floating=torch.float64)).to(self.device)
        twin = self._with(model, inputs)
        twin.dtype = torch.float64
        return twin


def onnx_case(
    path: str, batch: int, device: torch.device, dtype: torch.dtype | None, seed: int
) -> Case:
    """Floating-point tensors of the file become `dtype` if one is given.

    Dynamic dimensions have the sizes of `example_inputs`. Raises OnnxFileError,
    UnsupportedOnnxError, MissingExtraError, and InvalidOptionError for a batch size that no input
    has a dimension for.
    """
    model = cast(nn.Module, imported(path, floating=dtype)).to(device)
    if batch != 1 and not has_dynamic_sizes(model):
        raise InvalidOptionError("batch", batch, f"1: the sizes of {path} are fixed")
    args = examples(model, batch=batch, seed=seed, device=device)
    weights = [t for t in (*model.parameters(), *args) if t.is_floating_point()]
    kind = dtype or (weights[0].dtype if weights else torch.float32)
    config = {
        "size": None,
        "layers": None,
        "context": None,
        "dtype": str(kind).removeprefix("torch."),
        "description": ", ".join(str(tuple(a.shape)) for a in args),
    }
    return OnnxCase(path, model, UserInputs(args, {}), config, device, kind, path=path)
