"""Makers of updates: statements that write into a value, mostly an argument or a view of it."""

from __future__ import annotations

from drawing import FLOATS, INTEGERS, Draw, overlaps
from movement import Maker

MAKERS: list[tuple[Maker, int]] = []


def _target(d: Draw, least: int = 0) -> str | None:
    """What can be written into: an argument often, a value of the function's own, or a view."""

    def fits(name: str) -> bool:
        t = d[name]
        return t.dim() >= least and t.numel() > 0 and not overlaps(t)

    names = [v for v in d.values if fits(v)]
    arguments = [v for v in names if v.startswith("a")]
    if arguments and d.rng.random() < 0.6:
        return d.rng.choice(arguments)
    return d.rng.choice(names) if names else None


def _source(d: Draw, target: str, like: str) -> str:
    """A value of the form of `like` for `target` that does not overlap it.

    What eager PyTorch makes of an overlap depends on its loops.
    """
    storage = d[target].untyped_storage()._cdata
    return d.twin(like, lambda t: t.untyped_storage()._cdata != storage)


def whole(d: Draw) -> None:
    """v.add_(w), v.copy_(w), v.zero_(), ..."""
    if not (v := _target(d)):
        return
    w = _source(d, v, v)
    number = d.rng.choice([2, -1, 0.5])
    forms = [f"{v}.copy_({w})"] * 3 + [f"{v}.zero_()", f"{v}.fill_({number})"]
    rounded = [f"{v}.add_({w})", f"{v}.mul_({w})", f"{v}.sub_({w}, alpha=2)", f"{v}.add_(1)"]
    if d[v].dtype in FLOATS:
        forms += [f"{v}.relu_()", f"{v}.neg_()", f"{v}.clamp_(-1, 1)"]
    if d.rng.random() < 0.5:
        d.update("update", d.rng.choice(forms), v)
    else:
        d.update("update", d.rng.choice(rounded), v, rounds=True)


def smooth(d: Draw) -> None:
    v = _target(d)
    if v and d[v].dtype in FLOATS:
        call = d.rng.choice(["exp_", "tanh_", "sigmoid_", "sin_"])
        d.update("update", f"{v}.{call}()", v, exact=False)


def assignment(d: Draw) -> None:
    """v[1:3, :, 0] = w"""
    if not (v := _target(d, 1)):
        return
    parts = []
    for k, n in enumerate(d.shape(v)):
        low = min(shape[k] for shape in d.shapes(v))
        start = d.rng.choice(["", "1", "-1", "2", str(n // 2)])
        stop = d.rng.choice(["", "", "-1", str(n // 2 + 1), str(n)])
        step = d.rng.choice(["", "", ":2"])
        draw = d.rng.random()
        if draw < 0.2 and low:
            parts.append(str(d.rng.randrange(-low, low)))
        else:
            parts.append(":" if draw < 0.5 else f"{start}:{stop}{step}")
    place = f"{v}[{', '.join(parts[: d.rng.randint(1, len(parts))])}]"
    if d.rng.random() < 0.2:
        value = d.rng.choice(["0", "1.5", "True"])
        d.update("assign", f"{place} = {value}", v)
        return
    part = d.emit("slice", place)
    if part:
        d.update("assign", f"{place} = {_source(d, v, part[0])}", v)


def indexed(d: Draw) -> None:
    """index_copy_, index_put_, index_add_, scatter_ and assignments at runtime indices."""
    if not (v := _target(d, 1)):
        return
    k = d.rng.randrange(d[v].dim())
    n = min(shape[k] for shape in d.shapes(v))
    if n == 0:
        return
    count = d.rng.randint(1, n)
    part = d.emit("slice", f"{v}.narrow({k}, 0, {count})")
    if not part:
        return
    source = _source(d, v, part[0])
    negative = d.rng.random() < 0.4
    ids = d.index(f"torch.randperm({n})[:{count}]{f' - {n}' if negative else ''}")
    lead = ":, " * k
    forms = [f"{v}[{lead}{ids}] = {source}"]
    if k == 0:
        forms.append(f"{v}.index_put_(({ids},), {source})")
    if not negative:
        forms += [f"{v}.index_copy_({k}, {ids}, {source})"] * 3
    form = d.rng.choice(forms)
    if d.rng.random() < 0.15 and not negative:
        d.update("index_update", f"{v}.index_add_({k}, {ids}, {source})", v, rounds=True)
    else:
        d.update("index_update", form, v)


def masked(d: Draw) -> None:
    if v := _target(d):
        masks = [m for m in d.values if str(d[m].dtype) == "torch.bool"]
        mask = d.rng.choice(masks) if masks else f"({v} > 0)"
        if masks or v in d.exact:
            d.update("masked_update", f"{v}.masked_fill_({mask}, {d.rng.choice([0, 2, -1])})", v)


def counter(d: Draw) -> None:
    """An integer argument that counts, and says where to write."""
    counters = [v for v in d.values if v.startswith("a") and d[v].dtype in INTEGERS[:2]]
    if counters:
        v = d.rng.choice(counters)
        d.update("counter", f"{v}.add_(1)", v)


MAKERS += [(whole, 6), (smooth, 1), (assignment, 8), (indexed, 7), (masked, 1), (counter, 1)]
