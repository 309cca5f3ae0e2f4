"""Random plans: tiny ones of any shape for the legality oracle, and realistic ones for search."""

from __future__ import annotations

import random
from collections.abc import Callable

from virtual.plans import Builder
from vtc.graph.rules_concat import concat, expand
from vtc.graph.rules_pad import pad
from vtc.graph.rules_scatter import index_copy, slice_scatter
from vtc.graph.rules_slice import slice_, split
from vtc.graph.rules_space import channel_shuffle
from vtc.graph.rules_view import reshape, transpose
from vtc.virtual.plan import PlanGraph


def tiny_plan(rng: random.Random) -> PlanGraph:
    """Up to eight steps, most of them movement, over tensors of rank 2 and a few elements."""
    g = Builder()
    pool = [g.input("x", 2, 2)]
    caches: dict[str, str] = {}
    if rng.random() < 0.8:
        caches["cache"] = g.cache("cache", 4, 2)
        pool.append("cache")
    index = g.input("index", 1 if rng.random() < 0.6 else 2)
    for number in range(rng.randint(3, 8)):
        name = f"t{number}"
        made = rng.choice(_MAKERS)(g, name, pool, caches, index, rng)
        if made:
            pool.append(name)
    used = {n for step in g.steps for n in getattr(step, "reads", getattr(step, "sources", ()))}
    made = [n for n in pool if g.tensors[n].kind == "internal"]
    if not made:
        made = [g.region("t", [pool[0]], 2, 2)]
    outputs = [n for n in made if n not in used and n not in caches.values()] or [made[-1]]
    outputs = outputs[: rng.randint(1, 2)]
    last = g.region("last", sorted(set(rng.sample(pool, min(2, len(pool))))), 1, 2)
    updated = {name: final for name, final in caches.items() if final != name}
    return g.build(*outputs, last, **updated)


def _region(g, name, pool, caches, index, rng):
    reads = sorted(set(rng.choices(pool, k=rng.randint(1, 2))))
    return g.region(name, reads, *rng.choice([(2, 2), (4, 2), (1, 2)]))


def _concat(g, name, pool, caches, index, rng):
    parts = [n for n in rng.choices(pool, k=2) if g.shape(n)[1] == 2]
    if len(parts) < 2 or sum(g.shape(n)[0] for n in parts) > 8:
        return None
    return g.move(name, concat([g.shape(n) for n in parts], 0), parts)


def _slice(g, name, pool, caches, index, rng):
    source = rng.choice(pool)
    rows = g.shape(source)[0]
    if rows < 2:
        return None
    start = rng.randrange(rows - 1)
    stop = rng.randint(start + 1, rows)
    return g.move(name, slice_(g.shape(source), [start], [stop], [0]), [source])


def _reshape(g, name, pool, caches, index, rng):
    source = rng.choice(pool)
    rows, columns = g.shape(source)
    if rng.random() < 0.5:
        return g.move(name, transpose((rows, columns)), [source])
    return g.move(name, reshape((rows, columns), (rows * columns // 2, 2)), [source])


def _pad(g, name, pool, caches, index, rng):
    source = rng.choice(pool)
    if g.shape(source)[0] > 3:
        return None
    return g.move(name, pad(g.shape(source), [(rng.randint(0, 1), 1), (0, 0)]), [source])


def _expand(g, name, pool, caches, index, rng):
    source = rng.choice([n for n in pool if g.shape(n)[0] == 1] or [""])
    if not source:
        return None
    return g.move(name, expand(g.shape(source), (2, g.shape(source)[1])), [source])


def _scatter(g, name, pool, caches, index, rng):
    """A scatter on a cache's newest value, on an older one, or on any other tensor."""
    newest = list(caches.values())
    data = rng.choice(newest) if newest and rng.random() < 0.7 else rng.choice(pool)
    rows, columns = g.shape(data)
    count = g.shape(index)[0]
    if columns != 2 or rows < 2:
        return None
    static = rng.random() < 0.4
    size = rng.randint(1, 2) if static else count
    updates = [n for n in pool if g.shape(n) == (size, 2)]
    if not updates:
        return None
    chosen = rng.choice(updates)
    if static:
        start = rng.randint(0, rows - size)
        movement = slice_scatter((rows, 2), 0, start, size)
        g.move(name, movement, [data, chosen])
    else:
        g.move(name, index_copy((rows, 2), (count, 2), 0), [data, chosen], [index])
    for cache, final in caches.items():
        if final == data and g.shape(name) == g.shape(cache):
            caches[cache] = name
    return name


_MAKERS: list[Callable[..., str | None]] = [
    _region,
    _region,
    _region,
    _concat,
    _concat,
    _slice,
    _reshape,
    _pad,
    _expand,
    _scatter,
    _scatter,
    _scatter,
]


def realistic_plan(rng: random.Random) -> PlanGraph:
    """One to three blocks of what models do: concat, split, shuffle, cache writes, padding."""
    g = Builder()
    channels, size = rng.choice([16, 32, 58]), rng.choice([7, 14, 28])
    state = g.region("stem", [g.input("image", 1, 3, size, size)], 1, channels, size, size)
    caches: dict[str, str] = {}
    used = 0
    for number in range(rng.randint(1, 3)):
        block = rng.choice(_BLOCKS)
        weight = _WEIGHTS[block]
        if used + weight > 14:
            continue
        used += weight
        state = block(g, f"n{number}", state, caches, rng)
    out = g.region("head", [state], 1, 8)
    return g.build(out, **caches)


def repeated_plan(rng: random.Random, count: int = 4) -> PlanGraph:
    """One block several times, as the layers of a model are."""
    g = Builder()
    state = g.region("stem", [g.input("image", 1, 3, 14, 14)], 1, 32, 14, 14)
    caches: dict[str, str] = {}
    block, seed = rng.choice(_BLOCKS), rng.random()
    for number in range(count):
        state = block(g, f"n{number}", state, caches, random.Random(seed))
    return g.build(g.region("head", [state], 1, 8), **caches)


def _conv(g: Builder, name: str, source: str, channels: int) -> str:
    n, c, h, w = g.shape(source)
    return g.region(name, [source], n, channels, h, w, flops=2 * n * c * channels * h * w)


def _branches(g, name, state, caches, rng):
    """Inception: convolutions side by side, concatenated."""
    _, channels, *_ = g.shape(state)
    parts = [_conv(g, f"{name}_{k}", state, channels // 2) for k in range(rng.randint(2, 3))]
    joined = g.move(f"{name}_cat", concat([g.shape(p) for p in parts], 1), parts)
    return _conv(g, f"{name}_out", joined, channels)


def _split_cat(g, name, state, caches, rng):
    """C3K2: a part of a split is used and concatenated as well."""
    n, channels, h, w = g.shape(state)
    half = channels // 2
    wide = _conv(g, f"{name}_e", state, 2 * half)
    parts = [
        g.move(f"{name}_{k}", split((n, 2 * half, h, w), 1, k, (half, half)), [wide])
        for k in range(2)
    ]
    parts.append(_conv(g, f"{name}_c", parts[-1], half))
    joined = g.move(f"{name}_cat", concat([g.shape(p) for p in parts], 1), parts)
    return _conv(g, f"{name}_out", joined, channels)


def _shuffle(g, name, state, caches, rng):
    """ShuffleNet: split, one branch convolved, concat, channel shuffle."""
    n, channels, h, w = g.shape(state)
    half = channels // 2
    kept = g.move(f"{name}_a", split((n, channels, h, w), 1, 0, (half, half)), [state])
    other = g.move(f"{name}_b", split((n, channels, h, w), 1, 1, (half, half)), [state])
    branch = _conv(g, f"{name}_conv", other, half)
    joined = g.move(f"{name}_cat", concat([(n, half, h, w)] * 2, 1), [kept, branch])
    mixed = g.move(f"{name}_shuffle", channel_shuffle((n, channels, h, w), 2), [joined])
    return _conv(g, f"{name}_out", mixed, channels)


def _cache_write(g, name, state, caches, rng):
    """Decoding: a part of a projection goes into a cache, which attention reads a slice of."""
    heads, width, length = 4, 16, 64
    total = heads * width
    joined = g.region(f"{name}_qkv", [state], 1, 3 * total, flops=2 * 3 * total * total)
    query, key, _ = (
        g.move(f"{name}_{n}", split((1, 3 * total), 1, k, (total,) * 3), [joined])
        for k, n in enumerate("qkv")
    )
    keys = g.move(f"{name}_kh", reshape((1, total), (1, heads, width)), [key])
    cache, index = g.cache(f"{name}_cache", length, heads, width), g.input(f"{name}_pos", 1)
    new = g.move(
        f"{name}_new",
        index_copy((length, heads, width), (1, heads, width), 0),
        [cache, keys],
        [index],
    )
    caches[cache] = new
    seen = g.move(f"{name}_seen", slice_((length, heads, width), [0], [length // 2], [0]), [new])
    out = g.region(f"{name}_attn", [query, seen], 1, total, flops=2 * total * length)
    _, channels, h, w = g.shape(state)
    return g.region(f"{name}_out", [out, state], 1, channels, h, w)


def _padded(g, name, state, caches, rng):
    """A convolution of an input with explicit borders."""
    n, channels, h, w = g.shape(state)
    inner = _conv(g, f"{name}_in", state, channels)
    wide = g.move(
        f"{name}_pad", pad((n, channels, h, w), [(0, 0), (0, 0), (1, 1), (1, 1)]), [inner]
    )
    return g.region(f"{name}_out", [wide], n, channels, h, w, flops=18 * n * channels**2 * h * w)


_WEIGHTS = {_branches: 6, _split_cat: 8, _shuffle: 8, _cache_write: 6, _padded: 2}
_BLOCKS = list(_WEIGHTS)
