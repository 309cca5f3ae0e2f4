"""Element types of tile programs, in memory and in registers."""

from __future__ import annotations

from enum import Enum

import torch


class DType(Enum):
    """An element type. Its value is its name in texts and in the bytecode table."""

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

    @property
    def torch_dtype(self) -> torch.dtype:
        return _TORCH[self]

    @property
    def itemsize(self) -> int:
        """Bytes an element in memory."""
        return int(self.torch_dtype.itemsize)

    @property
    def compute(self) -> DType:
        """The type that values of this one have in registers.

        Half-precision floats are computed in f32 and rounded when they are stored or cast; narrow
        integers are computed in i32 and wrapped likewise.
        """
        return _COMPUTE.get(self, self)

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.BF16, DType.F16)

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @staticmethod
    def of(dtype: torch.dtype) -> DType | None:
        """The DType of a torch dtype; None where tile programs have none."""
        return _OF.get(dtype)

    def __str__(self) -> str:
        return self.value


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
