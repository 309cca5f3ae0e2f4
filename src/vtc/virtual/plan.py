"""The graph as planning sees it: tensors, movement operators, regions, and what an engine answers.

The compiler builds a `PlanGraph` from the captured program and its regions; from here on there are
names, shapes and index maps only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vtc.graph.movement import Movement
from vtc.index.sizes import Size, as_size

if TYPE_CHECKING:
    from vtc.virtual.strategy import Resolved

TensorKind = Literal["input", "updated", "constant", "internal"]
Default = Literal["view", "fold", "inplace", "copy"]

HINT = 128
"""The size that costs take a symbolic dimension to have."""

COPY_BACK = ".copy_"
"""What the name of the step that copies a final value into an updated input ends with."""


@dataclass(frozen=True)
class PlanTensor:
    """One tensor. `shape` and `stride` (the eager ones) count elements, `itemsize` is in bytes.

    kind: "input" and "constant" are read only, "updated" is an input that the program itself
        updates, "internal" is made by a step.
    output: the program returns it. returned: the program returns it or a view of it, so that it
        needs storage of its own, and what is a view in eager PyTorch stays that view.
    """

    name: str
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    itemsize: int
    kind: TensorKind = "internal"
    output: bool = False
    returned: bool = False

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"{self.name}: {len(self.shape)} sizes but {len(self.stride)} strides")

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        strides = ", ".join(map(str, self.stride))
        note = " output" if self.output else ""
        return f"{self.name}: {self.kind}{note} [{sizes}] stride ({strides}) x {self.itemsize} B"


@dataclass(frozen=True, eq=False)
class PlanMovement:
    """A movement operator; its name is that of the tensor it makes."""

    name: str
    movement: Movement
    sources: tuple[str, ...]
    lookups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.sources) != self.movement.sources:
            raise ValueError(
                f"{self.name}: {self.movement.operator} moves {self.movement.sources} tensors, "
                f"{len(self.sources)} are named"
            )

    def __str__(self) -> str:
        operands = ", ".join((*self.sources, *(f"[{name}]" for name in self.lookups)))
        return f"{self.name} = {self.movement.operator}({operands})"


@dataclass(frozen=True, eq=False)
class PlanRegion:
    """A region of compute operators. `reads` may name outputs of movement operators."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flops: int = 0

    def __str__(self) -> str:
        return f"{', '.join(self.writes)} = region {self.name}({', '.join(self.reads)})"


PlanStep = PlanMovement | PlanRegion


@dataclass(frozen=True, eq=False)
class PlanGraph:
    """Tensors and steps in program order.

    updated: updated input -> the tensor whose value the program leaves in it.
    Raises ValueError for a step that reads what no earlier step made, a tensor made twice, and
    names that are not there.
    """

    tensors: Mapping[str, PlanTensor]
    steps: tuple[PlanStep, ...]
    updated: Mapping[str, str]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        made = {name for name, tensor in self.tensors.items() if tensor.kind != "internal"}
        names: set[str] = set()
        for step in self.steps:
            if step.name in names:
                raise ValueError(f"two steps are named {step.name}")
            names.add(step.name)
            for name in operands(step):
                if name not in made:
                    raise ValueError(f"{step.name} reads {name}, which no earlier step makes")
            for name in results(step):
                if name in made or name not in self.tensors:
                    raise ValueError(f"{step.name} makes {name}, which is made twice or unknown")
                made.add(name)
        for name in (*self.outputs, *self.updated.values()):
            if name not in made:
                raise ValueError(f"{name} is an output or a final value, but nothing makes it")
        for name in self.updated:
            if self.tensors[name].kind != "updated":
                raise ValueError(f"{name} is updated, but is of kind {self.tensors[name].kind}")

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Step name -> its number in program order; copies back into updated inputs come last."""
        names = [step.name for step in self.steps]
        names += [name + COPY_BACK for name in self.updated]
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def step_names(self) -> tuple[str, ...]:
        """The names that `numbers` numbers."""
        return tuple(self.numbers)

    @cached_property
    def movements(self) -> Mapping[str, PlanMovement]:
        """The movement operators by name, in program order."""
        return {step.name: step for step in self.steps if isinstance(step, PlanMovement)}

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Internal tensor -> number of the step that makes it."""
        return {name: n for n, step in enumerate(self.steps) for name in results(step)}

    @cached_property
    def finals(self) -> Mapping[str, tuple[str, ...]]:
        """Tensor -> the updated inputs that are left holding its value."""
        table: dict[str, tuple[str, ...]] = {}
        for name, final in self.updated.items():
            table[final] = (*table.get(final, ()), name)
        return table

    def __str__(self) -> str:
        lines = [str(tensor) for tensor in self.tensors.values()]
        lines += [str(step) for step in self.steps]
        lines += [f"{name} <- {final}" for name, final in self.updated.items()]
        return "\n".join((*lines, f"return {', '.join(self.outputs)}"))


def operands(step: PlanStep) -> tuple[str, ...]:
    """The tensors whose values a step needs, runtime index tensors included."""
    return step.reads if isinstance(step, PlanRegion) else (*step.sources, *step.lookups)


def results(step: PlanStep) -> tuple[str, ...]:
    """The tensors that a step makes."""
    return step.writes if isinstance(step, PlanRegion) else (step.name,)


def storage_stride(tensor: PlanTensor) -> tuple[Size, ...]:
    """Strides, in elements, of the tensor's own storage.

    They are the eager ones where these leave no gaps, and where the caller sees them (inputs,
    outputs). Another tensor that is no view any more is dense, its dimensions in the same order.
    """
    shape, stride = tuple(map(as_size, tensor.shape)), tuple(map(as_size, tensor.stride))
    seen = tensor.output or tensor.returned
    kept = tensor.kind != "internal" or (seen and 0 not in stride)
    if kept or any(not isinstance(s, int) for s in (*shape, *stride)):
        return stride
    order = sorted(range(len(shape)), key=lambda d: (stride[d], -d))
    dense = [1] * len(shape)
    step = 1
    for d in order:
        dense[d] = step
        step *= max(int(shape[d]), 1)
    same = all(n == 1 or a == b for n, a, b in zip(shape, stride, dense, strict=True))
    return stride if same else tuple(dense)


def size_hint(size: Size) -> int:
    """`size`, or for a symbolic one its value with every symbol at `HINT`: for costs only."""
    if isinstance(size, int):
        return size
    return int(size.subs(dict.fromkeys(size.free_symbols, HINT)))


class Engine(Protocol):
    """What planning must know of an engine. Answers must not change while a plan is searched."""

    def default(self, movement: PlanMovement) -> Default:
        """What becomes of a movement operator with no chosen edge.

        "view": a free alias; "fold": its consumers, all generated code, read through its map at no
        cost; "inplace": a scatter done in the storage of an updated input; "copy": a kernel that
        reads and writes.
        """
        ...

    def loads(self, region: str, tensor: str, map: Resolved) -> bool:
        """True if `region` can read `tensor` through this map without a copy."""
        ...

    def stores(self, region: str, tensor: str, map: Resolved) -> bool:
        """True if `region` can write `tensor` through this map without a copy."""
        ...
