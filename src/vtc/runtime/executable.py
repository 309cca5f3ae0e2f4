"""Executables: a schedule and its implementations as one Python function, written out as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._sympy.printers import PythonPrinter

from vtc.graph.program import InputView
from vtc.lowering.schedule import Buffer, Operand, Schedule, Step, View
from vtc.runtime.outputs import Placed


class Executable:
    """Runs a schedule on the graph's inputs; `source` is the function that does it.

    The arena is allocated at each call, so that an output stays valid for as long as it is held.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: Sequence[tuple[Callable[..., Any], Step]],
        inputs: int,
        constants: Sequence[torch.Tensor] = (),
    ) -> None:
        """`inputs` is the number of arguments of a call; `constants` are the inputs after them."""
        self.schedule = schedule
        self.source, names = write(schedule, [step for _, step in steps], inputs)
        names.update({f"input{inputs + k}": value for k, value in enumerate(constants)})
        for k, (call, _) in enumerate(steps):
            names[f"step{k}"] = call
        exec(compile(self.source, "<vtc schedule>", "exec"), names)
        self.run: Callable[..., tuple[Any, ...]] = names["run"]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self.run(*args)


def write(schedule: Schedule, steps: Sequence[Step], inputs: int) -> tuple[str, dict[str, Any]]:
    """The text of `run(*inputs)`, and the names that it uses."""
    writer = _Writer(schedule, steps, inputs)
    return writer.text(), writer.names


class _Writer:
    def __init__(self, schedule: Schedule, steps: Sequence[Step], inputs: int) -> None:
        self.schedule, self.steps, self.inputs = schedule, steps, inputs
        self.names: dict[str, Any] = {
            "empty_strided": torch.empty_strided,
            "as_strided": torch.as_strided,
            "placed": Placed(schedule.forms),
            "math": math,  # these two in printed sizes
            "torch": torch,
        }
        self.used: set[str] = set()
        self.lines: list[str] = []
        self.views: dict[Operand, str] = {}
        self.last = self._last_uses()

    def text(self) -> str:
        buffers = {b.name: b for b in self.schedule.buffers}
        made: set[str] = set()
        for k, step in enumerate(self.steps):
            for operand in step.operands:
                if operand.kind == "buffer" and operand.source not in made:
                    made.add(str(operand.source))
                    self._allocate(buffers[str(operand.source)])
            arguments = ", ".join(self._name(o) for o in step.operands)
            results = "".join(f"{_local(r)}, " for r in step.results)
            self.lines.append(
                f"{results}= step{k}({arguments})" if results else f"step{k}({arguments})"
            )
            dead = [name for name, last in self.last.items() if last == k]
            dead += [v for o, v in self.views.items() if _local(str(o.source)) in dead]
            if dead:
                self.lines.append(f"del {', '.join(dead)}")
        outputs = [self._output(o) for o in self.schedule.outputs]
        self.lines.append(f"outputs = ({''.join(f'{o}, ' for o in outputs)})")
        moved = " or ".join(
            f"{outputs[k]}.stride() != {form.view.stride}"
            for k, form in self.schedule.forms.items()
        )
        if moved:
            self.lines.append(f"if {moved}:")
            self.lines.append("    outputs = placed(outputs)")
        symbols = [
            f"{name} = {read_symbol(f'input{symbol.input}', symbol.kind, symbol.dim)}"
            for name, symbol in self.schedule.symbols.items()
            if name in self.used
        ]
        parameters = ", ".join(f"input{i}" for i in range(self.inputs))
        body = "\n    ".join([*symbols, *self.lines, "return outputs"])
        return f"def run({parameters}):\n    {body}\n"

    def _sizes(self, sizes: Sequence[Any]) -> str:
        """A tuple's text."""
        return f"({''.join(f'{self._size(n)}, ' for n in sizes)})"

    def _size(self, size: Any) -> str:
        if not isinstance(size, torch.SymInt):
            return repr(size)
        self.used.update(str(s) for s in size.node.expr.free_symbols)
        return str(PythonPrinter().doprint(size.node.expr))

    def _view(self, name: str, view: View, kind: str) -> str:
        # An input or a result may itself start inside its storage; an arena buffer never does.
        start = f"{name}.storage_offset() + " if kind in ("input", "result") else ""
        shape, stride = self._sizes(view.shape), self._sizes(view.stride)
        return f"as_strided({name}, {shape}, {stride}, {start}{self._size(view.offset)})"

    def _allocate(self, buffer: Buffer) -> None:
        dtype, device = f"dtype_{buffer.name}", f"device_{buffer.name}"
        self.names[dtype], self.names[device] = buffer.dtype, buffer.device
        self.lines.append(
            f"{_local(buffer.name)} = empty_strided({self._sizes(buffer.shape)}, "
            f"{self._sizes(buffer.stride)}, "
            f"dtype={dtype}, device={device})"
        )

    def _name(self, operand: Operand) -> str:
        name = f"input{operand.source}" if operand.kind == "input" else _local(str(operand.source))
        if operand.view is None:
            return name
        if operand not in self.views:
            self.views[operand] = f"view{len(self.views)}"
            self.lines.append(
                f"{self.views[operand]} = {self._view(name, operand.view, operand.kind)}"
            )
        return self.views[operand]

    def _output(self, output: Any) -> str:
        if isinstance(output, InputView):
            view = View(output.size, output.stride, output.offset)
            return self._view(f"input{output.input}", view, "input")
        return self._name(output) if isinstance(output, Operand) else repr(output)

    def _last_uses(self) -> dict[str, int]:
        """Results and buffers that no output needs -> the last step that does."""
        kept = {
            o.source for o in self.schedule.outputs if isinstance(o, Operand) and o.kind != "input"
        }
        last: dict[str, int] = {}
        for k, step in enumerate(self.steps):
            for operand in step.operands:
                if operand.kind != "input" and operand.source not in kept:
                    last[_local(str(operand.source))] = k
            last.update(
                {_local(r): k for r in step.results if r not in kept and _local(r) not in last}
            )
        return last


def _local(name: str) -> str:
    return f"t_{name}"


def read_symbol(argument: str, kind: str, dim: int) -> str:
    """The text that reads a size symbol from an argument of a call; kinds as `Symbol`'s."""
    read = {
        "value": "",
        "size": f".size({dim})",
        "stride": f".stride({dim})",
        "offset": ".storage_offset()",
    }
    return argument + read[kind]
