"""ONNX's element types as torch dtypes."""

from __future__ import annotations

from typing import Any

import torch
from onnx import TensorProto

_KNOWN = dict(zip(TensorProto.DataType.keys(), TensorProto.DataType.values(), strict=True))


def _numbered(by_name: dict[str, Any]) -> dict[int, Any]:
    """By number, without the types that the installed onnx is too old to know."""
    return {_KNOWN[name]: value for name, value in by_name.items() if name in _KNOWN}


DTYPES: dict[int, torch.dtype] = _numbered(
    {
        "FLOAT": torch.float32,
        "UINT8": torch.uint8,
        "INT8": torch.int8,
        "UINT16": torch.uint16,
        "INT16": torch.int16,
        "INT32": torch.int32,
        "INT64": torch.int64,
        "BOOL": torch.bool,
        "FLOAT16": torch.float16,
        "DOUBLE": torch.float64,
        "UINT32": torch.uint32,
        "UINT64": torch.uint64,
        "COMPLEX64": torch.complex64,
        "COMPLEX128": torch.complex128,
        "BFLOAT16": torch.bfloat16,
        "FLOAT8E4M3FN": torch.float8_e4m3fn,
        "FLOAT8E4M3FNUZ": torch.float8_e4m3fnuz,
        "FLOAT8E5M2": torch.float8_e5m2,
        "FLOAT8E5M2FNUZ": torch.float8_e5m2fnuz,
        "FLOAT8E8M0": torch.float8_e8m0fnu,
    }
)

PACKED: dict[int, tuple[torch.dtype, int]] = _numbered(
    {
        "INT4": (torch.int8, 4),
        "UINT4": (torch.uint8, 4),
        "INT2": (torch.int8, 2),
        "UINT2": (torch.uint8, 2),
    }
)
"""Integer types of less than a byte: the dtype that carries them unpacked, and their bits. torch
computes with none of them."""

ORDINARY_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def name_of(element_type: int) -> str:
    """FLOAT, INT64, ..., or the number of a type that this onnx does not know."""
    return next(
        (name for name, value in _KNOWN.items() if value == element_type), str(element_type)
    )
