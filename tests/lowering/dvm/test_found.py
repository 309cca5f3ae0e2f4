"""Functions that random ones were shrunk to: each was wrong, or not compiled, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx.experimental._config as symbolic_config
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lowering.dvm.evaluated import Compiled, assert_close, check
from vtc.errors import CaptureError
from vtc.runtime import dvm_compile

r = torch.randn


def test_extremes_of_bools_are_logic() -> None:
    a, b = (torch.rand(2, 3, 7) > 0.5).unbind(0)
    check(lambda x, y: (torch.fmax(x, y), torch.fmin(x, y), torch.maximum(x, y)), (a, b))


def test_a_number_wraps_to_a_narrow_integer() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        filled = x.masked_fill(x > 3, -1)
        return filled.sum(0), filled.float(), torch.where(x > 2, x, torch.tensor(300)), x > -1

    check(f, (torch.randint(0, 9, (3, 5), dtype=torch.uint8),))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat([x, x], -1),
        lambda x: F.pad(x.flatten(1), (0, 1)) * 2,
        lambda x: x.exp()[..., None] + 1,
    ],
)
def test_what_has_no_elements_is_allocated(fn: Callable[..., Any]) -> None:
    check(fn, (r(0, 3),), dynamic=False)


def test_an_empty_argument_may_span_elements() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x.exp()
        z[2:] = y
        return z

    check(f, (r(6, 4), r(1, 4).expand(4, 4)), (r(2, 4), r(1, 4).expand(0, 4)), captures=2)


def test_a_fold_over_nothing_is_no_alias() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = y.exp()
        return x.amax(()), y.sum(1), z, z.prod(1), y[:, 0]

    x, y = torch.tensor(0.5), r(3, 1)
    compiled = check(f, (x, y), dynamic=False)
    top, summed, z, product, view = compiled(x, y)
    for own, other in ((top, x), (summed, y), (product, z)):
        assert own.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
    assert view.data_ptr() == y.data_ptr()


def test_numbers_read_from_index_tensors_pick_rows() -> None:
    def f(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[1:, i][j]

    indices = torch.tensor(-2), torch.tensor(1)
    reads = ("aten.item.default", "aten.select.int")
    check(f, (r(4, 5, 3), *indices), (r(6, 2, 4), *indices), eager=reads)


def test_the_parts_of_a_flattened_tensor_are_numbers() -> None:
    """Where their number is a product of symbols, too."""

    def f(x: Tensor) -> Tensor:
        first, _, last, _ = x.flatten(0, 1).unbind(0)
        return first * last

    check(f, (r(2, 2),))


def test_what_shape_functions_refuse_of_any_size_is_traced_by_the_usual_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of PyTorch 2.11 refuse a view of `x[:, -1::3]`, whose size has a symbol of its own
    then."""

    def refuse(*args: Any, **options: Any) -> Any:
        if symbolic_config.backed_size_oblivious:
            try:
                raise RuntimeError("could not guard on u0")
            except RuntimeError as error:
                raise CaptureError("aten.view.default", str(error)) from error
        return capture(*args, **options)

    capture = dvm_compile.capture
    monkeypatch.setattr(dvm_compile, "capture", refuse)
    check(lambda x: x[:, -1::3].flatten(1, 2) * 2, (r(5, 3, 4),), (r(6, 3, 4),))


def test_integers_too_large_for_half_precision_are_infinite() -> None:
    big = torch.tensor([3, 70_000, -70_000], dtype=torch.int32)
    infinite = torch.tensor([1.0, torch.inf, 2.0], dtype=torch.float16)
    check(lambda x, y: (x - y, x * y, torch.maximum(y, x)), (infinite, big), dynamic=False)


@pytest.mark.parametrize("dim", [1, 2])
def test_nothing_is_computed_for_what_has_no_elements(dim: int) -> None:
    x = r(9, 1, 8).expand(9, 0, 8)
    compiled = check(lambda x: (x.log_softmax(dim), x.exp()), (x,), dynamic=False)
    assert not any(step.module.kernels() for plan in compiled.plans for step in plan.steps)


def test_a_product_of_grouped_attention_is_computed_behind_it() -> None:
    """Where the number of heads in a group is a quotient of symbols."""

    def f(q: Tensor, k: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, k, enable_gqa=True, is_causal=True)
        return y * y

    check(f, (r(3, 8, 2, 6), r(3, 4, 5, 6)))


def test_the_base_of_a_scatter_that_others_read_is_kept() -> None:
    def f(x: Tensor, y: Tensor, i: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        x[2:3, -2] = row
        part = x[1:] * 2
        x.index_copy_(1, i, y)
        return part, x + 1

    check(f, (r(5, 4), r(5, 2), torch.tensor([2, 0]), r(1)))


def test_a_value_that_is_written_over_is_computed_apart() -> None:
    """`chosen` is what is left in y, and is read after part of y is written over."""

    def f(x: Tensor, y: Tensor, corner: Tensor) -> Tensor:
        chosen = torch.where(x > 0, x, y)
        y.copy_(chosen)
        y[2:, :, -1] = corner
        return chosen - y

    check(f, (r(4, 3, 5), r(4, 3, 5), r(2, 3)), (r(3, 2, 2), r(3, 2, 2), r(1, 2)), captures=2)


def test_what_an_argument_is_left_with_is_not_written_over() -> None:
    """The copy that is scattered into is one of a value that nothing else reads."""

    def f(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        x.clamp_(max=2)
        z = x.clone()
        z[i] = y
        return z

    args = torch.tensor([5, 1, 7]), torch.tensor([2, 0]), torch.tensor([-3, -4])
    check(f, args, dynamic=False)


def test_two_arguments_are_left_with_one_scattered_value() -> None:
    def f(x: Tensor, y: Tensor, i: Tensor, row: Tensor) -> None:
        x.index_copy_(0, i, row)
        y.copy_(x)

    check(f, (r(4, 3), r(4, 3), torch.tensor([2]), r(1, 3)))


def test_an_argument_is_left_with_what_another_was_before_it_is_written_over() -> None:
    def f(x: Tensor, y: Tensor, i: Tensor, row: Tensor) -> None:
        y.copy_(x)
        x.index_copy_(0, i, row)

    check(f, (r(4, 3), r(4, 3), torch.tensor([2]), r(1, 3)))


def test_an_eager_call_gets_operands_with_eager_strides() -> None:
    """Those of its result, which nothing in the program looks at, are derived from them."""

    def stacked(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x, y], 1).t().view(torch.int32)

    def pointwise(x: Tensor, y: Tensor) -> Tensor:
        return (x.t() * 2).view(torch.int32)

    def stored_otherwise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = (x.t() * 2).contiguous()
        return z, (z.t() + 1).t().view(torch.int32)

    for fn, shape in ((stacked, (8,)), (pointwise, (8, 3)), (stored_otherwise, (8, 3))):
        check(fn, (r(shape), r(shape)), eager=["aten.view.dtype"], dynamic=False)


def test_a_view_of_what_an_eager_call_views_has_its_dtype() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        bits = x.view(torch.int32)
        return bits.narrow(0, 0, 2), bits[1:].t()

    check(f, (r(6, 2)[1:5:2],), (r(8, 3)[1:7:2],), eager=["aten.view.dtype"])


def test_what_an_anchor_reads_does_not_lie_where_it_stores() -> None:
    def joined(q: Tensor, k: Tensor) -> Tensor:
        k = k[:, :, None].expand(5, 1, 2, 3, 4).reshape(5, -1, 3, 4)
        return torch.cat([k, q, k, F.scaled_dot_product_attention(q, k, k)], -2)

    def written(x: Tensor, i: Tensor, w: Tensor) -> Tensor:
        y = x * 2
        y[i] = y @ w
        return y

    check(joined, (r(5, 2, 2, 4), r(5, 1, 3, 4)), dynamic=False, tolerance=1e-5)
    args = r(4, 4), torch.tensor([3, 1, 0, 2]), r(4, 4)
    check(written, args, dynamic=False, tolerance=1e-5)


def test_what_is_made_of_no_tensor_is_decomposed() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = torch.tril_indices(5, 7, 1)
        return x[rows, columns], torch.triu_indices(4, 6, -1)

    check(f, (r(5, 7),))


@pytest.mark.parametrize(
    ("divide", "name"),
    [
        (lambda x, y: x // y, "aten.floor_divide.default"),
        (lambda x, y: x % y, "aten.remainder.Tensor"),
        (torch.fmod, "aten.fmod.Tensor"),
        (lambda x, y: torch.div(x, y, rounding_mode="trunc"), "aten.div.Tensor_mode"),
    ],
)
def test_a_division_of_integers_by_zero_is_an_error(
    divide: Callable[..., Tensor], name: str
) -> None:
    x, y = torch.tensor([7, -7, 5]), torch.tensor([2, 3, -4])
    compiled = check(lambda x, y: divide(x + 1, y), (x, y), eager=[name])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, torch.tensor([1, 0, 2]))


def test_groups_of_any_number_of_channels_run_as_eager_pytorch() -> None:
    def f(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv1d(x, weight, None, groups=4) * 2

    check(f, (r(5, 8, 6), r(16, 2, 3)), (r(5, 8, 7), r(8, 2, 3)), eager=["aten.conv1d.default"])


def test_an_index_into_a_part_counts_from_the_end_of_the_part() -> None:
    def narrowed(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x.narrow(1, 0, 2)[i, j]

    def behind(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[2:][i].index_select(1, j)

    def split(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.cat([part[i, j] for part in x.split([3, 2], 0)])

    x, i, j = r(5, 4, 3), torch.tensor([-2, 0, -1, 1]), torch.tensor([1, 0, 0, 1])
    for fn in (narrowed, behind, split):
        compiled = check(fn, (x, i, j))
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([-2, 0, -6, 1]), j)
        with pytest.raises(IndexError):
            compiled(x, i, torch.tensor([1, 0, 4, 1]))
    compiled = check(narrowed, (x, i, j))
    for wrong in (2, -3):
        with pytest.raises(IndexError):
            compiled(x, i, torch.tensor([1, wrong, 0, 1]))


def test_an_update_in_place_keeps_strides() -> None:
    def f(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        z = (x + 1).transpose(0, 1) * 2
        z.index_copy_(0, i, y)
        return z

    check(f, (r(3, 5), torch.tensor([4, 1]), r(2, 3)), dynamic=False)


def test_indices_broadcast_with_a_size_of_one() -> None:
    def f(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[i, j]

    rows, columns = torch.tensor([-2, 0, 1]), torch.tensor([[-1], [0]])
    check(f, (r(4, 8, 3), rows, columns), (r(7, 2, 5), rows, columns), captures=2)


def test_sizes_may_become_known_while_an_operator_is_decomposed() -> None:
    def f(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.5, mode="nearest")

    check(f, (r(3, 13, 2)[:, 1:13:3],))


def test_scatters_in_place_follow_each_other() -> None:
    def f(x: Tensor, i: Tensor, y: Tensor, j: Tensor, z: Tensor) -> None:
        x[:, i] = y
        x.index_copy_(0, j, z)

    i, j = torch.tensor([3, 0, -2, 1]), torch.tensor([4, 0, 2])
    check(f, (r(6, 4), i, r(6, 4), j, r(3, 4)))


def pieces_broadcast(x: Tensor) -> tuple[Tensor, ...]:
    piece = torch.tensor_split(x, 2, 1)[0]
    return piece, torch.maximum(piece, x[:, :1].exp())


def pieces_broadcast_with_all(x: Tensor) -> Tensor:
    piece = torch.tensor_split(x, 2, 1)[0]
    return torch.maximum(piece, x) if x.shape[1] < 3 else piece


def slices_expand(x: Tensor) -> Tensor:
    return x[None, :, -2:-1].expand(4, -1, 2)


def slices_broadcast(x: Tensor) -> Tensor:
    part = x[2:9, 2:3]
    return part + part.t()


def slices_squeeze(x: Tensor) -> Tensor:
    return x[:, 1:-1:2].squeeze()


@pytest.mark.filterwarnings("ignore::vtc.errors.VtcWarning")
@pytest.mark.parametrize(
    ("fn", "widths"),
    [
        (pieces_broadcast, (3, 2, 4)),
        (pieces_broadcast_with_all, (1, 2)),
        (slices_expand, (4, 8, 5)),
        (slices_broadcast, (4, 8, 5)),
        (slices_squeeze, (4, 8, 5)),
    ],
)
def test_a_slice_may_have_one_element(fn: Callable[..., Any], widths: tuple[int, ...]) -> None:
    """A slice of one element is broadcast or squeezed, at the call that is traced and later."""
    for first in range(len(widths)):
        torch._dynamo.reset()
        compiled = Compiled(fn)
        for width in (*widths[first:], *widths[:first]):
            x = r(10, width)
            assert_close(compiled(x), fn(x))


def test_a_matmul_of_symbolic_sizes_behind_shared_storage_is_captured() -> None:
    """In C++ PyTorch asks a tensor of three dimensions for the number of its elements."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rolled = torch.roll(x, (-1, 1), (1, 2))  # whose strides PyTorch's own fakes get wrong
        return rolled, x[:, 1:] @ y

    check(f, (r(2, 3, 4), r(4, 5)), (r(3, 4, 5), r(5, 6)))


def test_slices_that_are_empty_now_are_written_by_the_usual_rules() -> None:
    """PyTorch's shape function of a scatter into them fails where a size of 1 is any size."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.add_(1)
        x[1::2, 1::2, :] = y
        return x * 2, y + 1

    check(f, (r(1, 1, 6), r(0, 0, 6)))


def test_a_mask_for_one_head_is_broadcast_to_more_in_a_later_call() -> None:
    def f(q: Tensor, k: Tensor, m: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=m)

    first = r(3, 1, 10, 6), r(3, 1, 4, 6), r(3, 1, 10, 4)
    second = r(3, 2, 5, 6), r(3, 2, 3, 6), r(3, 1, 5, 3)
    check(f, first, second, captures=2)


def test_sizes_may_be_rounded_quotients() -> None:
    def patches(x: Tensor) -> Tensor:
        rows = math.ceil(x.shape[-1] / 4)
        wide = F.pad(x, (0, rows * 4 - x.shape[-1]))
        return wide.reshape(-1, rows, 4)[:, : math.floor(rows / 2) + 1].exp().transpose(1, 2)

    check(patches, (r(3, 18),), (r(3, 23),), (r(3, 33),))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_comparisons_round_numbers_and_scalars_to_the_common_dtype(dtype: torch.dtype) -> None:
    def f(x: Tensor, tenth: Tensor, third: Tensor) -> tuple[Tensor, ...]:
        pairs = (x, 0.1), (x, tenth), (tenth, x), (x, third), (third, x), (x, 1 / 3)
        operators = (torch.eq, torch.lt, torch.ge)
        return tuple(o(*(torch.as_tensor(a) for a in p)) for o in operators for p in pairs)

    x = torch.tensor([0.1, 0.2, 1 / 3, 0.25, -0.1]).to(dtype)
    check(f, (x, torch.tensor(0.1), torch.tensor(1 / 3, dtype=torch.float64)), dynamic=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_that_fill_a_tensor_are_of_its_dtype(dtype: torch.dtype) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        wide = torch.full_like(x, 0.1).double()
        return wide, F.pad(x, (1, 1), value=0.1).double(), x.masked_fill(x > 0, 0.3).double() == 0.3

    check(f, (torch.randn(3, 4).to(dtype),))


@pytest.mark.parametrize(
    "shaped",
    [
        lambda v: v.reshape(8, 2, 1, v.shape[2], -1),
        lambda v: v.reshape(2 * 8, -1, v.shape[3]),
        lambda v: v.flatten(0, 1),
        lambda v: v.contiguous(),
    ],
)
def test_what_is_written_behind_a_reshape_shows_where_it_is_a_view(
    shaped: Callable[[Tensor], Tensor],
) -> None:
    """Whether it is, with sizes that may be 1, no trace for any sizes tells."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        v = x.movedim(3, 0)
        w = shaped(v)
        v[0] = y
        return w + 1, shaped(v * 2)

    calls = []
    for a, b in ((6, 8), (10, 2)):
        lying = torch.randn(2, b, a, 8).transpose(2, 1), torch.randn(8, 2, a, b).movedim(0, 3)
        calls += [(x, torch.randn(2, a, b)) for x in lying]
    for x, y in calls:
        check(f, (x, y), (r(2, 3, 7, 8), r(2, 3, 7)), captures=2)
