"""Layered layout: links run down, nodes of a row do not overlap, chains are straight."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from vtc.report.layout import layered

HEIGHT, COLUMN, ROW = 40.0, 20.0, 30.0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, int]]]:
    count = draw(st.integers(1, 14))
    widths = draw(st.lists(st.floats(20, 200), min_size=count, max_size=count))
    pairs = list(combinations(range(count), 2))
    links = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=24)) if pairs else []
    return widths, sorted(links)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_links_run_down_and_nodes_do_not_overlap(
    graph: tuple[list[float], list[tuple[int, int]]],
) -> None:
    widths, links = graph
    layout = layered(widths, links, node_height=HEIGHT, column_gap=COLUMN, row_gap=ROW)
    for (u, v), path in zip(links, layout.paths, strict=True):
        assert (path[0], path[-1]) == (layout.centres[u], layout.centres[v])
        steps = [b[1] - a[1] for a, b in pairwise(path)]
        assert all(abs(step - (HEIGHT + ROW)) < 1e-6 for step in steps)
    for a, b in combinations(range(len(widths)), 2):
        (xa, ya), (xb, yb) = layout.centres[a], layout.centres[b]
        if ya == yb:
            assert abs(xa - xb) >= (widths[a] + widths[b]) / 2 + COLUMN - 1e-6
    for (x, y), width in zip(layout.centres, widths, strict=True):
        assert width / 2 - 1e-6 <= x <= layout.width - width / 2 + 1e-6
        assert HEIGHT / 2 <= y <= layout.height - HEIGHT / 2 + 1e-6


def test_a_chain_is_straight() -> None:
    links = [(k, k + 1) for k in range(9)]
    layout = layered([50.0] * 10, links, node_height=HEIGHT, column_gap=COLUMN, row_gap=ROW)
    assert len({round(x, 6) for x, _ in layout.centres}) == 1


def test_avoidable_crossings_are_avoided() -> None:
    # Two pairs whose program order interleaves: a -> d and b -> c.
    layout = layered(
        [50.0] * 4, [(0, 3), (1, 2)], node_height=HEIGHT, column_gap=COLUMN, row_gap=ROW
    )
    a, b, c, d = (x for x, _ in layout.centres)
    assert (a < b) == (d < c)
