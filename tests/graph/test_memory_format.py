"""Norms, paddings, rolls and scatters have the strides of eager PyTorch, whatever those of their
input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._subclasses import FakeTensorMode

import vtc
from vtc.graph import capture as capturing

SHAPES = [(2, 6), (2, 6, 5), (2, 6, 1), (2, 6, 4, 5), (2, 6, 1, 1), (2, 6, 2, 3, 4)]
ORDERS = {
    2: [(0, 1), (1, 0)],
    3: list(itertools.permutations(range(3))),
    4: [(0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 3, 2), (1, 0, 2, 3), (2, 3, 0, 1), (3, 2, 1, 0)],
    5: [(0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (0, 1, 2, 4, 3), (4, 3, 2, 1, 0)],
}


def _layouts(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors of the shape with their dimensions in other orders in memory, and cut out."""
    for order in ORDERS[len(shape)]:
        x = torch.randn([shape[d] for d in order])
        yield x.permute([order.index(d) for d in range(len(shape))])
    yield torch.randn([2 * n for n in shape])[tuple(slice(None, None, 2) for _ in shape)]
    yield torch.randn(shape[0], 1, *shape[2:]).expand(shape)


def _batch_norm(x: Tensor, mean: Tensor, variance: Tensor, *affine: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, *affine)


def _training(x: Tensor, mean: Tensor, variance: Tensor, *affine: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, *affine, training=True)


def _batch_statistics(x: Tensor, _: Tensor, __: Tensor, *affine: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, *affine, training=True)


def _instance_norm(x: Tensor, mean: Tensor, variance: Tensor, *affine: Tensor) -> Tensor:
    return F.instance_norm(x, mean, variance, *affine, use_input_stats=False)


def _instance_statistics(x: Tensor, _: Tensor, __: Tensor, *affine: Tensor) -> Tensor:
    return F.instance_norm(x, None, None, *affine)


def _group_norm(x: Tensor, _: Tensor, __: Tensor, *affine: Tensor) -> Tensor:
    return F.group_norm(x, 3, *affine)


def _layer_norm(x: Tensor, *_: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _native(x: Tensor, mean: Tensor, variance: Tensor, *affine: Tensor) -> Tensor:
    return torch.native_batch_norm(x, *affine, mean, variance, False, 0.1, 1e-5)[0]


def _padded(mode: str) -> Callable[..., Tensor]:
    def pad(x: Tensor, *_: Tensor) -> Tensor:
        return F.pad(x, (1, 0) * (x.dim() - 2), mode=mode)

    pad.__name__ = f"_{mode}_pad"
    return pad


def _shuffled(x: Tensor, *_: Tensor) -> Tensor:
    return F.channel_shuffle(x, 2)


def _unpooled(x: Tensor, *_: Tensor) -> Tensor:
    places = torch.arange(x.shape[2] * x.shape[3]).view(x.shape[2:]).repeat(*x.shape[:2], 1, 1)
    return F.max_unpool2d(x, places, 2)


IMAGES = [_shuffled, _unpooled]
OPERATORS: list[Callable[..., Tensor]] = [
    _batch_norm, _training, _batch_statistics, _instance_norm, _instance_statistics,
    _group_norm, _layer_norm, _native,
    *map(_padded, ("constant", "reflect", "replicate", "circular")), *IMAGES,
]  # fmt: skip


def _captured(function: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Tensor]:
    """The fakes of what the captured program returns."""
    found: list[Tensor] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        program = capturing.capture(graph, inputs)
        (end,) = program.graph_module.graph.find_nodes(op="output")
        found.extend(n.meta["val"] for n in end.args[0])
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*args)
    return found


def _strides(value: Tensor) -> list[int]:
    return [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]


@pytest.mark.parametrize("function", OPERATORS, ids=lambda function: function.__name__)
@torch.no_grad()
def test_strides_are_those_of_eager_pytorch(function: Callable[..., Tensor]) -> None:
    for shape in SHAPES:
        if len(shape) == 2 and function not in OPERATORS[:3] + OPERATORS[5:8]:
            continue
        if 1 in shape[2:] and function in OPERATORS[8:]:
            continue
        if len(shape) != 4 and function in IMAGES:
            continue
        if shape[2:] and max(shape[2:]) == 1 and function is _instance_statistics:
            continue  # refused: a mean over one element
        inputs = list(_layouts(shape))
        statistics = [torch.rand(6) + 0.5 for _ in range(4)]

        def all_of(*args: Tensor) -> list[Tensor]:
            return [function(x, *args[-4:]) * 1 for x in args[:-4]]

        expected = all_of(*inputs, *statistics)
        found = _captured(all_of, (*inputs, *statistics))[-len(inputs) :]  # behind updates
        for x, theirs, ours in zip(inputs, expected, found, strict=True):
            assert _strides(ours) == _strides(theirs), (shape, x.stride())


def _roll(x: Tensor) -> Tensor:
    return torch.roll(x, 1, -1)


def _roll_channels(x: Tensor) -> Tensor:
    return torch.roll(x, -2, 1)


def _roll_nothing(x: Tensor) -> Tensor:
    return torch.roll(x, x.shape[0], 0)


def _roll_twice(x: Tensor) -> Tensor:
    return torch.roll(x, (1, 1), (0, 1))


def _roll_all(x: Tensor) -> Tensor:
    return torch.roll(x, 1)


def _slice_scatter(x: Tensor) -> Tensor:
    return torch.slice_scatter(x, x[:, 1:3] + 1, 1, 2, 4)


def _select_scatter(x: Tensor) -> Tensor:
    return torch.select_scatter(x, x[:, 1] + 1, 1, 2)


def _diagonal_scatter(x: Tensor) -> Tensor:
    return torch.diagonal_scatter(x, x.diagonal() + 1)


def _expand_behind_a_new_unit(x: Tensor) -> Tensor:
    return x.expand(1, 2, *x.shape)


def _expand_before_new_units(x: Tensor) -> Tensor:
    return x.expand(2, 1, 1, *x.shape)


def _expand_a_unit(x: Tensor) -> Tensor:
    return x[:, :1].expand(1, *x.shape)


MOVING = [
    _expand_behind_a_new_unit, _expand_before_new_units, _expand_a_unit,
    _roll, _roll_channels, _roll_nothing, _roll_twice, _roll_all, _slice_scatter,
    _select_scatter, _diagonal_scatter,
]  # fmt: skip


@pytest.mark.parametrize("function", MOVING, ids=lambda function: function.__name__)
@torch.no_grad()
def test_strides_of_what_moves_values_are_those_of_eager_pytorch(
    function: Callable[[Tensor], Tensor],
) -> None:
    for shape in SHAPES:
        inputs = list(_layouts(shape))

        def all_of(*args: Tensor) -> list[Tensor]:
            return [function(x) * 1 for x in args]

        found = _captured(all_of, tuple(inputs))
        for x, theirs, ours in zip(inputs, all_of(*inputs), found, strict=True):
            assert _strides(ours) == _strides(theirs), (shape, x.stride())


@pytest.mark.parametrize("function", [F.logsigmoid, lambda x: F.max_pool1d(x, 2)])
@torch.no_grad()
def test_outputs_that_are_made_of_other_operators_have_the_strides_of_eager_pytorch(
    function: Callable[[Tensor], Tensor],
) -> None:
    def all_of(*args: Tensor) -> list[Tensor]:
        return [function(x) for x in args]

    inputs = list(_layouts((2, 6, 5)))
    found = _captured(all_of, tuple(inputs))
    for x, theirs, ours in zip(inputs, all_of(*inputs), found, strict=True):
        assert _strides(ours) == _strides(theirs), x.stride()


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3, (-1, 0), (-2, -1)])
@pytest.mark.parametrize("keepdim", [True, False])
@torch.no_grad()
def test_norms_over_dimensions_of_one_element_have_the_shape_of_eager_pytorch(
    dim: int | tuple[int, ...], keepdim: bool
) -> None:
    def norms(x: Tensor) -> list[Tensor]:
        made = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
        return [made, x.norm(dim=dim, keepdim=keepdim), made * 2]

    for shape in [(3, 1, 1), (1, 4, 1), (1, 1, 1), (2, 3, 1)]:
        x = torch.randn(shape)
        for theirs, ours in zip(norms(x), _captured(norms, (x,)), strict=True):
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


@pytest.mark.parametrize("engine", ["dvm", "auto"])
@torch.no_grad()
def test_what_is_scattered_into_an_expanded_tensor_is_dense(engine: str) -> None:
    """Of its elements two may differ, which were one before; through a view that is updated too."""

    def scatter(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        wide = x.expand(4, 5)
        diagonal = x[0] + z.expand(5, 5)
        made = torch.diagonal_scatter(z.expand(5, 5), y)
        parts = (
            torch.slice_scatter(wide, y.expand(2, 5), 0, 1, 3),
            torch.select_scatter(wide, y, 0, 3),
        )
        own = (x * 2).expand(4, 5).diagonal(-1)
        return (*parts, made, diagonal, own + y[0])

    args = torch.randn(1, 5), torch.randn(5), torch.randn(5)
    torch._dynamo.reset()
    quick = {"cost": "static", "verify": False} if engine == "auto" else None
    found = vtc.compile(scatter, engine=engine, options=quick)(*args)
    torch.testing.assert_close(found, scatter(*args))


def _split_view(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], 2, -1, *x.shape[3:])


def _split_front(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:1], 1, -1, *x.shape[2:])


def _unflattened(x: Tensor) -> Tensor:
    return x.unflatten(2, (1, -1))


def _stacked(x: Tensor) -> Tensor:
    return torch.stack([x, x], 2)


@pytest.mark.parametrize("function", [_split_view, _split_front, _unflattened, _stacked])
@torch.no_grad()
def test_what_joins_views_of_one_image_has_the_strides_of_eager_pytorch(
    function: Callable[[Tensor], Tensor],
) -> None:
    """Whether they are channels-last is asked of dimensions of one element, too."""
    shapes = [(1, 5, 8), (1, 5, 8, 3), (3, 1, 4, 5), (1, 6, 2, 1)]
    inputs = [x for shape in shapes for x in _layouts(shape)]

    def all_of(*args: Tensor) -> list[Tensor]:
        return [torch.cat([function(x)] * 2, 1).exp() for x in args]

    found = _captured(all_of, tuple(inputs))
    for x, theirs, ours in zip(inputs, all_of(*inputs), found, strict=True):
        assert _strides(ours) == _strides(theirs), (x.shape, x.stride())


@torch.no_grad()
def test_places_in_a_pooled_tensor_are_those_of_eager_pytorch() -> None:
    def places(x: Tensor) -> Tensor:
        return F.max_pool1d(x, 2).as_strided((10,), (1,))

    x = torch.randn(3, 8, 5).transpose(1, 2)
    torch._dynamo.reset()
    torch.testing.assert_close(vtc.compile(places, engine="dvm")(x), places(x))


@torch.no_grad()
def test_what_is_behind_copies_or_not_as_in_eager_pytorch() -> None:
    """A flattened result is a view in eager PyTorch, a copy on fakes: an update tells."""

    def update(x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = F.batch_norm(x, mean, variance)
        flat = y.flatten()
        flat.mul_(3)
        return y, flat

    x, mean, variance = torch.randn(9, 2, 5).permute(1, 2, 0), torch.randn(5), torch.rand(5) + 1
    torch._dynamo.reset()
    found = vtc.compile(update, engine="dvm")(x, mean, variance)
    expected = update(x, mean, variance)
    torch.testing.assert_close(found, expected)
    assert [f.stride() for f in found] == [e.stride() for e in expected]


@pytest.mark.parametrize("groups", [1, 2, 6])
@torch.no_grad()
def test_a_channel_shuffle_is_a_new_tensor_of_its_inputs_format(groups: int) -> None:
    for shape in SHAPES[1:]:
        for x in _layouts(shape):

            def shuffle(x: Tensor) -> list[Tensor]:
                return [F.channel_shuffle(x, groups)]

            (found,), (expected,) = _captured(shuffle, (x,)), shuffle(x)
            assert _strides(found) == _strides(expected), (shape, x.stride())
            torch._dynamo.reset()
            (ours,) = vtc.compile(shuffle, engine="dvm")(x)
            assert ours.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_channel_shuffle_of_single_channels_is_a_new_tensor_beside_an_update() -> None:
    """As functionalization sees it, too: in its tensors all storages are apart."""

    def shuffle(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.mul_(2)
        return F.channel_shuffle(x, 3), x[:, :2]

    FakeTensorMode.cache_clear()  # what is found there is a new tensor
    traced = torch.fx.symbolic_trace(shuffle)
    program = capturing.capture(traced, (torch.randn(4, 3, 8, 3), torch.randn(4)))
    (end,) = program.graph_module.graph.find_nodes(op="output")
    shuffled, part = (n.meta["val"].untyped_storage()._cdata for n in end.args[0])
    assert shuffled != part


@pytest.mark.parametrize("operator", ["nearest", "sort"])
@torch.no_grad()
def test_a_view_of_a_result_has_the_strides_of_eager_pytorchs(operator: str) -> None:
    """Dynamo's fakes say that an upsampling lies as its input, and what is sorted, too."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        if operator == "sort":
            rolled = torch.roll(x, (-1, 1), (2, 1))
            return rolled.unsqueeze(3).expand(-1, -1, -1, 3).sort(3).values, x[0]
        return F.interpolate(x, scale_factor=2, mode="nearest").permute(1, 0, 2), x[0]

    for x in _layouts((2, 6, 5)):
        torch._dynamo.reset()
        found = vtc.compile(function, engine="dvm", dynamic=False)(x)
        assert [_strides(f) for f in found] == [_strides(e) for e in function(x)], x.stride()
