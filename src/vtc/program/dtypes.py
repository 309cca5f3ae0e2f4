"""Element types of tile programs, in memory and in registers."""

from __future__ import annotations

from enum import Enum

import torch


class DType(Enum):
    """An element type. Its value is its name in texts and in the bytecode table."""

    torch_dtype: torch.dtype
    itemsize: int
    """Bytes an element in memory."""
    compute: DType
    """The type that values of this one have in registers.

    Half-precision floats are computed in f32 and rounded when they are stored or cast; narrow
    integers are computed in i32 and wrapped likewise.
    """
    is_float: bool
    is_integer: bool

    F64 = "f64"
    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @staticmethod
    def of(dtype: torch.dtype) -> DType | None:
        """The DType of a torch dtype; None where tile programs have none."""
        return _OF.get(dtype)

    def __str__(self) -> str:
        return str(self.value)

    # Lowering asks for these thousands of times: one object a member, and plain attributes.
    __hash__ = object.__hash__


_TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
_OF = {dtype: own for own, dtype in _TORCH.items()}
_COMPUTE = {
    DType.BF16: DType.F32,
    DType.F16: DType.F32,
    DType.I16: DType.I32,
    DType.I8: DType.I32,
    DType.U8: DType.I32,
}

for _own, _dtype in _TORCH.items():
    _own.torch_dtype, _own.itemsize = _dtype, _dtype.itemsize
    _own.compute = _COMPUTE.get(_own, _own)
    _own.is_float = _dtype.is_floating_point
    _own.is_integer = not _own.is_float and _own is not DType.BOOL
