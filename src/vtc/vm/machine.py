"""The native machine: a module is parsed once, encoded a shape, and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vtc.errors import EngineUnavailableError
from vtc.program.module import Module
from vtc.vm.image import image_of

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


def instruction_set() -> str:
    """The instruction set that runs here: "avx512", "avx2" or "baseline".

    The environment variable VTC_ISA asks for a lesser one. Raises EngineUnavailableError.
    """
    _require_native()
    return _native.instruction_set()


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

    def run(self, pointers: Sequence[int], params: Sequence[float] = ()) -> None:
        """Runs the program, without the interpreter lock.

        pointers: the address of the first element of each buffer, 0 for temporaries. params: the
        module's runtime scalars. Raises IndexError if a runtime index was out of range (nothing
        outside the buffers was touched; outputs are then unspecified), ValueError for a wrong
        number of pointers or params.
        """
        fault = self._run(pointers, params)
        if fault:
            raise self._index_error(fault)

    def _index_error(self, fault: int) -> IndexError:
        kernel = list(self._module.kernels())[(fault >> 32) - 1]
        buffer = self._module.buffers[fault >> 8 & 0xFFFFFF].name
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
