"""Numbers as a person reads them."""

from __future__ import annotations


def bytes_text(count: int | None) -> str:
    """Bytes with a binary unit: "512 B", "1.5 MiB"; a dash for None."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB" if value < 1000 else f"{value:,.0f} GiB"


def count_text(count: int | None) -> str:
    """A whole number with separators: "1,024"; a dash for None."""
    return "–" if count is None else f"{count:,}"


def us_text(microseconds: float | None) -> str:
    """Microseconds: "3.2 us", "1.25 ms"; a dash for None."""
    if microseconds is None:
        return "–"
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds:.1f} us"


def seconds_text(seconds: float | None) -> str:
    """Seconds with one decimal; a dash for None."""
    return "–" if seconds is None else f"{seconds:.1f} s"


def percent_text(ratio: float | None) -> str:
    """A ratio as percent with one decimal; a dash for None."""
    return "–" if ratio is None else f"{100 * ratio:.1f}%"


def change_text(before: float | None, after: float | None) -> str:
    """How `after` compares with `before`: "-87%", "-99.7%", "same"; a dash where one is unknown."""
    if before is None or after is None:
        return "–"
    if before == after:
        return "same"
    if before == 0:
        return f"+{after:,.0f}"
    percent = 100 * (after - before) / before
    return f"{percent:+.1f}%" if -100 < percent < -99 else f"{percent:+.0f}%"


def plural(count: int, noun: str) -> str:
    """ "1 edge", "2 edges"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
