"""The file of a saved program: a description as JSON, and tensors and words that are mapped.

    | bytes | contents |
    |---|---|
    | 0..8 | MAGIC |
    | 8..40 | length and CRC-32 of the description, length of the file, CRC-32 of the data |
    | 40.. | the description, UTF-8 |
    | .. | data, each part at a multiple of 64 bytes |

The description says of every part of the data where it lies and what it is. Nothing in the file is
code of the processor's, and nothing of it is believed: see `loaded.py`.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vtc.errors import ArtifactError

MAGIC = b"VTCDVM1\n"
HEAD = struct.Struct("<8sQQQQ")
ALIGNED = 64
MOST_DESCRIPTION = 1 << 28
CHUNK = 1 << 24


@dataclass
class Parts:
    """The data of a file that is being written: flat tensors, by where they will lie."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    end: int = 0

    def add(self, flat: torch.Tensor) -> int:
        """The place of a dense tensor of one dimension, in bytes from the start of the data."""
        offset = _aligned(self.end)
        self.tensors.append(flat)
        self.offsets.append(offset)
        self.end = offset + flat.numel() * flat.element_size()
        return offset

    def chunks(self) -> Iterator[memoryview]:
        at = 0
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            yield memoryview(bytes(offset - at))
            data = memoryview(tensor.view(torch.uint8).numpy()).cast("B")
            for first in range(0, len(data), CHUNK):
                yield data[first : first + CHUNK]
            at = offset + len(data)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNED) * ALIGNED


def write(path: Path, description: dict[str, Any], parts: Parts) -> None:
    """Writes the file as a whole: nobody sees half of it. Raises OSError."""
    text = json.dumps(description).encode()
    start = _aligned(HEAD.size + len(text))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(bytes(HEAD.size) + text + bytes(start - HEAD.size - len(text)))
            crc = 0
            for chunk in parts.chunks():
                crc = zlib.crc32(chunk, crc)
                file.write(chunk)
            file.seek(0)
            head = HEAD.pack(MAGIC, len(text), zlib.crc32(text), start + parts.end, crc)
            file.write(head)
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@dataclass(frozen=True, eq=False)
class Contents:
    """A file that was opened: `data` is mapped, privately, as bytes."""

    path: Path
    description: dict[str, Any]
    data: torch.Tensor

    def part(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements at a byte of the data. Raises ArtifactError where they are not all
        there."""
        size = count * dtype.itemsize
        inside = 0 <= offset <= self.data.numel() - size and count >= 0
        if not inside or offset % ALIGNED:
            raise ArtifactError(self.path, "a part of its data lies outside of it")
        return self.data[offset : offset + size].view(dtype)


def read(path: Path, check: bool) -> Contents:
    """Opens a file; `check` compares the checksum of its data, which reads all of it.

    Raises ArtifactError for a file that is none of ours or is damaged, OSError.
    """
    with path.open("rb") as file:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size or head[:8] != MAGIC:
            raise ArtifactError(path, "it is no program that vtc.save wrote")
        _, length, crc, size, data_crc = HEAD.unpack(head)
        actual = os.fstat(file.fileno()).st_size
        if size != actual or length > min(MOST_DESCRIPTION, size - HEAD.size):
            raise ArtifactError(path, f"it has {actual} of {size} bytes")
        text = file.read(length)
    if zlib.crc32(text) != crc:
        raise ArtifactError(path, "its description is damaged")
    try:
        description = json.loads(text)
    except ValueError as error:
        raise ArtifactError(path, "its description is damaged") from error
    if not isinstance(description, dict):
        raise ArtifactError(path, "its description is damaged")
    start = _aligned(HEAD.size + length)
    whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    data = whole[min(start, size) :]
    if check and checksum(data) != data_crc:
        raise ArtifactError(path, "its data are damaged")
    return Contents(path, description, data)


def checksum(data: torch.Tensor) -> int:
    """The CRC-32 of bytes."""
    view, crc = memoryview(data.numpy()), 0
    for first in range(0, len(view), CHUNK):
        crc = zlib.crc32(view[first : first + CHUNK], crc)
    return crc
