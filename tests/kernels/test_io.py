"""Loads and stores through index maps: their text, what it computes, and the machine code of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from index.chains import BIJECTIVE, Chain, chains, concat_map, flip_map, gather_map, slice_map
from kernels.offline import Request, compile_offline
from vtc.index import Fill, IndexMap, Layout, NotRepresentable, accesses, coords, expr
from vtc.index.sizes import as_size
from vtc.index.strided import contiguous_strides
from vtc.kernels import io, jit
from vtc.kernels.text import Lines, pointer_text, size_text
from vtc.program.dtypes import DType

EXAMPLES = settings(
    max_examples=15 if torch.cuda.is_available() else 80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def dense(shape: Sequence[Any]) -> Layout:
    return Layout(shape, contiguous_strides([as_size(s) for s in shape]))


def copy_kernel(
    index_map: IndexMap,
    layouts: Mapping[int, Layout],
    lookups: Mapping[int, Layout],
    *,
    store: bool = False,
    branch: bool = True,
    dtype: DType = DType.I64,
    symbols: Sequence[str] = (),
    **options: bool,
) -> str:
    """A kernel that copies a virtual tensor to a dense one (or back), rows and columns blocked."""
    shape = [as_size(s) for s in index_map.shape]
    lines = Lines()
    sources = [f"s{k}" for k in sorted(layouts)] + [f"t{n}" for n in sorted(lookups)]
    parameters = ", ".join([*sources, "dense", *symbols, "BM: tl.constexpr", "BN: tl.constexpr"])
    with lines.block(f"def copy({parameters}):"):
        lines.add("outer = tl.program_id(2)")
        lines.add("r0 = tl.program_id(1) * BM")
        lines.add("c0 = tl.program_id(0) * BN")
        lines.add("rows = r0 + tl.arange(0, BM)")
        lines.add("columns = c0 + tl.arange(0, BN)")
        places = [io.Coordinate("columns[None, :]", (1,), "c0", "BN", 8)]
        extents = [size_text(shape[-1]), "1"]
        if len(shape) > 1:
            places.insert(0, io.Coordinate("rows[:, None]", (0,), "r0", "BM", 4))
            extents[1] = size_text(shape[-2])
        for k in reversed(range(len(shape) - 2)):
            lines.add(f"i{k} = outer % {size_text(shape[k])}")
            lines.add(f"outer = outer // {size_text(shape[k])}")
            places.insert(0, io.Coordinate(f"i{k}"))
        space = io.Space(
            tuple(places),
            ("BM", "BN"),
            (f"rows[:, None] < {extents[1]}", f"columns[None, :] < {extents[0]}"),
        )
        pointers = io.Pointers(
            {k: f"s{k}" for k in layouts} | {-1: "dense"}, {n: f"t{n}" for n in lookups}, lookups
        )
        printer = io.Printer(lines, space, pointers, **options)
        virtual = accesses(index_map, layouts)
        plain = accesses(IndexMap.identity(shape, -1), {-1: dense(shape)})
        if store:
            printer.store(virtual, printer.load(plain, dtype, branch=branch), dtype)
        else:
            printer.store(plain, printer.full(printer.load(virtual, dtype, branch=branch)), dtype)
    return f"@triton.jit\n{lines}"


def run(text: str, shape: Sequence[int], tensors: Sequence[torch.Tensor], *sizes: int) -> None:
    shape = list(shape)
    rows = shape[-2] if len(shape) > 1 else 1
    outer = torch.Size(shape[:-2]).numel()
    grid = (-(-shape[-1] // 8), -(-rows // 4), outer)
    if 0 not in grid:
        jit.load(text, "copy")[grid](*tensors, *sizes, BM=4, BN=8)


def described(chain: Chain) -> tuple[IndexMap, dict[int, Layout], dict[int, Layout]]:
    try:
        index_map = chain.composed().simplify()
    except NotRepresentable:  # a runtime index into a concat has no boxes
        reject()
    layouts = {k: dense(chain.sources[k].shape) for k in index_map.sources()}
    return index_map, layouts, {n: dense(chain.lookups[n].shape) for n in index_map.lookups()}


@EXAMPLES
@given(chain=chains(high=4), branch=st.booleans())
def test_a_load_gives_what_the_operators_give(chain: Chain, branch: bool) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    index_map, layouts, lookups = described(chain)
    assume(layouts and index_map.shape)
    text = copy_kernel(index_map, layouts, lookups, branch=branch)
    out = torch.full(tuple(index_map.shape), -1, dtype=torch.int64, device=device)
    tensors = [chain.sources[k] for k in sorted(layouts)] + [chain.lookups[n] for n in lookups]
    run(text, out.shape, [*(t.to(device) for t in tensors), out])
    assert torch.equal(out.cpu(), chain.value)


@EXAMPLES
@given(chain=chains(operators=BIJECTIVE, high=4))
def test_a_store_puts_every_element_where_the_map_says(chain: Chain) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    index_map, layouts, lookups = described(chain)
    assume(layouts and index_map.shape)
    value = torch.randint(0, 1000, tuple(index_map.shape), device=device)
    bases = {k: torch.full(tuple(chain.sources[k].shape), -1, device=device) for k in layouts}
    text = copy_kernel(index_map, layouts, lookups, store=True)
    run(text, value.shape, [*(bases[k] for k in sorted(bases)), value])
    held = [bases.get(k, source) for k, source in enumerate(chain.sources)]
    assert torch.equal(index_map.materialize(held).cpu(), value.cpu())
    stored = sum(int((b != -1).sum()) for b in bases.values())
    assert stored == value.numel()


def patterns() -> dict[str, tuple[IndexMap, dict[int, Layout], dict[int, Layout]]]:
    s, t = dense((6, 40)), dense((6, 24))
    shuffle = IndexMap.reshape((6, 2, 20), (6, 40)).compose(
        {0: IndexMap.permute((6, 20, 2), (0, 2, 1))}
    )
    shuffle = shuffle.compose({0: IndexMap.reshape((6, 40), (6, 20, 2))})
    pad = concat_map([(Fill(-7), (6, 3)), (0, (6, 40)), (Fill(-7), (6, 5))], 1)
    up = IndexMap.single((12, 80), [i // 2 for i in expr.axes(2)])
    return {
        "slice": (slice_map((6, 40), (slice(1, 5), slice(8, 40))), {0: s}, {}),
        "concat_columns": (concat_map([(0, (6, 40)), (1, (6, 24))], 1), {0: s, 1: t}, {}),
        "concat_outer": (
            concat_map([(0, (2, 6, 40)), (1, (3, 6, 40))], 0),
            {0: dense((2, 6, 40)), 1: dense((3, 6, 40))},
            {},
        ),
        "shuffle": (shuffle, {0: s}, {}),
        "pad": (pad, {0: s}, {}),
        "upsample": (up, {0: s}, {}),
        "flip": (flip_map((6, 40), [1]), {0: s}, {}),
        "gather_rows": (gather_map((6, 40), 0, 9, 0), {0: s}, {0: dense((9,))}),
    }


@pytest.mark.parametrize("name", sorted(patterns()))
def test_the_text_of(name: str, golden: Callable[[str, str], None]) -> None:
    index_map, layouts, lookups = patterns()[name]
    golden(f"io_{name}", copy_kernel(index_map, layouts, lookups, dtype=DType.F16).rstrip())


def test_symbolic_sizes_are_arguments(device: torch.device) -> None:
    import sympy

    (n,) = sympy.symbols("n", integer=True, positive=True, seq=True)
    index_map = concat_map([(0, (5, n)), (1, (5, 12))], 1)
    layouts = {0: dense((5, n)), 1: dense((5, 12))}
    text = copy_kernel(index_map, layouts, {}, symbols=["n"])
    assert "int64" in text  # n may be anything
    for length in (1, 8, 13):
        parts = [torch.randint(0, 99, (5, k), device=device) for k in (length, 12)]
        out = torch.zeros((5, length + 12), dtype=torch.int64, device=device)
        run(text, out.shape, [*parts, out], length)
        assert torch.equal(out, torch.cat(parts, 1))


def test_offsets_have_64_bits_only_where_an_extent_asks(device: torch.device) -> None:
    rows = 2**28
    for columns, wide in ((4, False), (16, True)):
        index_map = slice_map((rows, columns), (slice(rows - 3, rows), slice(0, columns)))
        text = copy_kernel(index_map, {0: dense((rows, columns))}, {}, dtype=DType.I8)
        assert ("int64" in text) is wide


def test_a_negative_dividend_rounds_down(device: torch.device) -> None:
    i, j = coords(2)
    roll = IndexMap.single((4, 20), [(i - 3) % 4, (j - 7) % 20])
    for narrow in (roll, IndexMap.single((4, 20), [expr.FloorDiv(i - 3, 2) + 2, j])):
        source = torch.randint(0, 99, (4, 20), device=device)
        out = torch.zeros_like(source)
        run(copy_kernel(narrow, {0: dense((4, 20))}, {}), (4, 20), [source, out])
        assert torch.equal(out.cpu(), narrow.materialize([source.cpu()]))


def test_a_fill_keeps_its_value_where_lanes_outside_the_space_give_another(
    device: torch.device,
) -> None:
    """A pooling window's border is -inf, while lanes behind the tensor's end are 0."""
    index_map = concat_map([(Fill(float("-inf")), (3, 2)), (0, (3, 9))], 1)
    text = copy_kernel(index_map, {0: dense((3, 9))}, {}, dtype=DType.F32)
    assert "float('-inf')" in text
    source = torch.randn(3, 9, device=device)
    out = torch.zeros(3, 11, device=device)
    run(text, out.shape, [source, out])
    assert torch.equal(out, torch.nn.functional.pad(source, (2, 0), value=float("-inf")))


def test_checked_lookups_assert_their_range() -> None:
    index_map, layouts, lookups = patterns()["gather_rows"]
    assert "device_assert" in copy_kernel(index_map, layouts, lookups, checked=True)
    assert "device_assert" not in copy_kernel(index_map, layouts, lookups)


def test_loads_stay_sixteen_bytes_wide() -> None:
    """What is contiguous by the map is one wide access in the machine code, in every piece."""
    rows, width = 256, 1024
    halves = concat_map([(0, (rows, 512)), (1, (rows, 512))], 1)
    groups = IndexMap.reshape((rows, 4, 256), (rows, width)).compose(
        {0: IndexMap.permute((rows, 4, 256), (0, 1, 2))}
    )
    swapped = IndexMap.reshape((rows, 2, 512), (rows, width)).compose(
        {0: IndexMap.permute((2, rows, 512), (1, 0, 2))}
    )
    cases = [
        (IndexMap.identity((rows, width)), {0: dense((rows, width))}, {}),
        (halves, {0: dense((rows, 512)), 1: dense((rows, 512))}, {}),
        (groups, {0: dense((rows, 4, 256))}, {}),
        (swapped, {0: dense((2, rows, 512))}, {}),
        (gather_map((rows, width), 0, 64, 0), {0: dense((rows, width))}, {0: dense((64,))}),
    ]
    requests = []
    for index_map, layouts, lookups in cases:
        text = copy_kernel(index_map, layouts, lookups, dtype=DType.F16)
        types = {f"s{k}": pointer_text(DType.F16) for k in layouts}
        types |= {f"t{n}": pointer_text(DType.I64) for n in lookups}
        types["dense"] = pointer_text(DType.F16)
        requests.append(Request(text, "copy", types, {"BM": 4, "BN": 512}))
    for case, machine in zip(cases, compile_offline(requests), strict=True):
        widths = {w for w in machine.loads if not (case[2] and w == 8)}
        assert widths == {16}, (str(case[0]), machine.loads)
        assert set(machine.stores) == {16}
        assert machine.spills == 0
