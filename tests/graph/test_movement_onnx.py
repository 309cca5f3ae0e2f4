"""The rules of ONNX's movement operators against onnx's reference evaluator."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph.movement_checks import check_movement
from graph.movement_strategies import Draw, arange, boolean, integer, regrouped, shape
from vtc.graph import (
    rules_concat,
    rules_gather,
    rules_pad,
    rules_scatter,
    rules_slice,
    rules_space,
    rules_view,
)
from vtc.graph.movement import TABLE

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

CASES = {}


def case(name):
    def register(make):
        CASES[name] = make
        return make

    return register


def evaluate(name, inputs, outputs=1, **attributes):
    """The outputs of one ONNX node; None among the inputs is an absent one."""
    helper = onnx.helper
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(name, names, results, **attributes)
    given_inputs = {n: x.numpy() for n, x in zip(names, inputs, strict=True) if x is not None}
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given_inputs.items()
    ]
    made = [helper.make_tensor_value_info(r, onnx.TensorProto.FLOAT, None) for r in results]
    graph = helper.make_graph([node], "case", types, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    run = reference.ReferenceEvaluator(model).run(None, given_inputs)
    return [torch.from_numpy(r.copy()) for r in run]


def longs(values):
    return torch.tensor(list(values), dtype=torch.int64)


def axis(draw, rank):
    return integer(draw, -rank, rank - 1)


def runtime_indices(draw, size, bound):
    """Indices in [-bound, bound)."""
    generator = torch.Generator().manual_seed(integer(draw, 0, 10**6))
    return torch.randint(-bound, bound, tuple(size), generator=generator)


def unique_positions(draw, size, count):
    """`count` different index tuples of a tensor of `size`, some counted from the end."""
    generator = torch.Generator().manual_seed(integer(draw, 0, 10**6))
    flat = torch.randperm(math.prod(size), generator=generator)[:count]
    at = torch.stack(torch.unravel_index(flat, tuple(size)), -1)
    return torch.where(torch.rand(at.shape, generator=generator) < 0.3, at - longs(size), at)


@case("Reshape")
def _(draw):
    x = arange(shape(draw, 0))
    target = regrouped(draw, x.numel())
    if x.numel() and boolean(draw):
        target[integer(draw, 0, len(target) - 1)] = -1
    if x.numel() and boolean(draw) and x.dim() and target[0] == x.shape[0]:
        target[0] = 0
    allowzero = int(0 in x.shape)
    (out,) = evaluate("Reshape", [x, longs(target)], allowzero=allowzero)
    resolved = rules_view.reshape_target(x.shape, target, allowzero)
    return rules_view.reshape(x.shape, resolved), [x], [], out


@case("Flatten")
def _(draw):
    # onnx's reference cannot flatten a tensor without elements.
    x = arange(shape(draw, 0, smallest=1))
    a = integer(draw, -x.dim(), x.dim())
    (out,) = evaluate("Flatten", [x], axis=a)
    return rules_view.flatten(x.shape, a), [x], [], out


@case("Squeeze")
def _(draw):
    x = arange(shape(draw))
    units = [d for d, s in enumerate(x.shape) if s == 1]
    axes = [d - x.dim() if boolean(draw) else d for d in units if boolean(draw)] or None
    (out,) = evaluate("Squeeze", [x, None if axes is None else longs(axes)])
    return rules_view.squeeze(x.shape, axes), [x], [], out


@case("Unsqueeze")
def _(draw):
    x = arange(shape(draw, 0, 3))
    count = integer(draw, 1, 2)
    rank = x.dim() + count
    axes = [a - rank if boolean(draw) else a for a in draw(st.permutations(range(rank)))[:count]]
    (out,) = evaluate("Unsqueeze", [x, longs(axes)])
    return rules_view.unsqueeze(x.shape, axes), [x], [], out


@case("Transpose")
def _(draw):
    x = arange(shape(draw))
    perm = None if boolean(draw) else list(draw(st.permutations(range(x.dim()))))
    (out,) = evaluate("Transpose", [x], **({} if perm is None else {"perm": perm}))
    return rules_view.transpose(x.shape, perm), [x], [], out


@case("Identity")
def _(draw):
    x = arange(shape(draw, 0))
    (out,) = evaluate("Identity", [x])
    return rules_view.identity_movement(x.shape), [x], [], out


@case("Concat")
def _(draw):
    size = list(shape(draw))
    a = axis(draw, len(size))
    parts = []
    for number in range(integer(draw, 1, 3)):
        size[a] = integer(draw, 0, 4)
        parts.append(arange(size, 1000 * number))
    (out,) = evaluate("Concat", parts, axis=a)
    return rules_concat.concat([p.shape for p in parts], a), parts, [], out


@case("Split")
def _(draw):
    x = arange(shape(draw))
    a = axis(draw, x.dim())
    length = x.shape[a]
    if boolean(draw):
        count = integer(draw, 1, max(length, 1))
        # onnx asks that every part but the last is full.
        count = -(-length // -(-length // count)) if length else 1
        outputs = evaluate("Split", [x], count, axis=a, num_outputs=count)
        part = integer(draw, 0, count - 1)
        made = rules_slice.split(x.shape, a, part, num_outputs=count)
    else:
        cut = integer(draw, 0, length)
        outputs = evaluate("Split", [x, longs([cut, length - cut])], 2, axis=a)
        part = integer(draw, 0, 1)
        made = rules_slice.split(x.shape, a, part, [cut, length - cut])
    return made, [x], [], outputs[part]


@case("Slice")
def _(draw):
    x = arange(shape(draw))
    axes = list(draw(st.permutations(range(x.dim()))))[: integer(draw, 1, x.dim())]
    bound = st.integers(-8, 8) | st.sampled_from((2**63 - 1, -(2**63)))
    # onnx's reference leaves a start before the first element of a negative step to numpy.
    starts = [max(draw(st.integers(-8, 8)), -x.shape[a]) for a in axes]
    ends = [draw(bound) for _ in axes]
    steps = [draw(st.sampled_from((1, 2, 3, -1, -2))) for _ in axes]
    named = [a - x.dim() if boolean(draw) else a for a in axes]
    (out,) = evaluate("Slice", [x, *map(longs, (starts, ends, named, steps))])
    return rules_slice.slice_(x.shape, starts, ends, named, steps), [x], [], out


@case("Expand")
def _(draw):
    x = arange(shape(draw, 0, 4))
    size = [1 if boolean(draw) else s if s != 1 else integer(draw, 0, 3) for s in x.shape]
    target = [integer(draw, 0, 3) for _ in range(integer(draw, 0, 2))] + size
    target = target if boolean(draw) else size[integer(draw, 0, len(size)) :]
    (out,) = evaluate("Expand", [x, longs(target)])
    broadcast = rules_concat.expand_target(x.shape, target)
    return rules_concat.expand(x.shape, broadcast), [x], [], out


@case("Tile")
def _(draw):
    x = arange(shape(draw, 1, 4))
    repeats = [integer(draw, 0, 3) for _ in x.shape]
    (out,) = evaluate("Tile", [x, longs(repeats)])
    return rules_concat.tile(x.shape, repeats), [x], [], out


@case("Pad")
def _(draw):
    mode = draw(st.sampled_from(("constant", "reflect", "edge", "wrap")))
    x = arange(shape(draw, 1, 3, smallest=0 if mode == "constant" else 1))
    axes = list(draw(st.permutations(range(x.dim()))))[: integer(draw, 1, x.dim())]
    pads = [integer(draw, 0, 6) for _ in range(2 * len(axes))]
    value = float(integer(draw, -3, 3))
    named = [a - x.dim() if boolean(draw) else a for a in axes]
    inputs = [x, longs(pads), torch.tensor(value), longs(named)]
    (out,) = evaluate("Pad", inputs, mode=mode)
    pairs = rules_pad.onnx_pads(x.dim(), pads, named)
    return rules_pad.pad(x.shape, pairs, mode, value), [x], [], out


@case("Gather")
def _(draw):
    x = arange(shape(draw, 1, 3, smallest=1))
    a = axis(draw, x.dim())
    index = runtime_indices(draw, shape(draw, 0, 2), x.shape[a])
    (out,) = evaluate("Gather", [x, index], axis=a)
    return rules_gather.gather(x.shape, index.shape, a), [x], [index], out


@case("GatherElements")
def _(draw):
    x = arange(shape(draw, 1, 4, smallest=1))
    a = axis(draw, x.dim())
    # onnx's reference takes indices of other sizes along the axis only, and no negative axis.
    size = list(x.shape)
    size[a] = integer(draw, 1, 5)
    index = runtime_indices(draw, size, x.shape[a])
    (out,) = evaluate("GatherElements", [x, index], axis=a % x.dim())
    return rules_gather.gather_elements(x.shape, index.shape, a), [x], [index], out


@case("GatherND")
def _(draw):
    x = arange(shape(draw, 1, 4, smallest=1))
    batch = integer(draw, 0, x.dim() - 1)
    length = integer(draw, 1, x.dim() - batch)
    outer = [*x.shape[:batch], *shape(draw, 0, 2, smallest=1)]
    parts = [runtime_indices(draw, outer, x.shape[batch + k]) for k in range(length)]
    index = torch.stack(parts, -1)
    (out,) = evaluate("GatherND", [x, index], batch_dims=batch)
    return rules_gather.gather_nd(x.shape, index.shape, batch), [x], [index], out


@case("ScatterElements")
def _(draw):
    x = arange(shape(draw, 1, 3, smallest=1))
    a = axis(draw, x.dim())
    generator = torch.Generator().manual_seed(integer(draw, 0, 10**6))
    size = [integer(draw, 1, s) for s in x.shape]
    index = torch.rand(x.shape, generator=generator).argsort(a)
    index = index[tuple(slice(s) for s in size)].contiguous()
    index = index - x.shape[a] if boolean(draw) else index
    updates = arange(size, 1000)
    (out,) = evaluate("ScatterElements", [x, index, updates], axis=a)
    made = rules_scatter.scatter_elements(x.shape, index.shape, updates.shape, a)
    return made, [x, updates], [index], out


@case("ScatterND")
def _(draw):
    x = arange(shape(draw, 1, 4, smallest=1))
    length = integer(draw, 1, x.dim())
    room = math.prod(x.shape[:length])
    index = unique_positions(draw, x.shape[:length], integer(draw, 1, min(room, 6)))
    if index.shape[0] % 2 == 0 and boolean(draw):
        index = index.reshape(2, -1, length)
    updates = arange((*index.shape[:-1], *x.shape[length:]), 1000)
    (out,) = evaluate("ScatterND", [x, index, updates])
    return rules_scatter.scatter_nd(x.shape, index.shape), [x, updates], [index], out


@case("DepthToSpace")
def _(draw):
    r = integer(draw, 1, 3)
    x = arange((integer(draw, 1, 2), r * r * integer(draw, 1, 3), *shape(draw, 2, 2, 1)))
    mode = draw(st.sampled_from(("DCR", "CRD")))
    (out,) = evaluate("DepthToSpace", [x], blocksize=r, mode=mode)
    return rules_space.depth_to_space(x.shape, r, mode), [x], [], out


@case("SpaceToDepth")
def _(draw):
    r = integer(draw, 1, 3)
    pixels = [r * s for s in shape(draw, 2, 2, 1)]
    x = arange((integer(draw, 1, 2), integer(draw, 1, 3), *pixels))
    (out,) = evaluate("SpaceToDepth", [x], blocksize=r)
    return rules_space.space_to_depth(x.shape, r), [x], [], out


def test_every_onnx_operator_has_a_case():
    assert {name for e in TABLE for name in e.onnx} == set(CASES)


def test_the_eighteen_are_in_the_table():
    wanted = (
        "Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Expand Tile Pad Gather "
        "GatherElements GatherND ScatterElements ScatterND DepthToSpace SpaceToDepth"
    )
    assert set(wanted.split()) <= {name for e in TABLE for name in e.onnx}


@pytest.mark.parametrize("name", CASES)
def test_rule_equals_reference(name):
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        movement, sources, lookups, out = CASES[name](Draw(data.draw))
        assert movement.operator == name
        assert movement.lookups == (() if not lookups else (1,))
        check_movement(movement, sources, lookups, out)

    run()
