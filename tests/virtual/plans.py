"""Small plans for the planning tests: a builder, engines, and the graphs that tests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vtc.graph.movement import Movement
from vtc.graph.rules_concat import concat
from vtc.graph.rules_scatter import index_copy, scatter_nd
from vtc.graph.rules_slice import slice_, split
from vtc.graph.rules_view import reshape
from vtc.index.strided import contiguous_strides
from vtc.virtual.plan import (
    Default,
    PlanGraph,
    PlanMovement,
    PlanRegion,
    PlanStep,
    PlanTensor,
    TensorKind,
)
from vtc.virtual.strategy import Resolved
from vtc.virtual.vtog import Vtog


class Builder:
    """Builds a plan step by step; methods return the name of the tensor they make."""

    def __init__(self, itemsize: int = 4) -> None:
        self.itemsize = itemsize
        self.tensors: dict[str, PlanTensor] = {}
        self.steps: list[PlanStep] = []
        self.updated: dict[str, str] = {}
        self.outputs: list[str] = []

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        kind: TensorKind = "internal",
        stride: Sequence[int] | None = None,
    ) -> str:
        strides = tuple(contiguous_strides(shape) if stride is None else stride)
        self.tensors[name] = PlanTensor(name, tuple(shape), strides, self.itemsize, kind)
        return name

    def input(self, name: str, *shape: int) -> str:
        return self.tensor(name, shape, "input")

    def cache(self, name: str, *shape: int) -> str:
        return self.tensor(name, shape, "updated")

    def region(
        self, name: str, reads: Sequence[str], *shape: int, flops: int = 0, region: str = ""
    ) -> str:
        """A region with one result, called `name`; the region is "r_" + name."""
        self.tensor(name, shape)
        self.steps.append(PlanRegion(region or f"r_{name}", tuple(reads), (name,), flops))
        return name

    def regions(self, name: str, reads: Sequence[str], writes: Mapping[str, Sequence[int]]) -> None:
        """A region with several results."""
        for written, shape in writes.items():
            self.tensor(written, shape)
        self.steps.append(PlanRegion(name, tuple(reads), tuple(writes)))

    def move(
        self,
        name: str,
        movement: Movement | None,
        sources: Sequence[str],
        lookups: Sequence[str] = (),
        stride: Sequence[int] | None = None,
    ) -> str:
        assert movement is not None
        if stride is None and movement.view and movement.load is not None:
            view = movement.load.strided(self.tensors[sources[0]].stride)
            stride = None if view is None else [int(n) for n in view.stride]
        self.tensor(name, [int(n) for n in movement.shape], stride=stride)
        self.steps.append(PlanMovement(name, movement, tuple(sources), tuple(lookups)))
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def build(self, *outputs: str, **updated: str) -> PlanGraph:
        for name in outputs:
            old = self.tensors[name]
            self.tensors[name] = PlanTensor(
                name, old.shape, old.stride, old.itemsize, old.kind, output=True
            )
        return PlanGraph(self.tensors, tuple(self.steps), updated, tuple(outputs))


Accepts = Callable[[str, str, Resolved], bool]


def _always(region: str, tensor: str, map: Resolved) -> bool:
    return True


@dataclass(eq=False)
class Rules:
    """An engine by table: `defaults` by movement name, then by operator, then `otherwise`."""

    defaults: Mapping[str, Default] = field(default_factory=dict)
    otherwise: Default = "copy"
    can_load: Accepts = _always
    can_store: Accepts = _always

    def default(self, movement: PlanMovement) -> Default:
        operator = movement.movement.operator
        return self.defaults.get(movement.name, self.defaults.get(operator, self.otherwise))

    def loads(self, region: str, tensor: str, map: Resolved) -> bool:
        return self.can_load(region, tensor, map)

    def stores(self, region: str, tensor: str, map: Resolved) -> bool:
        return self.can_store(region, tensor, map)


COPIES = Rules()
VIEWS = Rules({"Split": "view", "Slice": "view", "Reshape": "view", "Transpose": "view"})


def edge(vtog: Vtog, tensor: str, base: str, direction: str = "", inplace: bool = False) -> int:
    """The number of the edge tensor -> base."""
    found = [
        number
        for number, e in enumerate(vtog.edges)
        if (e.tensor, e.base) == (tensor, base)
        and direction in ("", e.direction)
        and e.inplace >= inplace
    ]
    assert len(found) == 1, [str(vtog.edges[n]) for n in found]
    return found[0]


def edges(vtog: Vtog, *pairs: tuple[str, str]) -> frozenset[int]:
    return frozenset(edge(vtog, *pair) for pair in pairs)


def worked_example() -> PlanGraph:
    """The paper's figure 6: b a part of Split(a), c = Reshape(b), d = ScatterND(K cache, i, c)."""
    g = Builder()
    x, index = g.input("x", 4, 16), g.input("indices", 4, 1)
    cache = g.cache("k_cache", 32, 2, 8)
    a = g.region("a", [x], 4, 48)
    b = g.move("b", split((4, 48), 1, 1, (16, 16, 16)), [a])
    c = g.move("c", reshape((4, 16), (4, 2, 8)), [b])
    d = g.move("d", scatter_nd((32, 2, 8), (4, 1)), [cache, c], [index])
    y = g.region("y", [d], 4, 16)
    return g.build(y, k_cache=d)


def c3k2(channels: int = 16, size: int = 8) -> PlanGraph:
    """YOLO's C3K2 block: e = conv(x); a, b = split(e); c = f(b); Y = concat(a, b, c)."""
    g = Builder()
    n, h = channels, size
    x = g.input("x", 1, n, h, h)
    e = g.region("e", [x], 1, 2 * n, h, h, flops=4 * n * n * h * h)
    a = g.move("a", split((1, 2 * n, h, h), 1, 0, (n, n)), [e])
    b = g.move("b", split((1, 2 * n, h, h), 1, 1, (n, n)), [e])
    c = g.region("c", [b], 1, n, h, h, flops=18 * n * n * h * h)
    joined = g.move("Y", concat([(1, n, h, h)] * 3, 1), [a, b, c])
    out = g.region("out", [joined], 1, n, h, h, flops=6 * n * n * h * h)
    return g.build(out)


def old_and_new_plan(updates: bool = True) -> PlanGraph:
    """old = cache[:3]; new = index_put(cache, i, x); y = old + new[:3]."""
    g = Builder()
    cache = g.cache("cache", 8, 4) if updates else g.input("cache", 8, 4)
    x, i = g.input("x", 1, 4), g.input("i", 1)
    old = g.move("old", slice_((8, 4), [0], [3], [0]), [cache])
    new = g.move("new", index_copy((8, 4), (1, 4), 0), [cache, x], [i])
    part = g.move("part", slice_((8, 4), [0], [3], [0]), [new])
    y = g.region("y", [old, part], 3, 4)
    return g.build(y, **({"cache": "new"} if updates else {}))
