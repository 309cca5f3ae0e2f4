"""Movement, updated inputs, outputs and eager calls: what becomes a kernel, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lowering.dvm.evaluated import Compiled, assert_close, check
from vtc.lowering.dvm.lifetimes import accesses
from vtc.lowering.dvm.plan import ModuleStep

r = torch.randn
index = torch.randint


def rows(*shape: int) -> tuple[tuple[Any, ...], ...]:
    """Two tuples of one tensor whose first size differs."""
    return (r(11, *shape),), (r(4, *shape),)


MOVEMENT: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]] = {
    "views": (lambda x: x.t().reshape(2, 3, -1).permute(2, 0, 1).contiguous() + 1, rows(6)),
    "heads": (lambda x: x.view(-1, 4, 3).mT.exp().mT.flatten(1), rows(12)),
    "slices": (lambda x: x[1:, ::2] * x[:-1, 1::2] + x[-1, 0], rows(8)),
    "flip roll": (lambda x: x.flip(1) + x.roll(2, 1) + x.flip(0), rows(9)),
    "concat": (lambda x: torch.cat([x.exp(), x * 2, x[:, :3]], 1), rows(7)),
    "concat of rows": (lambda x: torch.cat([x, x.sin(), x[:2] + 1], 0), rows(7)),
    "concat read by arithmetic": (lambda x: torch.cat([x, -x], 1).relu() + 1, rows(5)),
    "concat read by a fold": (lambda x: torch.cat([x, x * 2], 1).sum(1), rows(5)),
    "concat read by a product": (
        lambda x, w: torch.cat([x, x * 2], 1) @ w,
        ((r(11, 4), r(8, 5)), (r(6, 4), r(8, 5))),
    ),
    "stack": (lambda x: torch.stack([x, x + 1], 1).flatten(1), rows(3)),
    "split": (lambda x: [p.exp() for p in x.split([2, 3, 4], 1)], rows(9)),
    "chunk gate": (lambda x: (lambda a, b: a * b.sigmoid())(*x.chunk(2, -1)), rows(10)),
    "pad": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (2, 1), value=3.0) * 2), rows(5)),
    "pad reflect": (lambda x: F.pad(x[None], (2, 2), mode="reflect"), rows(6)),
    "expand repeat": (lambda x: x[:, None].expand(-1, 3, -1) + x.repeat(1, 1)[:, None], rows(5)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1) + 1, rows(4)),
    "unfold": (lambda x: x.unfold(1, 3, 2).sum(-1), rows(9)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2) * 2, rows(8, 3, 5)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") + 1, rows(2, 3, 5)),
    "diagonal": (lambda x: x[:4, :4].diagonal() * 2, rows(5)),
    "window partition": (
        lambda x: x.view(-1, 2, 4, 3, 2).transpose(2, 3).reshape(-1, 4, 2).softmax(-1),
        rows(6, 8),
    ),
    "rotary": (
        lambda x: x * x.cos() + torch.cat([-x[..., 3:], x[..., :3]], -1) * x.sin(),
        rows(2, 6),
    ),
    "embedding": (
        lambda w, i: F.embedding(i, w) * 2,
        ((r(9, 6), index(0, 9, (3, 5))), (r(7, 6), index(0, 7, (2, 4)))),
    ),
    "index_select": (
        lambda x, i: x.index_select(1, i).exp(),
        ((r(11, 6), index(0, 6, (4,))), (r(5, 6), index(0, 6, (9,)))),
    ),
    "gather": (
        lambda x, i: x.gather(1, i) + 1,
        ((r(11, 6), index(0, 6, (11, 3))), (r(5, 6), index(0, 6, (5, 8)))),
    ),
    "index by negative values": (
        lambda x, i: x[i] + x.t()[i - 1].t()[:, :1].sum(),
        ((r(8, 8), index(-7, 8, (5,))), (r(9, 9), index(-8, 9, (4,)))),
    ),
    "index through a slice": (
        lambda x, i: x[1:, 2:][i] * 2,
        ((r(8, 6), index(-7, 7, (5,))), (r(9, 6), index(-8, 8, (4,)))),
    ),
    "index of two dimensions": (
        lambda x, i, j: x[i, :, j] - 1,
        (
            (r(5, 3, 6), index(0, 5, (4,)), index(0, 6, (4,))),
            (r(7, 3, 6), index(0, 7, (9,)), index(0, 6, (9,))),
        ),
    ),
    "index_put": (
        lambda x, i, v: torch.index_put(x.exp(), (i,), v * 2),
        ((r(8, 3), torch.randperm(8)[:4], r(4, 3)), (r(6, 3), torch.randperm(6)[:5], r(5, 3))),
    ),
    "scatter": (
        lambda x, i, v: x.scatter(1, i, v),
        (
            (r(5, 6), torch.stack([torch.randperm(6)[:3]] * 5), r(5, 3)),
            (r(7, 6), torch.stack([torch.randperm(6)[:2]] * 7), r(7, 2)),
        ),
    ),
    "slice assignment": (
        lambda x: torch.slice_scatter(x * 2, x[:, :3].exp(), 1, 2, 5) + x,
        rows(7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement_gives_what_eager_pytorch_gives(name: str) -> None:
    torch.manual_seed(0)
    fn, calls = MOVEMENT[name]
    check(fn, *calls)


NO_COPY = (
    "views", "heads", "slices", "flip roll", "concat read by arithmetic", "split", "chunk gate",
    "concat", "window partition", "embedding", "index_select", "rotary",
)  # fmt: skip


@pytest.mark.parametrize("name", NO_COPY)
def test_movement_is_in_the_addresses(name: str) -> None:
    fn, calls = MOVEMENT[name]
    compiled = check(fn, *calls)
    copies = [plan.copies for plan in compiled.plans]
    # x[:, :3] in the concat is a graph input's: that part is all there is to copy.
    assert copies == [1 if name == "concat" else 0], compiled.text


def test_a_cache_is_written_in_place() -> None:
    def decode(cache: Tensor, at: Tensor, x: Tensor, w: Tensor) -> Tensor:
        cache.index_copy_(2, at, (x @ w).view(2, 1, 3, 16).transpose(1, 2))
        return F.scaled_dot_product_attention(x.view(2, 3, 1, 16), cache, cache)

    calls = [
        (r(2, 3, n, 16), torch.tensor([k]), r(2, 1, 48), r(48, 48)) for n, k in ((9, 3), (16, 15))
    ]
    for _, _, x, w in calls:
        torch._dynamo.mark_static(x)
        torch._dynamo.mark_static(w)
    compiled = check(decode, *calls)
    assert [plan.copies for plan in compiled.plans] == [0], compiled.text


def shifted(x: Tensor, *caches: Tensor) -> Tensor:
    """Each cache gets a new last row, computed from the cache before; the oldest row goes."""
    for cache in caches:
        last = torch.tensor([cache.shape[0] - 1])
        moved = cache.roll(-1, 0).index_copy(0, last, x)
        x = (moved.softmax(0) * x).sum(0, keepdim=True)
        cache.copy_(moved)
    return x


def test_shifted_caches_are_in_memory_one_after_the_other() -> None:
    compiled = check(shifted, *[(r(1, 5), *(r(n, 5) for _ in range(4))) for n in (9, 6)])
    (plan,) = compiled.plans
    (step,) = [s for s in plan.steps if isinstance(s, ModuleStep)]
    caches = {
        number
        for number, buffer in enumerate(step.module.buffers)
        if buffer.kind == "temporary" and buffer.extent == step.module.buffers[0].extent
    }
    assert len(caches) == 4, compiled.text
    touched = [{a.buffer for a in accesses(k)} & caches for k in step.module.kernels()]
    alive = [
        sum(
            any(c in t for t in touched[: n + 1]) and any(c in t for t in touched[n:])
            for c in caches
        )
        for n in range(len(touched))
    ]
    assert max(alive) == 2, compiled.text  # one is read while the next one's row is written


@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_updates_that_come_early_come_behind_what_reads_the_old_values(when: str) -> None:
    def update(x: Tensor, cache: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        moved = cache.roll(-1, 0) * 2
        found = [cache.mm(w)] if when in ("before", "both") else []
        kept = moved.softmax(0)
        cache.copy_(moved)
        found += [cache.mm(w).exp()] if when in ("after", "both") else []
        return (kept + x, *found)

    check(update, *[(r(n, 5), r(n, 5), r(5, 5)) for n in (9, 6)])


def test_updates_come_behind_what_reads_the_old_values_through_an_eager_call() -> None:
    """The bits of a tensor are a view of it, which the DVM leaves to eager PyTorch."""

    def update(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        bits = x.view(torch.int32)
        old = torch.stack([bits, bits], 1)
        moved = x.roll(-1, 0)
        x.copy_(moved)
        return old, moved + y, bits + 1

    check(update, *[(r(n, 5), r(n, 5)) for n in (9, 6)], eager=["aten.view.dtype"])


def test_what_was_in_an_updated_input_can_still_be_read() -> None:
    def update(cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
        old = cache[:, :2].clone()
        cache[at] = x
        return old.sum() + cache

    calls = [(r(n, 5), torch.tensor([1, 3]), r(2, 5)) for n in (9, 6)]
    check(update, *calls)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x.add_(1).sum(),
        lambda x, y: x.copy_(x.flip(0)) + y,
        lambda x, y: (x.mul_(y), y.add_(x))[1] * 2,
        lambda x, y: x[:, 1:3].copy_(y[:, :2]),
        lambda x, y: (x.t().add_(1), y.zero_()),
        lambda x, y: (x.add_(1), x * 2, x[0])[1:],
    ],
)
def test_updates_reach_the_inputs(fn: Callable[..., Any]) -> None:
    check(fn, (r(11, 5), r(11, 5)), (r(4, 5), r(4, 5)))


UPDATES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda own, other: other,
    lambda own, other: own + 1,
    lambda own, other: own * 2 + other,
    lambda own, other: own.flip(0),
    lambda own, other: other.flip(0),
    lambda own, other: other[:, :1].repeat(1, other.shape[1]),
    lambda own, other: other.cumsum(0),
    lambda own, other: torch.slice_scatter(own, other[1:2], 0, 2, 3),
    lambda own, other: torch.slice_scatter(other, own[1:2], 0, 2, 3),
    lambda own, other: own @ other,
    lambda own, other: torch.cat([other[2:], own[:2]]),
    lambda own, other: other[:, own.abs().argmax(0)],
]


@pytest.mark.parametrize("first", UPDATES)
def test_updates_of_two_inputs_may_read_the_old_values_of_both(first: Any) -> None:
    def both(*tensors: Tensor) -> Tensor:
        made: list[Tensor] = []
        for k, second in enumerate(UPDATES):
            x, y = tensors[2 * k : 2 * k + 2]
            made += [first(x, y), second(y, x)]
        for old, new in zip(tensors, made, strict=True):
            old.copy_(new)
        return tensors[0] + 0

    check(both, tuple(r(9, 9) for _ in range(2 * len(UPDATES))))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x, x.t(), x[1:], x + 1),
        lambda x: (lambda y: (y, y.t(), y[:, 1:]))(x.exp()),
        lambda x: (x.expand(3, -1, -1), x.clone(), x.t().contiguous(), x.t() * 2),
        lambda x: [x.sum(), x.shape[0], None, 3, {"k": x.relu()}],
        lambda x: (x.unsqueeze(0).permute(2, 0, 1).sin(), torch.empty_like(x.t()).fill_(1)),
    ],
)
def test_outputs_have_the_strides_and_aliases_of_eager_pytorch(fn: Callable[..., Any]) -> None:
    check(fn, (r(11, 5),), (r(4, 5),))


def test_inputs_are_read_through_their_strides() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).softmax(-1)

    calls = [(r(m, 40).t()[:20], r(20, 3 * m)[:, ::3]) for m in (11, 6)]
    check(f, *calls)


@pytest.mark.parametrize("sizes", [(0, 4), (1, 1), (1, 7), (2, 3)])
def test_one_is_a_size_like_others_and_zero_has_a_graph_of_its_own(sizes: tuple[int, int]) -> None:
    def f(x: Tensor) -> Any:
        y = torch.cat([x, x.exp()], 0)
        return y.sum(0), y.softmax(-1), y.sum(-1, keepdim=True) * x.sum(), y.t() @ y

    check(f, (r(6, 9),), (r(*sizes),), captures=2 if 0 in sizes else 1)


def test_an_unknown_operator_runs_between_kernels() -> None:
    with pytest.warns(match="sort"):
        compiled = check(
            lambda x: (x.exp().sort(-1).values * 2).sum(-1), *rows(5), eager=["aten.sort.default"]
        )
    assert compiled.text.count("eager aten.sort") == 1


def test_rows_share_one_kernel() -> None:
    """Producers and consumers of folds over one dimension are one kernel, several outputs too."""

    def f(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + y * 2 + x.sin()
        return h, F.layer_norm(h, h.shape[-1:], w).softmax(-1)

    compiled = check(f, (r(11, 6), r(11, 6), r(6)), (r(3, 6), r(3, 6), r(6)))
    assert compiled.text.count("  kernel ") == 1, compiled.text
    assert "temporary" not in compiled.text


def test_an_epilogue_is_part_of_the_product() -> None:
    def f(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b)) + y

    compiled = check(f, (r(11, 6), r(5, 6), r(5), r(11, 5)), (r(2, 6), r(5, 6), r(5), r(2, 5)))
    assert compiled.text.count("  kernel ") == 1, compiled.text


@pytest.mark.parametrize("sizes", [((4, 1), (1, 7)), ((1, 5), (3, 5)), ((2, 1, 5), (3, 1))])
def test_a_size_that_is_broadcast_is_not_taken_for_any_size(sizes: Any) -> None:
    """Whatever is captured at first: later calls are right, broadcast or not."""
    torch._dynamo.reset()

    def plain(a: Tensor, b: Tensor) -> Tensor:
        return (a + b).sum(-1)

    compiled = Compiled(plain)
    first, second = sizes
    for a, b in ((r(*first), r(*second)), (r(4, 6), r(4, 6)), (r(1, 3), r(5, 3))):
        assert_close(compiled(a, b), plain(a, b))


def test_an_index_out_of_range_is_an_error() -> None:
    torch._dynamo.reset()
    compiled = Compiled(lambda x, i: x[i] + 1)
    compiled(r(6, 3), torch.tensor([1, -6]))
    with pytest.raises(IndexError):
        compiled(r(6, 3), torch.tensor([1, 6]))


@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 5, 7), (1, 4, 5, 7), (3, 4, 1, 7), (5, 1)])
def test_a_mask_that_is_one_in_a_dimension_holds_for_all_of_it(
    shape: tuple[int, ...], shared: bool
) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=shared)

    def call(more: int) -> tuple[Tensor, ...]:
        batch, rows, length = 3 + more, 5 + more, 7 + more
        wide = (batch, 4, rows, length)[-len(shape) :]
        own = [1 if one == 1 else n for one, n in zip(shape, wide, strict=True)]
        heads = 2 if shared else 4
        k, v = r(batch, heads, length, 8), r(batch, heads, length, 8)
        return r(batch, 4, rows, 8), k, v, r(*own) > -1

    for first, then in ((0, 4), (4, 0)):
        check(f, call(first), call(then))


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True), (0.0, False)])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_dropout_that_drops_nothing_returns_its_input(
    p: float, training: bool, dynamic: bool
) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        dropped = F.dropout(x, p, training)
        return dropped, dropped.t()[1:], F.dropout(x * 2, p, training)

    x = r(5, 6)
    whole, part, other = check(f, (x,), dynamic=dynamic).run(x)
    assert whole.data_ptr() == x.data_ptr()
    assert part.data_ptr() == x.t()[1:].data_ptr()
    assert other.data_ptr() != x.data_ptr()
