"""TensorProto -> torch.Tensor, trusting nothing that the proto says of itself.

Sizes are checked against the data that is there before anything is allocated. External data is read
from regular files inside of the model's folder only, and mapped rather than read.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor

from vtc.graph.onnx.dtypes import DTYPES, PACKED, name_of

# Which repeated field holds a type's elements where there is no raw_data, and as what.
FIELDS = {
    TensorProto.FLOAT: ("float_data", np.float32),
    TensorProto.COMPLEX64: ("float_data", np.float32),
    TensorProto.DOUBLE: ("double_data", np.float64),
    TensorProto.COMPLEX128: ("double_data", np.float64),
    TensorProto.INT64: ("int64_data", np.int64),
    TensorProto.UINT32: ("uint64_data", np.uint32),
    TensorProto.UINT64: ("uint64_data", np.uint64),
}
COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


class Refused(Exception):  # noqa: N818 - becomes an OnnxFileError, which knows the file
    """A tensor that is not what it says; the message says why."""


def read_tensor(proto: TensorProto, folder: Path) -> Tensor:
    """The tensor, with external data from `folder`. Types of less than a byte come unpacked.

    Raises `Refused`.
    """
    kind, dims = proto.data_type, tuple(proto.dims)
    label = f"tensor {proto.name!r}"
    if kind not in DTYPES and kind not in PACKED:
        raise Refused(f"{label} has element type {name_of(kind)}, which torch does not have")
    if any(d < 0 for d in dims):
        raise Refused(f"{label} has the negative size {min(dims)}")
    count = math.prod(dims)
    size = stored_bytes(kind, count)
    if proto.HasField("segment"):
        raise Refused(f"{label} is stored in segments")
    if proto.data_location == TensorProto.EXTERNAL:
        data = _external(proto, folder, size, label)
    elif proto.HasField("raw_data"):
        data = np.frombuffer(bytearray(proto.raw_data), dtype=np.uint8)
    else:
        data = _typed(proto, count, label)
    if data.size != size:
        raise Refused(f"{label} of shape {list(dims)} needs {size} bytes and has {data.size}")
    return _viewed(data, kind, dims)


def stored_bytes(kind: int, count: int) -> int:
    if kind in PACKED:
        return -(-count * PACKED[kind][1] // 8)
    return count * DTYPES[kind].itemsize


def _typed(proto: TensorProto, count: int, label: str) -> np.ndarray:
    """The bytes of a repeated field: int32_data for all that is not in FIELDS."""
    kind = proto.data_type
    field, storage = FIELDS.get(kind, ("int32_data", None))
    values = getattr(proto, field)
    if storage is None:
        width = 1 if kind in PACKED else DTYPES[kind].itemsize
        storage = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
        expected = stored_bytes(kind, count) if kind in PACKED else count
        made = np.array(values, dtype=np.int32).astype(storage)
    else:
        expected = 2 * count if kind in COMPLEX else count
        made = np.array(values, dtype=np.uint64 if field == "uint64_data" else storage)
        made = made.astype(storage)
    if made.size != expected:
        raise Refused(f"{label} has {made.size} elements in {field} and needs {expected}")
    return made.view(np.uint8) if made.size else np.empty(0, np.uint8)


def _viewed(data: np.ndarray, kind: int, dims: tuple[int, ...]) -> Tensor:
    count = math.prod(dims)
    if kind in PACKED:
        return _unpacked(torch.from_numpy(data), kind, count).reshape(dims)
    dtype = DTYPES[kind]
    if count == 0:
        return torch.empty(dims, dtype=dtype)
    flat = torch.from_numpy(data)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    # A bool of another byte than 0 and 1 is neither true nor false to vector code.
    typed = flat != 0 if dtype == torch.bool else flat.view(dtype)
    return typed.reshape(dims)


def _unpacked(data: Tensor, kind: int, count: int) -> Tensor:
    """Elements of 4 or 2 bits, the first in the lowest bits, each in a byte of its own."""
    dtype, bits = PACKED[kind]
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    parts = (data.unsqueeze(1) >> shifts) & (2**bits - 1)
    flat = parts.reshape(-1)[:count]
    if dtype == torch.uint8:
        return flat
    wide = flat.to(torch.int8)
    return torch.where(wide >= 2 ** (bits - 1), wide - 2**bits, wide)


def _external(proto: TensorProto, folder: Path, size: int, label: str) -> np.ndarray:
    entries = {entry.key: entry.value for entry in proto.external_data}
    if not all(isinstance(text, str) for item in entries.items() for text in item):
        raise Refused(f"{label} has external data whose location is no text")
    location = entries.get("location", "")
    offset = _number(entries, "offset", 0, label)
    length = _number(entries, "length", size, label)
    if length != size:
        raise Refused(f"{label} needs {size} bytes and its external data has {length}")
    path = inside(folder, location, label)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{label} has external data {location!r}, which is no regular file")
            if offset + size > status.st_size:
                raise Refused(
                    f"{label} needs bytes {offset} to {offset + size} of {location!r}, which has "
                    f"{status.st_size}"
                )
            if size == 0:
                return np.empty(0, np.uint8)
            # Mapped, not read: a file of holes, or one that many tensors name, costs no memory.
            return np.memmap(file, dtype=np.uint8, mode="c", offset=offset, shape=(size,))
    except OSError as error:
        reason = error.strerror or str(error)
        raise Refused(f"{label} has external data {location!r}: {reason}") from error


def _number(entries: dict[str, str], key: str, default: int, label: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refused(f"{label} has the external data {key} {text!r}")
    return int(text)


def inside(folder: Path, location: str, label: str) -> Path:
    """The file that a relative `location` names, links followed. Raises `Refused` for one that is
    not in `folder`."""
    if (
        not location
        or "\0" in location
        or PurePosixPath(location).is_absolute()
        or PureWindowsPath(location).drive
    ):
        raise Refused(
            f"{label} has external data at {location!r}, not a path in the model's folder"
        )
    try:
        root = folder.resolve(strict=True)
        path = (root / location).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise Refused(f"{label} has external data {location!r}, which cannot be found") from error
    if not path.is_relative_to(root):
        raise Refused(f"{label} has external data {location!r}, outside of the model's folder")
    return path
