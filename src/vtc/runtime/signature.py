"""The signature that an exported model was compiled for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vtc import errors


class Signature:
    """Names, shapes, dtypes and devices of the tensor arguments, and the values of the others."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.expected = dict(_leaves(args, kwargs))
        self.facts = {
            name: (tuple(v.shape), v.dtype, v.device) if isinstance(v, torch.Tensor) else None
            for name, v in self.expected.items()
        }
        self.plain = {
            name: v
            for name, v in self.expected.items()
            if isinstance(v, int | float | bool | str) or v is None
        }
        self.expected = {}

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises SignatureError for the first argument that differs."""
        given = dict(_leaves(args, kwargs))
        if given.keys() != self.facts.keys():
            extra = [n for n in given if n not in self.facts]
            missing = [n for n in self.facts if n not in given]
            name = (extra or missing)[0]
            raise errors.SignatureError(
                name, "count", f"{len(self.facts)} arguments", f"{len(given)} arguments"
            )
        for name, fact in self.facts.items():
            value = given[name]
            if fact is None:
                if name in self.plain and value != self.plain[name]:
                    raise errors.SignatureError(name, "value", self.plain[name], value)
                continue
            if not isinstance(value, torch.Tensor):
                raise errors.SignatureError(name, "type", "Tensor", type(value).__name__)
            shape, dtype, device = fact
            if tuple(value.shape) != shape:
                raise errors.SignatureError(name, "shape", shape, tuple(value.shape))
            if value.dtype != dtype:
                raise errors.SignatureError(name, "dtype", dtype, value.dtype)
            if value.device != device:
                raise errors.SignatureError(name, "device", device, value.device)


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Arguments by name: args[0], args[1][2], the keyword's name."""
    found = []
    for path, leaf in pytree.tree_flatten_with_path(tuple(args))[0]:
        found.append((f"args{pytree.keystr(path)}", leaf))
    for path, leaf in pytree.tree_flatten_with_path(dict(kwargs))[0]:
        found.append((pytree.keystr(path).replace("['", "", 1).replace("']", "", 1), leaf))
    return found
