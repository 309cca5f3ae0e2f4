"""Which kernel attention on a device is, and the mask that it gets."""

import re

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from vtc.graph.capture import capture
from vtc.lowering.dvm import lower
from vtc.runtime import attention as device_attention
from vtc.runtime.attention import ALIGNED, additive, attention
from vtc.runtime.dvm_text import Writer

FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 16), (2, 3, 4, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mask_of_booleans_is_added_as_pytorch_adds_it(shape, dtype):
    mask = torch.rand(shape) > 0.3
    mask[..., 0] = True
    made = additive(mask, dtype)
    assert made.shape == mask.shape
    assert made.stride(-2) % ALIGNED == 0
    assert torch.equal(made == 0, mask)
    assert torch.equal(made == -torch.inf, ~mask)
    q, k, v = (torch.randn(2, 3, n, 8).to(dtype) for n in (shape[-2], shape[-1], shape[-1]))
    torch.testing.assert_close(attention(q, k, v, made), attention(q, k, v, mask))


def test_a_mask_to_add_is_copied_only_if_its_rows_are_not_aligned():
    wide, odd = torch.randn(2, 1, 5, 32), torch.randn(2, 1, 5, 33)
    assert additive(wide, wide.dtype) is wide
    for mask in (odd, odd[..., :16], wide[..., ::2], torch.randn(5, 16).t()):
        made = additive(mask, mask.dtype)
        assert torch.equal(made, mask)
        assert made.stride(-1) == 1
        assert made.stride(-2) % ALIGNED == 0
    shown = wide[:, :, :1].expand(2, 3, 5, 32)
    assert additive(shown, shown.dtype) is shown


@pytest.fixture
def called(monkeypatch):
    """The names of the kernels that are called, on a device whose fused kernels take everything."""
    found = []

    def kernel(name):
        def run(*args, **kwargs):
            found.append(name)
            return (args[0],)

        return run

    for name in (FLASH, EFFICIENT):
        monkeypatch.setattr(torch, name, kernel(name))
    stock = lambda *args, **kwargs: kernel("stock")(*args)[0]  # noqa: E731
    monkeypatch.setattr(device_attention, "scaled_dot_product_attention", stock)
    for name in ("_can_use_flash_attention", "_can_use_mem_efficient_attention"):
        monkeypatch.setattr(torch._C, name, lambda given, debug: True)
    return found


def test_attention_is_a_fused_kernel_that_takes_any_sizes(called):
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    attention(q, k, v, scale=0.5)
    attention(q, k, v, is_causal=True)
    attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    for mask in (torch.ones(6, 6) > 0, torch.ones(2, 1, 6, 6)):
        attention(q, k, v, mask)
        attention(q, k, v, additive(mask, q.dtype))
    assert called == [FLASH] * 3 + [EFFICIENT] * 4


def test_what_they_do_not_take_is_pytorchs_choice(called, monkeypatch):
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    mask = torch.ones(6, 6) > 0
    attention(q[0], k[0], v[0])
    attention(q[..., :7], k[..., :7], v[..., :7])
    attention(q, k, v, mask.to(torch.float64))
    attention(q, k[:, :2], v[:, :2], additive(mask, q.dtype), enable_gqa=True)
    for name in ("_can_use_flash_attention", "_can_use_mem_efficient_attention"):
        monkeypatch.setattr(torch._C, name, lambda given, debug: False)
    attention(q, k, v)
    attention(q, k, v, additive(mask, q.dtype))
    assert called == ["stock"] * 6


def text_of(function, *shapes):
    """The text of a function's program on a device."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda") for shape in shapes]
    plan = lower(capture(fx.symbolic_trace(function), inputs))
    assert plan.device.type == "cuda"
    return Writer(plan).text()[0]


Q, M = (2, 4, 6, 8), (2, 1, 6, 6)


def test_one_mask_of_booleans_is_made_one_to_add_once():
    def twice(q, k, v, m):
        first = scaled_dot_product_attention(q, k, v, attn_mask=m > 0)
        return (scaled_dot_product_attention(first * 2, k, v, m > 0, scale=0.5),)

    text = text_of(twice, Q, Q, Q, M)
    assert text.count("additive(") == 1
    (name,) = re.findall(r"(\w+) = additive", text)
    assert len(re.findall(rf"call\d+\(.*\b{name}\b", text)) == 2


def test_a_mask_that_changes_between_is_made_anew():
    def twice(q, k, v, m):
        first = scaled_dot_product_attention(q, k, v, attn_mask=m)
        m.logical_not_()
        return (scaled_dot_product_attention(first, k, v, attn_mask=m),)

    with FakeTensorMode():
        q, k, v = (torch.empty(Q, device="cuda") for _ in range(3))
        m = torch.empty(M, device="cuda", dtype=torch.bool)
    plan = lower(capture(fx.symbolic_trace(twice), [q, k, v, m]))
    assert Writer(plan).text()[0].count("additive(") == 2


def test_a_mask_to_add_is_passed_as_it_is():
    def run(q, k, v, m):
        return (scaled_dot_product_attention(q, k, v, attn_mask=m * 2),)

    assert "additive" not in text_of(run, Q, Q, Q, M)
