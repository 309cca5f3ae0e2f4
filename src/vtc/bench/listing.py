"""The programs of a model: what `vtc dis` shows."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch._dynamo

from vtc.bench.suite import Request
from vtc.errors import UnknownChoiceError
from vtc.lowering.settings import Settings
from vtc.options import Options
from vtc.program.module import Module
from vtc.runtime import dvm_compile
from vtc.vm.dis import listing
from vtc.vm.machine import Encoded, Machine


@dataclass
class Recorder:
    """A machine for the engine that notes which modules are encoded for which sizes."""

    machines: list[tuple[Module, Machine]] = field(default_factory=list)
    encoded: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def machine(self, module: Module) -> Recorded:
        machine = Machine(module)
        self.machines.append((module, machine))
        return Recorded(self, len(self.machines) - 1, machine)


@dataclass(frozen=True)
class Recorded:
    """One module's machine, which notes the sizes that it is asked for."""

    recorder: Recorder
    number: int
    machine: Machine

    def encode(self, sizes: Sequence[int]) -> Encoded:
        self.recorder.encoded.append((self.number, tuple(sizes)))
        return self.machine.encode(sizes)


def programs(request: Request, shape: Mapping[str, int]) -> str:
    """The listing of every program that one call of the model runs.

    shape: other values for size symbols than those of the call. Raises UnknownChoiceError for a
    symbol that no module has, EngineUnavailableError where the machine is not built, and what
    `models.build` raises.
    """
    recorder = Recorder()
    settings = Settings("latency", Options(), engine="dvm")
    backend = functools.partial(
        dvm_compile.compile_graph, settings=settings, machine=recorder.machine
    )
    with torch.no_grad():
        case = request.build()
        case.reset()
        torch._dynamo.reset()
        run = dvm_compile.dynamic(case.model, backend)
        run(*case.args, **case.kwargs)
    known = {s for module, _ in recorder.machines for s in module.symbols}
    for name in shape:
        if name not in known:
            raise UnknownChoiceError("size symbol", name, sorted(known))
    texts = []
    for number, sizes in dict.fromkeys(recorder.encoded):
        module, machine = recorder.machines[number]
        values = {**dict(zip(module.symbols, sizes, strict=True)), **shape}
        chosen = [values[s] for s in module.symbols]
        at = ", ".join(f"{s}={n}" for s, n in zip(module.symbols, chosen, strict=True))
        heading = f"module {number}" + (f" at {at}" if at else "")
        texts.append(f"{heading}\n{listing(module, machine.encode(chosen).words)}")
    return "\n\n".join(texts)
