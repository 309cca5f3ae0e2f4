"""The attention operator: its kernels in the interpreter and compiled for Hopper, and its meaning
on a CPU."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernels import attention_interpreted, attention_offline
from kernels.attention_cases import Form, error, operands
from kernels.attention_interpreted import CASES
from vtc.kernels.attention_tiling import Shape, Tiling, as_argument, candidates

pytest.importorskip("triton")


@functools.cache
def interpreted() -> dict[str, Any]:
    """What the interpreter finds, in a process of its own."""
    done = subprocess.run(
        [sys.executable, attention_interpreted.__file__],
        capture_output=True,
        text=True,
        check=False,
        env=attention_interpreted.interpreted(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_equal_float64(name: str) -> None:
    found = interpreted()[name]
    assert isinstance(found, float), found
    assert found < 2e-6


@pytest.mark.parametrize("name", attention_offline.KERNELS)
def test_machine_code_keeps_everything_in_registers(name: str) -> None:
    found = attention_offline.answers()[name]
    assert found["local"] == 0
    assert found["shared"] < 227 * 1024


@pytest.mark.parametrize("name", [n for n in attention_offline.KERNELS if n != "combine"])
def test_machine_code_reads_the_cache_16_bytes_at_a_time_into_tensor_cores(name: str) -> None:
    found = attention_offline.answers()[name]
    assert found["async16"] > 0
    assert found["async4"] == 0
    assert found["wgmma"] if name.startswith("prefill") else found["mma"]


@pytest.mark.parametrize("name", CASES)
def test_the_written_out_form_equals_float64(name: str) -> None:
    form = CASES[name].form
    given = operands(form)
    found = torch.ops.vtc.attention(*given.args, **given.options)
    assert error(form, found, given) < 2e-6


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_nothing_to_attend_from_or_to(shape: tuple[int, int, int]) -> None:
    batch, queries, keys = shape
    form = Form(batch=batch, queries=queries, keys=keys)
    given = operands(form)
    found = torch.ops.vtc.attention(*given.args)
    assert found.shape == (batch, 4, queries, 16)
    assert not found.any()


def test_rows_without_keys_are_those_of_scaled_dot_product_attention() -> None:
    form = Form(mask="empty", queries=3, heads=2)
    given = operands(form)
    query, key, value, mask, *_ = given.args
    want = functional.scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(torch.ops.vtc.attention(query, key, value, mask), want)


def test_the_result_is_laid_out_for_the_next_matmul() -> None:
    given = operands(Form(queries=5))
    found = torch.ops.vtc.attention(*given.args)
    assert found.transpose(1, 2).is_contiguous()
    assert not found.is_contiguous()


def test_the_operator_passes_pytorchs_checks() -> None:
    given = operands(Form(mask="bool"))
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.vtc.attention.default, given.args[:4], test_utils=checks)


def test_a_window_needs_an_order() -> None:
    given = operands(Form())
    with pytest.raises(ValueError, match="causal"):
        torch.ops.vtc.attention(*given.args, window=3)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("batch", [1, 16, 1000])
@pytest.mark.parametrize("queries", [1, 5, 16, 400])
@pytest.mark.parametrize("keys", [1, 40, 4097])
def test_candidates_cover_the_rows_and_no_split_is_idle(
    batch: int, queries: int, keys: int, dim: int
) -> None:
    shape = Shape(batch, 32, 8, queries, keys, dim)
    found = candidates(shape, 132)
    assert len(set(found)) == len(found) > 0
    for tiling in found:
        assert Tiling(*as_argument(tiling)) == tiling
        if tiling.splits:
            assert tiling.block_m >= shape.rows
            assert tiling.splits <= -(-keys // tiling.block_n)
        assert bool(tiling.splits) == (shape.rows <= 64)
