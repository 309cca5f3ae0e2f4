"""`movement_of` on captured graphs: small functions, the pattern collection, dynamic shapes."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.nn import functional as F  # noqa: N812

from graph.movement_checks import check_movement
from patterns.movement_patterns import ALIASING, PATTERNS
from vtc.graph.functional import functional
from vtc.graph.movement import BoundMovement, is_movement_target, movement_of
from vtc.index import IndexMap

aten = torch.ops.aten


def captured(fn, args, dynamic=()):
    """The functional graph of `fn`, the dimensions `dynamic` of every tensor symbolic."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(x):
        if not isinstance(x, torch.Tensor):
            return x
        kinds = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(x.dim())]
        return mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(kinds))

    fakes = [fake(a) for a in args]
    with torch.no_grad(), mode, fx.traceback.preserve_node_meta():
        return make_fx(
            functional(fn, []),
            pre_dispatch=True,
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*fakes)


class Values(fx.Interpreter):
    """Runs a graph and keeps the value of every node."""

    def __init__(self, graph_module):
        super().__init__(graph_module)
        self.values = {}

    def run_node(self, n):
        self.values[n] = super().run_node(n)
        return self.values[n]


def movements(graph_module) -> dict[fx.Node, BoundMovement]:
    found = {n: movement_of(n) for n in graph_module.graph.nodes}
    return {n: bound for n, bound in found.items() if bound is not None}


def names(graph_module) -> list[str]:
    return [bound.movement.operator for bound in movements(graph_module).values()]


def check_graph(graph_module, args, sizes=None) -> int:
    """Every movement of a graph against the values in a run; the number of movements."""
    interpreter = Values(graph_module)
    interpreter.run(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args])
    values = interpreter.values
    found = movements(graph_module)
    for node, bound in found.items():
        sources, lookups = ([values[n] for n in nodes] for nodes in (bound.sources, bound.lookups))
        movement = bound.movement if sizes is None else concrete(bound.movement, sizes)
        check_movement(movement, sources, lookups, values[node])
    return len(found)


def concrete(movement, sizes):
    """A movement over symbolic shapes at one choice of sizes."""

    def at(index_map):
        return None if index_map is None else index_map.substitute(sizes)

    shape = IndexMap.identity(movement.shape).substitute(sizes).shape
    fields = {
        "shape": shape,
        "load": at(movement.load),
        "store": tuple(map(at, movement.store)),
    }
    return type(movement)(**{**movement.__dict__, **fields})


r = torch.randn
X = r(2, 4, 6, 8)

SMALL = {
    "reshape of a transposed": (
        lambda x: x.transpose(1, 2).reshape(2, -1),
        ["Transpose", "Identity", "Reshape"],
    ),
    "flatten": (lambda x: x.flatten(1), ["Reshape"]),
    "transposes": (lambda x: x.mT.movedim(0, 2).permute(1, 0, 2, 3), ["Transpose"] * 3),
    "units": (lambda x: x.unsqueeze(0).squeeze(0), ["Unsqueeze", "Squeeze"]),
    "slices": (lambda x: x[:, 1:3, ::2], ["Slice"] * 2),
    "select": (lambda x: x[:, -1, ..., 0], ["Select"] * 2),
    "chunk": (lambda x: x.chunk(2, 1), ["Split"] * 2),
    "split": (lambda x: x.split([1, 5], 2), ["Split"] * 2),
    "unbind": (lambda x: x.unbind(1), ["Split"] * 4),
    "cat": (lambda x: torch.cat([x, x * 2], 1), ["Concat"]),
    "stacks": (lambda x: (torch.stack([x, x]), torch.hstack([x, x])), ["Stack", "Concat"]),
    "expand": (lambda x: x[:1].expand(3, -1, -1, -1), ["Slice", "Expand"]),
    "repeats": (lambda x: x.repeat(2, 1, 1, 1).tile(2), ["Tile"] * 2),
    "interleaved": (lambda x: x.repeat_interleave(2, 1), ["RepeatInterleave"]),
    "pad": (lambda x: F.pad(x, (1, 2)), ["Pad"]),
    "reflect": (lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"), ["Pad"]),
    "roll and flip": (lambda x: x.roll((1, 2), (1, 2)).flip(1), ["Roll", "Flip"]),
    "windows": (lambda x: x.unfold(3, 4, 4), ["Unfold"]),
    "patches": (lambda x: F.unfold(x, 2), ["Im2col"]),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), ["ChannelShuffle"]),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), ["DepthToSpace"]),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), ["SpaceToDepth"]),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2), ["Upsample"]),
    "contiguous": (lambda x: x.mT.contiguous(), ["Transpose", "Identity"]),
    "another dtype": (lambda x: x.half(), []),
    "dropout": (lambda x: F.dropout(x, 0.5, False), ["Identity"]),
    "slice assignment": (
        lambda x: x.clone().narrow(1, 0, 2).copy_(x[:, 2:]),
        ["Identity", "Slice", "Slice", "Identity", "SliceScatter", "Slice"],
    ),
    "compute": (lambda x: F.relu(x) + x.sum(), []),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_function(name):
    fn, wanted = SMALL[name]
    graph_module = captured(fn, [X])
    assert names(graph_module) == wanted
    assert check_graph(graph_module, [X]) == len(wanted)


INDEXED = {
    "index": (lambda x, i, v: x[:, i], ["Index"]),
    "index select": (lambda x, i, v: x.index_select(1, i), ["Gather"]),
    "embedding": (lambda x, i, v: F.embedding(i, x[0, 0]), ["Select", "Select", "Gather"]),
    "gather": (lambda x, i, v: x.gather(1, v), ["GatherElements"]),
    "index copy": (lambda x, i, v: x.index_copy(1, i, x[:, 2:]), ["Slice", "IndexCopy"]),
    "index put": (lambda x, i, v: aten.index_put(x, [None, i], x[:, 2:]), ["Slice", "IndexPut"]),
    "scatter": (lambda x, i, v: x.scatter(1, v, x), ["ScatterElements"]),
    "mask": (lambda x, i, v: x.masked_fill(x > 0, 0.0), []),
}


@pytest.mark.parametrize("name", INDEXED)
def test_small_function_with_runtime_indices(name):
    fn, wanted = INDEXED[name]
    args = [X, torch.tensor([3, 1]), torch.rand(2, 4, 6, 8).argsort(1)[:, :3]]
    graph_module = captured(fn, args)
    assert names(graph_module) == wanted
    assert check_graph(graph_module, args) == len(wanted)
    for bound in movements(graph_module).values():
        assert all(n.op == "placeholder" for n in bound.lookups)


# What moves here is an addition, not an assignment.
WITHOUT_MOVEMENT = {"matmul_then_index_add_pytorch_143130"}


@pytest.mark.parametrize("name", [*PATTERNS, *ALIASING])
def test_pattern(name):
    fn, (args, *_) = {**PATTERNS, **ALIASING}[name]()
    args = [a.clone() for a in args]
    found = check_graph(captured(fn, args), args)
    assert found > 0 or name in WITHOUT_MOVEMENT


def test_parts_are_movements_of_the_input():
    graph_module = captured(lambda x: x.chunk(2, 1), [X])
    (target,) = (n for n in graph_module.graph.nodes if is_movement_target(n))
    assert movement_of(target) is None
    for node, bound in movements(graph_module).items():
        assert node.target is operator.getitem
        assert bound.sources == (target.args[0],)


DYNAMIC = {
    "reshape": lambda x: x.reshape(x.shape[0], x.shape[1], 2, -1).flatten(2),
    "heads": lambda x: x.view(x.shape[0], -1, 4, 2).transpose(1, 2),
    "slices": lambda x: (x[:, 1:], x[:, :-1], x[:, -1], x[:, -2:]),
    "split": lambda x: x.split([4, 4], 2),
    "halves": lambda x: x.chunk(2, 1),
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "expand": lambda x: x[:, :, None].expand(-1, -1, 3, -1),
    "pad": lambda x: F.pad(x, (0, 0, 1, 2)),
    "reflect": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(1),
    "repeat": lambda x: x.repeat(1, 2, 1).repeat_interleave(2, 2),
    "shuffle": lambda x: F.channel_shuffle(x.mT, 2),
    "upsample": lambda x: F.interpolate(x, scale_factor=2),
    "stack": lambda x: torch.stack([x, x], 2).flatten(1, 2),
    "slice scatter": lambda x: torch.slice_scatter(x, x[:, 1:], 1, 1),
    "contiguous": lambda x: x.mT.contiguous().view(-1),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_symbolic_sizes(name):
    graph_module = captured(DYNAMIC[name], [r(3, 6, 8)], dynamic=(0, 1))
    (x,) = (n for n in graph_module.graph.nodes if n.op == "placeholder")
    symbols = [s.node.expr for s in x.meta["val"].shape[:2]]
    compute = [n for n in graph_module.graph.nodes if _unexplained(n)]
    assert compute == []
    for sizes in ((3, 6), (2, 4), (5, 10)):
        chosen = dict(zip(symbols, sizes, strict=True))
        assert check_graph(graph_module, [r(*sizes, 8)], chosen) > 0


def _unexplained(node):
    """A node on tensors that is neither movement nor arithmetic."""
    return (
        node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and node.target is not aten.mul.Tensor
        and movement_of(node) is None
    )
