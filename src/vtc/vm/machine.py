"""The native machine: a module is parsed once, encoded a shape, and run."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import get_num_threads

from vtc.errors import EngineUnavailableError
from vtc.program.dtypes import DType
from vtc.program.module import Module
from vtc.vm.image import image_of
from vtc.vm.isa import TYPES, header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_missing = ""
try:
    from vtc.vm import _native
except ImportError as error:
    _native = None  # type: ignore[assignment]
    _missing = str(error)


def _require_native() -> None:
    if _native is None:
        raise EngineUnavailableError("dvm", f"its native module does not load ({_missing})")


def native_module() -> Any:
    """The module `vtc.vm._native`. Raises EngineUnavailableError where it is not built."""
    _require_native()
    return _native


def instruction_set() -> str:
    """The instruction set that runs here: "avx512", "avx2" or "baseline".

    The environment variable VTC_ISA asks for a lesser one. Raises EngineUnavailableError.
    """
    _require_native()
    return _native.instruction_set()


def panel_width() -> int:
    """Columns of a panel in which this machine wants the right operands of products packed."""
    _require_native()
    return _native.panel_width()


def pairs_bf16() -> bool:
    """Does this machine multiply pairs of bf16, two rows of k side by side in panels?"""
    _require_native()
    return _native.pairs_bf16()


def workspace_peak() -> int:
    """The most bytes of arenas and registers that programs on the CPU had at once since this was
    last asked. They keep their memory from one run to the next."""
    return 0 if _native is None else _native.take_workspace_peak()


def features() -> dict[str, Any]:
    """What of this machine a program with packed operands was made for."""
    return {
        "instruction_set": instruction_set(),
        "panel_width": panel_width(),
        "pairs_bf16": pairs_bf16(),
    }


@functools.cache
def isa_version() -> str:
    """A digest of the instruction set: programs of another one mean something else."""
    return hashlib.sha256(header().encode()).hexdigest()[:16]


class Validated:
    """A program that came as words."""

    def __init__(self, program: _native.Program) -> None:
        self._program = program
        self._run = program.run

    def run(self, pointers: Sequence[int], params: Sequence[float] = ()) -> int:
        """As `Encoded.run`, but gives the number of a fault instead of raising IndexError."""
        return self._run(pointers, params, get_num_threads())

    @property
    def extents(self) -> list[int]:
        """Elements of each buffer that the program may touch."""
        return self._program.extents

    @property
    def types(self) -> list[DType]:
        return [TYPES[n] for n in self._program.types]


def from_words(words: Any) -> Validated:
    """The program of these words. Raises ValueError unless it is safe to run."""
    _require_native()
    return Validated(_native.Program.from_words(words))


class Encoded:
    """A program for one choice of sizes. It may be run from several threads at once."""

    def __init__(self, program: _native.Program, module: Module) -> None:
        self._program = program
        self._run = program.run
        self._module = module

    @property
    def words(self) -> NDArray[np.uint64]:
        """A copy of the program's words (see `vtc.vm.isa`)."""
        return self._program.words()

    @property
    def arena_bytes(self) -> int:
        return self._program.arena_bytes

    @property
    def extents(self) -> list[int]:
        """Elements of each buffer."""
        return self._program.extents

    @property
    def used(self) -> list[bool]:
        """For each buffer, whether the program touches it at these sizes."""
        return self._program.used

    def run(self, pointers: Sequence[int], params: Sequence[float] = ()) -> None:
        """Runs the program on PyTorch's number of threads, without the interpreter lock.

        pointers: the address of the first element of each buffer, 0 for temporaries. params: the
        module's runtime scalars. Raises IndexError if a runtime index was out of range (nothing
        outside the buffers was touched; outputs are then unspecified), ValueError for a wrong
        number of pointers or params.
        """
        fault = self._run(pointers, params, get_num_threads())
        if fault:
            raise index_error(self._module, fault)

    def bind(self, pointers: Sequence[int], open: Sequence[int]) -> Bound:
        """The program on these buffers, but for the `open` ones, whose addresses a run brings.

        pointers: as for `run`; those of open buffers are not looked at. Raises ValueError.
        """
        return Bound(self._program.bind(pointers, open), self._module)

    def timed(self, pointers: Sequence[int], params: Sequence[float] = ()) -> dict[str, int]:
        """Runs the program, and gives the nanoseconds that one thread spent on each kernel."""
        names = [kernel.name for kernel in self._module.kernels()]
        times = self._program.timed(pointers, params, get_num_threads())
        return dict(zip(names, times, strict=True))


class Bound:
    """A program most of whose buffers stay where they are."""

    def __init__(self, program: _native.BoundProgram, module: Module) -> None:
        self._run = program.run
        self._module = module

    def __call__(self, pointers: Sequence[int]) -> None:
        """As `Encoded.run`, on the addresses of the open buffers."""
        fault = self._run(pointers, get_num_threads())
        if fault:
            raise index_error(self._module, fault)


def index_error(module: Module, fault: int) -> IndexError:
    """What a fault says: kernel + 1 (32 bits), buffer (24), term (8)."""
    kernel = list(module.kernels())[(fault >> 32) - 1]
    buffer = module.buffers[fault >> 8 & 0xFFFFFF].name
    return IndexError(
        f"kernel {kernel.name}: an index is out of bounds for a dimension of {buffer} "
        f"(runtime term {fault & 0xFF})"
    )


class Machine:
    """The encoder of one module.

    Raises EngineUnavailableError where the native module does not load, ValueError for a size that
    is no function of integers.
    """

    def __init__(self, module: Module) -> None:
        _require_native()
        self.module = module
        self._encode = _native.Encoder(image_of(module)).encode

    def encode(self, sizes: Sequence[int]) -> Encoded:
        """The program for these values of the module's symbols, by integer arithmetic alone.

        Raises ValueError for a wrong number of sizes, NotImplementedError for a kernel beyond the
        machine's limits (8 dimensions that do not merge, 255 registers) or with an address outside
        of its buffer.
        """
        return Encoded(self._encode(sizes), self.module)


def validate(words: Any) -> None:
    """Raises ValueError unless the words are a program that is safe to run."""
    _require_native()
    _native.Program.from_words(words)
