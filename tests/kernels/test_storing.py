"""Attention that stores new keys and values into its caches: against `index_copy`, bit by bit, and
float64; compiled for Hopper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import attention_offline
from kernels.attention_cases import Form, error, operands
from vtc.kernels import storing_attention
from vtc.kernels.attention_launch import Stored, launch

pytest.importorskip("triton")

PLAIN = Form(keys=77)
SPLIT = (16, 16, 3, 4, 2)
FORMS: dict[str, tuple[Form, list[int], tuple[int, ...]]] = {
    "one split": (PLAIN, [40], (16, 16, 1, 4, 2)),
    "the first key": (PLAIN, [0], SPLIT),
    "the last key": (PLAIN, [76], SPLIT),
    "the first key of a split": (PLAIN, [32], SPLIT),
    "the last key of a split": (PLAIN, [31], SPLIT),
    "more splits than blocks": (PLAIN.but(keys=20), [19], (16, 16, 5, 4, 2)),
    "rows in several splits, in no order": (PLAIN.but(queries=3), [70, 2, 33], SPLIT),
    "a dead tail": (PLAIN.but(keys=1100, mask="tail", kv_heads=1), [3], (16, 128, 5, 4, 2)),
    "into a dead tail": (PLAIN.but(keys=1100, mask="tail", kv_heads=1), [1000], (16, 128, 5, 4, 2)),
    "a slice of a cache": (PLAIN.but(layout="slice"), [50], SPLIT),
    "heads inside of keys": (PLAIN.but(layout="bshd"), [50], SPLIT),
    "keys innermost": (PLAIN.but(layout="transposed"), [50], SPLIT),
    "no grouped heads, odd widths": (PLAIN.but(kv_heads=4, dim=24, value_dim=40), [5], SPLIT),
    "soft-cap and finite mask": (PLAIN.but(softcap=2.0, scale=3.0, mask="finite"), [30], SPLIT),
    "a mask for each head": (PLAIN.but(mask="bias-none"), [30], SPLIT),
    "a sequence that sees no key": (PLAIN.but(mask="empty"), [30], SPLIT),
}


class Storing:
    """Operands of a form: its keys and values are those after the new rows are stored."""

    def __init__(self, form: Form, places: list[int], device: torch.device) -> None:
        self.form, self.given = form, operands(form, str(device))
        self.query, self.mask = self.given.args[0], self.given.args[3]
        self.after = (self.given.key.clone(), self.given.value.clone())
        self.caches = (self.given.key, self.given.value)
        where = torch.tensor(places, device=device)
        # As a projection leaves them: by row, then head.
        new = [t[:, :, where].transpose(1, 2).contiguous().transpose(1, 2) for t in self.caches]
        for cache in self.caches:
            cache[:, :, where] = torch.nan
        self.stored = Stored(*new, where)
        self.options: dict[str, Any] = {
            "scale": form.scale or form.dim**-0.5,
            "softcap": form.softcap,
            "safe": form.safe,
        }

    def check(self, out: Tensor, caches: Any) -> None:
        for cache, after in zip(caches, self.after, strict=True):
            assert torch.equal(cache, after)
        for cache, after in zip(self.caches, self.after, strict=True):
            cache.copy_(after)
        assert error(self.form, out, self.given) < 2e-6


@pytest.mark.parametrize("joined", [0, 1])
@pytest.mark.parametrize("name", FORMS)
def test_new_rows_are_stored_and_seen(name: str, joined: int, device: torch.device) -> None:
    form, places, tiling = FORMS[name]
    given = Storing(form, places, device)
    tiling = (*tiling, joined)
    combine = None if joined else storing_attention.combine_kernel
    kernels = (storing_attention.decode_kernel, combine, None)
    out = launch(
        kernels,
        given.query,
        *given.caches,
        given.mask,
        tiling=tiling,
        stored=given.stored,
        **given.options,
    )
    given.check(out, given.caches)


TURNED = [
    "one split",
    "rows in several splits, in no order",
    "a slice of a cache",
    "keys innermost",
]


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("name", TURNED)
def test_queries_and_new_keys_are_rotated_first(
    name: str, tables: int, device: torch.device
) -> None:
    """As by the operator, whose arithmetic is PyTorch's."""
    form, places, tiling = FORMS[name]
    given = Storing(form, places, device)
    batch, _, queries, dim = given.query.shape
    cos, sin = torch.randn(2, min(tables, batch), 1, queries, dim, device=device)
    stored = given.stored._replace(cos=cos, sin=sin)
    arguments = (*stored[:3], given.mask, cos, sin)
    want, *after = torch.ops.vtc.storing_attention(
        given.query, *given.caches, *arguments, **given.options
    )
    assert not torch.equal(after[0], given.after[0])
    kernels = (storing_attention.decode_kernel, storing_attention.combine_kernel, None)
    out = launch(
        kernels,
        given.query,
        *given.caches,
        given.mask,
        tiling=tiling,
        stored=stored,
        **given.options,
    )
    torch.testing.assert_close(given.caches[0], after[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(given.caches[1], after[1])
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_both_operators_mean_the_same(name: str) -> None:
    form, places, _ = FORMS[name]
    given = Storing(form, places, torch.device("cpu"))
    arguments = (given.query, *given.caches, *given.stored[:3], given.mask)
    out, *caches = torch.ops.vtc.storing_attention(*arguments, **given.options)
    assert all(cache.isnan().any() for cache in given.caches), "the functional form wrote"
    again = torch.ops.vtc.storing_attention_(*arguments, **given.options)
    assert all(map(torch.equal, given.caches, caches))
    torch.testing.assert_close(again, out, equal_nan=True)
    given.check(out, caches)


def test_a_place_outside_of_the_cache_is_refused() -> None:
    for place in (77, -1):
        given = Storing(PLAIN, [3], torch.device("cpu"))
        stored = given.stored[:2] + (torch.tensor([place]),)
        with pytest.raises((IndexError, RuntimeError), match="index"):
            torch.ops.vtc.storing_attention_(given.query, *given.caches, *stored, scale=1.0)


@pytest.mark.parametrize("options", [{"causal": True}, {"lengths": torch.tensor([5, 6])}])
def test_an_order_and_lengths_are_refused(options: dict[str, Any]) -> None:
    given = Storing(PLAIN, [3], torch.device("cpu"))
    with pytest.raises(ValueError, match="decoding"):
        launch(
            (None, None, None),
            given.query,
            *given.caches,
            None,
            tiling=SPLIT,
            stored=given.stored,
            **given.options,
            **options,
        )


def test_the_operators_pass_pytorchs_checks() -> None:
    given = Storing(PLAIN, [3], torch.device("cpu"))
    for target in (storing_attention.OVERLOAD, storing_attention.IN_PLACE):
        torch.library.opcheck(
            target,
            (given.query, *given.caches, *given.stored[:3]),
            {"scale": 1.0},
            test_utils=("test_schema", "test_faketensor"),
        )


def test_machine_code_stores_new_rows_before_it_reads_the_cache() -> None:
    words = attention_offline.answers()["decode, new rows"]["order"]
    before = words[: words.index("cp.async.cg")]
    last_store = max(k for k, word in enumerate(before) if word == "st.global")
    assert "bar.sync" in before[last_store:]
