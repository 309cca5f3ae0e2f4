"""What is known of integers whatever the sizes is not computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from lowering.dvm.evaluated import Compiled, check
from vtc.graph.capture import capture
from vtc.lowering.dvm.lower import lower

r = torch.randn
SIZES = ((3, 15), (2, 7), (4, 9))


def packed(positions: Tensor) -> Tensor:
    """Which of several sequences in a row each token is of, as transformers counts them."""
    before = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    return (before != 1).cumsum(-1)


def packed_mask(positions: Tensor) -> Tensor:
    """Its mask: tokens of the same sequence up to their own place."""
    batch, length = positions.shape
    sequence = packed(positions)
    rows = torch.arange(batch)[:, None, None, None]
    q, k = torch.arange(length)[:, None], torch.arange(length)
    return (k <= q) & (sequence[rows, q] == sequence[rows, k])


def positions_of(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1])[None].expand(x.shape[0], -1)


def test_counted_positions_are_one_sequence() -> None:
    compiled = check(lambda x: x + packed(positions_of(x)), *((r(s),) for s in SIZES))
    assert "scan" not in compiled.text
    assert "ne" not in compiled.text.split()


def test_given_positions_may_be_several() -> None:
    def given(m: int, n: int) -> Tensor:
        return torch.stack([(torch.arange(n) + k) % (n // 2) for k in range(m)])

    compiled = check(packed, *((given(*s),) for s in SIZES))
    assert "scan" in compiled.text


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_ones_are_counted_without_a_scan(dtype: torch.dtype) -> None:
    def f(table: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.ones(x.shape, dtype=dtype)
        at = kept.long().cumsum(-1) - 1
        return table[at.masked_fill(kept == 0, 1)] + x[..., None], at * 3

    compiled = check(f, *((r(40, 5), r(s)) for s in SIZES))
    assert "scan" not in compiled.text


def test_sums_of_other_numbers_are_counted_in_steps() -> None:
    compiled = check(lambda x: x + torch.full(x.shape, 7).cumsum(0), *((r(s),) for s in SIZES))
    assert "scan" not in compiled.text


def test_a_table_of_places_is_no_lookup() -> None:
    def f(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(x.shape[0])
        return x[rows] * 2, x[rows, i]

    def given(m: int, n: int) -> tuple[Tensor, Tensor]:
        return r(m, n), torch.randint(-n, n, (m,))

    compiled = check(f, *(given(*s) for s in SIZES))
    assert len(re.findall(r"%\d+\[", compiled.text)) == 1


@pytest.mark.parametrize(
    ("places", "looked_up"),
    [
        (lambda n: torch.arange(n - 2) + 1, False),
        (lambda n: n - 1 - torch.arange(n), False),
        (lambda n: torch.arange(n - 2) - 1, True),
        (lambda n: torch.arange(n) // 2 * 2 - n, True),
    ],
)
def test_only_places_in_the_dimension_are_known(
    places: Callable[[int], Tensor], looked_up: bool
) -> None:
    compiled = check(lambda x: x[places(x.shape[0])], *((r(s),) for s in ((5, 3), (9, 4), (7, 2))))
    assert ("%" in "".join(re.findall(r"load \S+ (\S.*)", compiled.text))) == looked_up


def test_an_index_beyond_the_end_still_raises() -> None:
    compiled = Compiled(lambda x: x[torch.arange(x.shape[0]) + 1].exp())
    with pytest.raises(IndexError):
        compiled(r(5, 3))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_narrow_integers_wrap(dtype: torch.dtype) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        n = torch.full(x.shape, 100, dtype=dtype)
        more = n + n + n
        return more.long() == 300, more.cumsum(-1), torch.where(more > n, x, -x)

    check(f, *((r(s),) for s in SIZES))


def test_chosen_ones_keep_their_dtype_and_shape() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        every = torch.ones(x.shape[0], 1, dtype=torch.bool)
        none = ~every
        return (
            torch.where(every, x[:1], y),
            torch.where(none, x, y.bfloat16()),
            (x > 0) & every,
            (x[:1] > 0) | none,
            (x > 0) | every,
        )

    check(f, *((r(s), r(s)) for s in SIZES))


Mask = Callable[[Tensor, Tensor], Tensor]


def places(n: int, m: int) -> tuple[Tensor, Tensor]:
    return torch.arange(n)[:, None], torch.arange(m)


def one_sequence(q: Tensor, k: Tensor) -> Tensor:
    return packed_mask(torch.arange(q.shape[0])[None].expand(2, -1))


MASKS: dict[str, tuple[Mask, str]] = {
    "keys up to the query": (lambda q, k: k <= q, "causal"),
    "queries from the key on": (lambda q, k: (q >= k)[None], "causal"),
    "keys before the next query": (lambda q, k: k < q + 1, "causal"),
    "of one packed sequence": (one_sequence, "causal"),
    "all": (lambda q, k: torch.ones_like(q + k, dtype=torch.bool), "none"),
    "keys before the query": (lambda q, k: (k < q) | (k == 0), "mask"),
    "keys before the second query": (lambda q, k: k <= q + 1, "mask"),
    "queries before the key": (lambda q, k: k >= q, "mask"),
    "a window": (lambda q, k: (k <= q) & (k > q - 3), "mask"),
    "every second": (lambda q, k: 2 * k <= q, "mask"),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_is_causal_is_not_made(name: str) -> None:
    mask, kind = MASKS[name]

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask(*places(q.shape[-2], k.shape[-2])))

    calls = [tuple(r(2, 3, n, 8) for _ in range(3)) for n in (9, 13, 6)]
    compiled = check(f, *calls)
    assert ("causal=True" in compiled.text) == (kind == "causal")
    assert ("mask=" in compiled.text) == (kind == "mask")


def test_a_mask_of_another_square_is_made() -> None:
    """With more keys than queries the diagonal begins in the same corner for `is_causal`."""

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, columns = places(q.shape[-2], k.shape[-2])
        late = columns <= rows + (k.shape[-2] - q.shape[-2])
        early = F.scaled_dot_product_attention(q, k, v, columns <= rows)
        return early + F.scaled_dot_product_attention(q, k, v, late)

    calls = [(r(2, 3, n, 8), *(r(2, 3, 2 * n, 8) for _ in range(2))) for n in (9, 13)]
    compiled = check(f, *calls)
    assert compiled.text.count("causal=True") == compiled.text.count("mask=") == 1


def decoder(x: Tensor, w: Tensor) -> tuple[Tensor]:
    q, k, v = (x @ w).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
    mask = packed_mask(positions_of(x))
    return (F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2),)


def test_a_device_makes_no_mask_and_calls_no_running_sum() -> None:
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    sizes: Any = mode.from_tensor(torch.empty(3, 155), symbolic_context=context).shape
    with mode, torch.device("cuda"):
        fakes = [torch.empty(*sizes, 64, dtype=torch.bfloat16), torch.empty(64, 192).bfloat16()]
        plan = lower(capture(fx.symbolic_trace(decoder), fakes))
    assert plan.eager == ("aten.matmul.default", "aten.scaled_dot_product_attention.default")
    assert "bool" not in str(plan)
