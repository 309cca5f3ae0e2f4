"""Caches that move on in place: the kernels against a concatenation, bit by bit, and attention that
does it on the way against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import shift_offline
from kernels.attention_cases import Form, expected
from kernels.attention_cases import Operands as Given
from vtc.kernels import shift, sliding_attention
from vtc.kernels.attention_tiling import Shape, Tiling, as_argument

pytest.importorskip("triton")

CACHES: dict[str, tuple[tuple[int, ...], int, int, tuple[int, int, int]]] = {
    "one row": ((2, 3, 37, 16), 2, 1, (8, 1, 4)),
    "splits": ((2, 3, 37, 16), 2, 1, (8, 3, 4)),
    "more splits than blocks": ((1, 2, 20, 16), 2, 1, (8, 7, 4)),
    "rows of a block": ((2, 2, 40, 8), 2, 8, (8, 2, 4)),
    "more rows than a program owns": ((1, 2, 40, 8), 2, 19, (8, 5, 4)),
    "all rows but one": ((1, 2, 33, 8), 2, 32, (8, 2, 4)),
    "odd width": ((2, 21, 5, 3), 1, 2, (4, 2, 4)),
    "wide rows": ((9, 2, 300), 0, 3, (4, 2, 4)),
    "innermost": ((3, 4, 19), 2, 4, (8, 2, 4)),
}
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_moves_on_as_a_concatenation(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    shape, dim, rows, tiling = CACHES[name]
    cache = _random(shape, dtype, device)
    new = _random((*shape[:dim], rows, *shape[dim + 1 :]), dtype, device)
    for _ in range(2):
        want = torch.cat([cache.narrow(dim, rows, shape[dim] - rows), new], dim)
        shift.launch((shift.edges_kernel, shift.shift_kernel), cache, new, dim, tiling)
        assert torch.equal(cache, want)


def test_new_rows_have_any_strides(device: torch.device) -> None:
    cache = _random((2, 3, 37, 16), torch.float32, device)
    new = _random((2, 16, 2, 3), torch.float32, device).permute(0, 3, 2, 1)
    want = torch.cat([cache[:, :, 2:], new], 2)
    shift.launch((shift.edges_kernel, shift.shift_kernel), cache, new, 2, (8, 2, 4))
    assert torch.equal(cache, want)


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).mul(100).to(dtype)


MASK_ELEMENTS = 4
"""Elements of the mask that a thread reads for a block of keys, which rows of a cache are not."""

PLAIN = Form(keys=37)
SPLIT = (16, 16, 3, 4, 1)
SLIDING = {
    "one split": (PLAIN, 1, (16, 16, 1, 4, 1)),
    "splits": (PLAIN, 1, SPLIT),
    "more splits than blocks": (PLAIN.but(keys=20), 1, (16, 16, 5, 4, 1)),
    "whole blocks": (PLAIN.but(keys=64), 1, (16, 16, 2, 4, 1)),
    "several rows": (PLAIN.but(queries=3), 3, SPLIT),
    "more rows than a program owns": (PLAIN.but(keys=40), 19, SPLIT),
    "no grouped heads": (PLAIN.but(kv_heads=4), 1, SPLIT),
    "odd widths": (PLAIN.but(dim=24, value_dim=40), 1, SPLIT),
    "soft-cap and finite mask": (PLAIN.but(softcap=2.0, scale=3.0, mask="finite"), 1, SPLIT),
    "bool mask": (PLAIN.but(mask="bool"), 1, SPLIT),
    "a mask for each query and head": (PLAIN.but(mask="bias-none", queries=2), 2, SPLIT),
    "a sequence that sees no key": (PLAIN.but(mask="empty"), 1, SPLIT),
    "a sequence that sees no key, as NaN": (PLAIN.but(mask="empty", safe=False), 1, SPLIT),
}


class Sliding:
    """Operands of a form: its keys and values are those after the caches have moved on."""

    def __init__(self, form: Form, rows: int, device: torch.device) -> None:
        from kernels.attention_cases import operands

        given = operands(form, str(device))
        self.form, self.given = form, given
        self.query, self.after, self.mask = given.args[0], (given.key, given.value), given.args[3]
        self.caches, self.new = [], []
        for moved in self.after:
            old = torch.randn_like(moved[:, :, :rows])
            self.caches.append(torch.cat([old, moved[:, :, : form.keys - rows]], 2))
            self.new.append(moved[:, :, form.keys - rows :])
        self.options: dict[str, Any] = {
            "scale": form.scale or form.dim**-0.5,
            "softcap": form.softcap,
            "safe": form.safe,
        }

    def check(self, out: Tensor, caches: Any, tolerance: float) -> None:
        for cache, after in zip(caches, self.after, strict=True):
            assert torch.equal(cache, after)
        given = Given(self.given.args, self.given.options, self.given.key, self.given.value)
        want = expected(self.form, given)
        assert torch.equal(out.isnan(), want.isnan())
        difference = (out.double() - want).abs().nan_to_num()
        assert float(difference.max()) < tolerance


@pytest.mark.parametrize("name", SLIDING)
def test_attention_moves_its_caches_on(name: str, device: torch.device) -> None:
    form, rows, tiling = SLIDING[name]
    given = Sliding(form, rows, device)
    kernels = (
        sliding_attention.edges_kernel,
        sliding_attention.sliding_kernel,
        sliding_attention.combine_kernel,
    )
    out = sliding_attention.launch(
        kernels, given.query, *given.caches, *given.new, given.mask, tiling, **given.options
    )
    given.check(out, given.caches, 2e-6)


@pytest.mark.parametrize("name", SLIDING)
def test_both_operators_mean_the_same(name: str) -> None:
    form, rows, _ = SLIDING[name]
    given = Sliding(form, rows, torch.device("cpu"))
    operands = (given.query, *given.caches, *given.new, given.mask)
    before = [c.clone() for c in given.caches]
    out, *caches = torch.ops.vtc.sliding_attention(*operands, **given.options)
    given.check(out, caches, 2e-6)
    assert all(map(torch.equal, before, given.caches)), "the functional form wrote"
    again = torch.ops.vtc.sliding_attention_(*operands, **given.options)
    given.check(again, given.caches, 2e-6)


def test_the_operators_pass_pytorchs_checks() -> None:
    given = Sliding(PLAIN, 1, torch.device("cpu"))
    operands = (given.query, *given.caches, *given.new)
    checks = ("test_schema", "test_faketensor")
    options = {"scale": 1.0}
    for target in (sliding_attention.OVERLOAD, sliding_attention.IN_PLACE):
        torch.library.opcheck(target, operands, options, test_utils=checks)
    for target in (shift.OVERLOAD, shift.IN_PLACE):
        torch.library.opcheck(target, (given.caches[0], given.new[0], 2), test_utils=checks)


@pytest.mark.parametrize("keys", [2, 40, 4096])
@pytest.mark.parametrize("batch", [1, 16, 1000])
def test_candidates_cover_the_rows_and_no_split_is_idle(batch: int, keys: int) -> None:
    shape = Shape(batch, 16, 8, 1, keys, 256)
    for tiling in sliding_attention.candidates(shape, 132):
        assert Tiling(*as_argument(tiling)) == tiling
        assert tiling.block_m >= shape.rows
        assert 1 <= tiling.splits <= -(-keys // tiling.block_n)
    for cut in shift.candidates(batch * 8, keys, 256, 132):
        assert shift.Tiling(*shift.as_argument(cut)) == cut
        assert 1 <= cut.splits <= -(-keys // cut.block_n)


@pytest.mark.parametrize("name", shift_offline.KERNELS)
def test_machine_code_moves_16_bytes_at_a_time_and_waits_before_it_writes(name: str) -> None:
    found = shift_offline.answers()[name]
    assert found["local"] == 0
    assert found["narrow"] <= MASK_ELEMENTS
    assert found["ordered"], "a row is written while it may still be read"
