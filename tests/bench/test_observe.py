"""Kernels that only move data are told from those that compute, and peak memory is counted."""

from __future__ import annotations

import pytest
import torch

import vtc
from vtc.bench import observe

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "name",
    [
        "cpp_fused_cat_0",
        "cpp_fused_clone_expand_unsqueeze_3",
        "cpp_fused__unsafe_view_clone_12",
        "graph_2_cpp_fused_index_select_1",
        "triton_poi_fused_cat_constant_pad_nd_view_7",
        "cpp_fused_index_put_5",
    ],
)
def test_fused_kernels_of_movement_operators_move(name):
    assert observe.is_movement_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "cpp_fused_add_cat_0",
        "cpp_fused__to_copy_clone_3",
        "cpp_fused_relu_1",
        "cpp_fused_native_batch_norm_view_1",
        "triton_red_fused_cat_mean_2",
        "cpp_fused_category_1",
        "extern_kernels_mm",
    ],
)
def test_fused_kernels_that_compute_do_not(name):
    assert not observe.is_movement_kernel(name)


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>", True),
        ("at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(TensorIterator&)>", True),
        ("unrolled_elementwise_kernel<direct_copy_kernel_cuda, LoadWithCast<1>>", False),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>", True),
        ("Memcpy DtoD (Device -> Device)", True),
        ("sm90_xmma_gemm_f16f16_f16f32", False),
        ("triton_poi_fused_cat_1", True),
        ("triton_poi_fused_cat_silu_1", False),
    ],
)
def test_cuda_kernels_are_told_by_name(name, moves):
    assert observe.is_cuda_movement(name) is moves


def test_movement_of_an_eager_call_is_counted_once_an_operator():
    x = torch.randn(64, 64)
    resets = []

    def call():
        y = torch.cat([x.t().contiguous(), x])  # a clone (with its copy_ inside) and a cat
        z = y.view(-1) + 1  # a view, and arithmetic
        return z.to(torch.float64)  # a cast: a copy_ that computes

    kernels, milliseconds = observe.movement(call, CPU, lambda: resets.append(1))
    assert kernels == 2
    assert milliseconds > 0
    assert len(resets) == observe.CALLS


def test_peak_memory_is_the_most_held_at_once():
    x = torch.randn(1000)

    def call():
        a = x + x  # no Python numbers: they would be tensors too
        b = a * x
        del a
        return b - x  # b and the result are held here, as a and b were

    assert observe.peak_bytes(call, CPU) == 2 * x.nbytes


def test_peak_memory_counts_what_programs_of_the_dvm_keep_between_kernels():
    def call():
        kept = x + x
        total = kept.sum(0)  # a kernel of its own: it reads columns
        return (kept - total) * kept.sum(1, keepdim=True)

    x = torch.randn(256, 512)
    with torch.no_grad():
        compiled = vtc.compile(call, engine="dvm")
        compiled()
        peak = observe.peak_bytes(compiled, CPU)
    # The result; and `kept`, or sums alone where it is computed again.
    assert x.nbytes + 512 * 4 <= peak <= 3 * x.nbytes
