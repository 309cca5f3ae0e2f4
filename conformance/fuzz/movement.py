"""Makers of movement: each adds one operator that moves values, if it finds operands for it."""

from __future__ import annotations

from collections.abc import Callable

from drawing import Draw, overlaps

Maker = Callable[[Draw], object]
MAKERS: list[tuple[Maker, int]] = []


def maker(weight: int) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        MAKERS.append((make, weight))
        return make

    return register


def _some(d: Draw, least: int = 1) -> str | None:
    return d.pick(lambda t: t.dim() >= least)


def _list(items: list[str] | list[int]) -> str:
    return ", ".join(map(str, items))


# Views.


@maker(4)
def reshape(d: Draw) -> None:
    """Merges neighbours, splits a dimension, or both."""
    v = d.pick()
    if v is None:
        return
    sizes = [d.size(v, k) for k in range(d[v].dim())]
    if sizes and d.rng.random() < 0.6:
        k = d.rng.randrange(len(sizes))
        factors = [f for f in (1, 2, 3, 4, 5, 8) if all(s[k] % f == 0 for s in d.shapes(v))]
        f = d.rng.choice(factors or [1])
        whole = f"{int(sizes[k]) // f}" if sizes[k].isdigit() else f"{sizes[k]} // {f}"
        sizes[k : k + 1] = [str(f), whole] if d.rng.random() < 0.5 else [whole, str(f)]
    if len(sizes) > 1 and d.rng.random() < 0.7:
        k = d.rng.randrange(len(sizes) - 1)
        merged = f"{sizes[k]} * {sizes[k + 1]}"
        if all(map(str.isdigit, sizes[k : k + 2])):
            merged = str(int(sizes[k]) * int(sizes[k + 1]))
        sizes[k : k + 2] = [merged]
    if sizes and d.rng.random() < 0.3:
        sizes[d.rng.randrange(len(sizes))] = "-1"
    call = d.rng.choice(["reshape", "reshape", "view"])
    d.emit("reshape", f"{v}.{call}({_list(sizes) or '()'})")


@maker(1)
def flatten(d: Draw) -> None:
    if v := _some(d, 2):
        a, b = sorted(d.rng.sample(range(d[v].dim()), 2))
        d.emit("flatten", f"{v}.flatten({a}, {b})")


@maker(1)
def unflatten(d: Draw) -> None:
    if v := _some(d):
        k = d.rng.randrange(d[v].dim())
        f = d.rng.choice([1, 2, 3, 4])
        d.emit("unflatten", f"{v}.unflatten({k}, ({d.rng.choice([f'{f}, -1', f'-1, {f}'])}))")


@maker(2)
def squeeze(d: Draw) -> None:
    if v := d.pick(lambda t: 1 in t.shape):
        ones = [k for k, n in enumerate(d.shape(v)) if n == 1]
        d.emit("squeeze", f"{v}.squeeze({d.rng.choice(['', *ones])})")


@maker(3)
def unsqueeze(d: Draw) -> None:
    if v := d.pick():
        k = d.rng.randrange(-d[v].dim() - 1, d[v].dim() + 1)
        index = d.rng.choice([f"{v}.unsqueeze({k})", f"{v}[None]", f"{v}[..., None]"])
        d.emit("unsqueeze", index)


@maker(5)
def permute(d: Draw) -> None:
    if not (v := _some(d, 2)):
        return
    n = d[v].dim()
    order = d.rng.sample(range(n), n)
    a, b = d.rng.sample(range(n), 2)
    forms = [
        f"{v}.permute({_list(order)})",
        f"{v}.transpose({a}, {b})",
        f"{v}.transpose({a - n}, {b - n})",
        f"{v}.mT",
        f"torch.movedim({v}, {a}, {b})",
        f"torch.swapaxes({v}, {a}, {b})",
    ]
    d.emit("permute", d.rng.choice([*forms, f"{v}.t()"] if n == 2 else forms))


@maker(3)
def expand(d: Draw) -> None:
    if not (v := d.pick(lambda t: 1 in t.shape or t.dim() < 3)):
        return
    sizes = [
        str(d.rng.choice([2, 3, 4])) if n == 1 and d.rng.random() < 0.7 else "-1"
        for n in d.shape(v)
    ]
    if d.rng.random() < 0.4:
        sizes.insert(0, str(d.rng.choice([1, 2, 3])))
    d.emit("expand", f"{v}.expand({_list(sizes) or '()'})")


@maker(1)
def broadcast(d: Draw) -> None:
    v, w = d.pick(), d.pick()
    if v and w:
        form = d.rng.choice([f"{v}.expand_as({w})", f"torch.broadcast_to({v}, {w}.shape)"])
        d.emit("expand", form)


@maker(5)
def slices(d: Draw) -> None:
    """Basic indexing: slices with steps, selects, new axes, an ellipsis."""
    if not (v := _some(d)):
        return
    parts = []
    for k, n in enumerate(d.shape(v)):
        low = min(shape[k] for shape in d.shapes(v))
        draw = d.rng.random()
        if draw < 0.35:
            parts.append(":")
        elif draw < 0.5 and low > 0:
            parts.append(str(d.rng.randrange(-low, low)))
        elif draw < 0.55:
            parts += ["None", ":"]
        else:
            parts.append(_cut(d, n))
    if d.rng.random() < 0.2:
        parts[: d.rng.randrange(len(parts)) + 1] = ["..."]
    d.emit("slice", f"{v}[{_list(parts)}]")


def _cut(d: Draw, n: int) -> str:
    start = d.rng.choice(["", "", "1", "-1", "-2", "2", str(n // 2)])
    stop = d.rng.choice(["", "", "-1", str(n // 2), str(max(n - 1, 0)), str(n + 3)])
    step = d.rng.choice(["", "", "", ":2", ":3"])
    return f"{start}:{stop}{step}"


@maker(2)
def narrow(d: Draw) -> None:
    if v := _some(d):
        k = d.rng.randrange(d[v].dim())
        low = min(shape[k] for shape in d.shapes(v))
        start = d.rng.randint(0, low)
        length = d.rng.randint(0 if d.rng.random() < 0.1 else min(1, low - start), low - start)
        d.emit("slice", f"{v}.narrow({k}, {start}, {length})")


@maker(1)
def select(d: Draw) -> None:
    if v := d.pick(lambda t: t.dim() > 0 and t.numel() > 0):
        k = d.rng.randrange(d[v].dim())
        low = min(shape[k] for shape in d.shapes(v))
        if low:
            d.emit("select", f"torch.select({v}, {k}, {d.rng.randrange(-low, low)})")


@maker(4)
def split(d: Draw) -> None:
    if not (v := d.pick(lambda t: t.dim() > 0 and max(t.shape) > 1)):
        return
    k = d.rng.choice([k for k, n in enumerate(d.shape(v)) if n > 1])
    n = d.shape(v)[k]
    count = d.rng.randint(2, 3)
    form = d.rng.choice(["chunk", "split", "sizes", "unbind", "tensor_split"])
    if form == "unbind":
        if n <= 5:
            d.emit("split", f"{v}.unbind({k})", parts=n)
    elif form == "chunk":
        d.emit("split", f"{v}.chunk({count}, {k})", parts=len(d[v].chunk(count, k)))
    elif form == "split":
        d.emit("split", f"{v}.split({-(-n // count)}, {k})", parts=-(-n // -(-n // count)))
    elif form == "tensor_split":
        d.emit("split", f"torch.tensor_split({v}, {count}, {k})", parts=count)
    else:
        a = d.rng.randint(0, n)
        d.emit("split", f"{v}.split([{a}, {n - a}], {k})", parts=2)


@maker(1)
def diagonal(d: Draw) -> None:
    if v := _some(d, 2):
        a, b = d.rng.sample(range(d[v].dim()), 2)
        d.emit("diagonal", f"{v}.diagonal({d.rng.choice([0, 0, 1, -1])}, {a}, {b})")


@maker(1)
def windows(d: Draw) -> None:
    if v := _some(d):
        k = d.rng.randrange(d[v].dim())
        size, step = d.rng.choice([1, 2, 3]), d.rng.choice([1, 2, 3])
        d.emit("unfold", f"{v}.unfold({k}, {size}, {step})")


@maker(1)
def as_strided(d: Draw) -> None:
    """Over a dense tensor, so that eager and compiled code mean the same elements."""
    if len(d.worlds) > 1 or not (v := d.pick(lambda t: t.is_contiguous() and t.numel() > 3)):
        return
    n = d[v].numel()
    rows, step = d.rng.choice([1, 2, 3]), d.rng.choice([1, 2])
    stride = d.rng.randint(0, max((n - 1) // (2 * rows), 1))
    width = d.rng.randint(1, max((n - 1 - (rows - 1) * stride) // step, 1))
    d.emit("as_strided", f"torch.as_strided({v}, ({rows}, {width}), ({stride}, {step}))")


# Joins.


@maker(9)
def cat(d: Draw) -> None:
    if not (v := _some(d)):
        return
    k = d.rng.randrange(d[v].dim())
    parts = [v, *(_part(d, v, k) for _ in range(d.rng.choice([1, 1, 1, 2, 3])))]
    d.rng.shuffle(parts)
    if d[v].dim() == 2 and d.rng.random() < 0.1:
        d.emit("cat", f"torch.{'hstack' if k else 'vstack'}([{_list(parts)}])")
    else:
        d.emit("cat", f"torch.cat([{_list(parts)}], {d.rng.choice([k, k - d[v].dim()])})")


def _part(d: Draw, v: str, k: int) -> str:
    """A tensor that differs from `v` in dimension `k` at most."""
    mine = [shape[:k] + shape[k + 1 :] for shape in d.shapes(v)]

    def fits(name: str) -> bool:
        theirs = d.shapes(name)
        if any(len(shape) != d[v].dim() for shape in theirs):
            return False
        return [shape[:k] + shape[k + 1 :] for shape in theirs] == mine

    mixed = d.rng.random() < 0.08
    found = [n for n in d.values if fits(n) and (mixed or d[n].dtype == d[v].dtype)]
    if found and d.rng.random() < 0.8:
        return d.rng.choice(found)
    n = d.fresh_size()
    shapes = [(*s[:k], m, *s[k + 1 :]) for s, m in zip(d.shapes(v), n, strict=True)]
    return d.argument(shapes, d[v].dtype)


@maker(3)
def stack(d: Draw) -> None:
    if v := d.pick(lambda t: t.dim() < 5):
        parts = [v, *(d.twin(v) for _ in range(d.rng.choice([1, 1, 2])))]
        d.rng.shuffle(parts)
        d.emit("stack", f"torch.stack([{_list(parts)}], {d.rng.randint(0, d[v].dim())})")


@maker(2)
def repeat(d: Draw) -> None:
    if not (v := d.pick()):
        return
    n = d[v].dim()
    form = d.rng.choice(["repeat", "tile", "interleave", "kv"])
    if form == "interleave" and n:
        count, k = d.rng.choice([1, 2, 3]), d.rng.randrange(n)
        d.emit("repeat", f"{v}.repeat_interleave({count}, {k})")
    elif form == "kv" and n == 4:
        b, h, s, w = (d.size(v, k) for k in range(4))
        r = d.rng.choice([2, 3])
        text = f"{v}[:, :, None].expand({b}, {h}, {r}, {s}, {w}).reshape({b}, {h} * {r}, {s}, {w})"
        d.emit("repeat", text)
    elif n:
        counts = [d.rng.choice([1, 1, 2, 3]) for _ in range(n + d.rng.choice([0, 0, 1]))]
        call = "tile" if form == "tile" else "repeat"
        d.emit("repeat", f"{v}.{call}({_list(counts)})")


@maker(3)
def pad(d: Draw) -> None:
    if not (v := _some(d)):
        return
    n = d[v].dim()
    mode = d.rng.choice(["constant"] * 5 + ["reflect", "replicate", "circular"])
    if mode == "constant":
        widths = [d.rng.choice([0, 0, 1, 2, -1]) for _ in range(2 * d.rng.randint(1, min(n, 3)))]
        value = d.rng.choice([0, 1.5, -2, "-inf" if d[v].is_floating_point() else 3])
        d.emit("pad", f"F.pad({v}, ({_list(widths)}), value={value})")
    elif n >= 2:
        widths = [d.rng.choice([0, 1, 2]) for _ in range(2 * max(1, min(n - 2, 2)))]
        d.emit("pad", f"F.pad({v}, ({_list(widths)}), mode={mode!r})")


@maker(3)
def flips(d: Draw) -> None:
    if not (v := _some(d)):
        return
    n = d[v].dim()
    k = d.rng.randrange(n)
    shift = d.rng.choice([1, -1, 2, 5])
    forms = [
        f"{v}.flip({k})",
        f"torch.flip({v}, ({_list(d.rng.sample(range(n), d.rng.randint(1, n)))},))",
        f"torch.roll({v}, {shift}, {k})",
        f"torch.roll({v}, {shift})",
    ]
    if n >= 2:
        a, b = d.rng.sample(range(n), 2)
        forms += [f"torch.roll({v}, ({shift}, 1), ({a}, {b}))", f"torch.rot90({v}, 1, ({a}, {b}))"]
    d.emit("flip", d.rng.choice(forms))


@maker(2)
def shuffles(d: Draw) -> None:
    """Images: pixels to channels and back, channels shuffled, nearest neighbours."""
    if not (v := d.pick(lambda t: t.dim() in (3, 4) and t.numel() > 0)):
        return
    forms = [
        f"F.pixel_shuffle({v}, 2)",
        f"F.pixel_unshuffle({v}, 2)",
        f"F.channel_shuffle({v}, {d.rng.choice([2, 3])})",
        f"F.interpolate({v}, scale_factor=2, mode='nearest')",
        f"F.interpolate({v}, scale_factor=1.5, mode='nearest')",
        f"F.unfold({v}, {d.rng.choice([1, 2])}, stride={d.rng.choice([1, 2])})",
    ]
    d.emit("shuffle", d.rng.choice(forms))


@maker(3)
def copies(d: Draw) -> None:
    if v := d.pick():
        forms = [f"{v}.clone()", f"{v}.contiguous()", f"{v}.detach()", f"torch.atleast_2d({v})"]
        if d[v].dim() == 4:
            forms += [f"{v}.contiguous(memory_format=torch.channels_last)"] * 2
            forms += [f"{v}.clone(memory_format=torch.channels_last)"]
        if d[v].is_floating_point() or d[v].dim() == 0:
            forms.append(f"{v}.contiguous() if {v}.dim() > 1 else {v}.clone()")
        d.emit("copy", d.rng.choice(forms[:-1]))


@maker(1)
def triangles(d: Draw) -> None:
    if v := _some(d, 2):
        call = d.rng.choice(["tril", "triu"])
        d.emit("triangle", f"torch.{call}({v}, {d.rng.choice([0, 0, 1, -1])})")


@maker(1)
def bits(d: Draw) -> None:
    """The same bytes as another dtype of the same width."""
    pairs = {"torch.float32": "torch.int32", "torch.int32": "torch.int32"}
    if v := d.pick(lambda t: str(t.dtype) in pairs, exact=True):
        d.emit("view_dtype", f"{v}.view({pairs[str(d[v].dtype)]})")


# Runtime indices.


def _indices(d: Draw, n: int, shape: tuple[int, ...], least: int) -> str:
    """An index tensor for a dimension of size `n`; an existing one if there is one."""
    found = [
        v
        for v in d.values
        if str(d[v].dtype) in ("torch.int64", "torch.int32")
        and tuple(d[v].shape) == shape
        and all(x[v].numel() == 0 or (x[v].min() >= least and x[v].max() < n) for x in d.worlds)
    ]
    if found and d.rng.random() < 0.6:
        return d.rng.choice(found)
    return d.index(f"torch.randint({least}, {n}, {shape})")


@maker(6)
def gathers(d: Draw) -> None:
    if not (v := d.pick(lambda t: t.dim() > 0 and t.numel() > 0)):
        return
    rank = d[v].dim()
    k = d.rng.randrange(rank)
    n = min(shape[k] for shape in d.shapes(v))
    if n == 0:
        return
    count = d.rng.choice([1, 2, 3, 5, 0 if d.rng.random() < 0.1 else 4])
    form = d.rng.choice(
        ["index", "index", "select", "gather", "pair", "take", "embedding", "along"]
    )
    lead = ":, " * k
    if form == "select":
        d.emit("gather", f"{v}.index_select({k}, {_indices(d, n, (count,), 0)})")
    elif form == "embedding" and rank == 2 and (rows := min(shape[0] for shape in d.shapes(v))):
        ids = _indices(d, rows, d.rng.choice([(count,), (2, count)]), 0)
        d.emit("gather", f"F.embedding({ids}, {v})")
    elif form in ("gather", "along") and len(d.worlds) == 1:
        shape = list(d.shape(v))
        shape[k] = count
        if form == "gather":
            shape = [d.rng.randint(1, s) if j != k and s else s for j, s in enumerate(shape)]
        ids = _indices(d, n, tuple(shape), 0)
        call = "gather" if form == "gather" else "take_along_dim"
        args = f"{v}, {k}, {ids}" if form == "gather" else f"{v}, {ids}, {k}"
        d.emit("gather", f"torch.{call}({args})")
    elif form == "pair" and rank >= 2:
        a, b = (min(shape[j] for shape in d.shapes(v)) for j in (0, 1))
        if a and b:
            first = _indices(d, a, (count,), -a)
            second = _indices(d, b, d.rng.choice([(count,), (2, 1), (1,)]), -b)
            d.emit("gather", f"{v}[{first}, {second}]")
    elif form == "take" and len(d.worlds) == 1:
        d.emit("gather", f"torch.take({v}, {_indices(d, d[v].numel(), (2, count), 0)})")
    else:
        shape = d.rng.choice([(count,), (count,), (2, count), ()])
        d.emit("gather", f"{v}[{lead}{_indices(d, n, shape, -n)}]")


@maker(3)
def scatters(d: Draw) -> None:
    """Functional ones; those in place are updates."""
    if not (v := d.pick(lambda t: t.dim() > 0 and t.numel() > 0)):
        return
    rank = d[v].dim()
    k = d.rng.randrange(rank)
    n = min(shape[k] for shape in d.shapes(v))
    if n == 0:
        return
    form = d.rng.choice(["slice", "slice", "select", "index_copy", "scatter", "diagonal", "add"])
    part = d.emit("slice", f"{v}.narrow({k}, 0, {d.rng.randint(1, n)})")
    if not part:
        return
    src = d.twin(part[0])
    if form in ("slice", "select", "diagonal") and overlaps(d[v]):
        return  # these write into a copy with the strides of the operand
    count = d.shape(part[0])[k]
    if form == "slice":
        start = d.rng.randint(0, n - count)
        d.emit("scatter", f"torch.slice_scatter({v}, {src}, {k}, {start}, {start + count})")
    elif form == "select":
        d.emit(
            "scatter", f"torch.select_scatter({v}, {src}.select({k}, 0), {k}, {d.rng.randrange(n)})"
        )
    elif form in ("index_copy", "add"):
        ids = d.index(f"torch.randperm({n})[:{count}]")
        call = "index_copy" if form == "index_copy" else "index_add"
        d.emit("scatter", f"{v}.{call}({k}, {ids}, {src})", rounds=form == "add")
    elif form == "scatter" and len(d.worlds) == 1:
        order = f"torch.rand({d.shape(v)}).argsort({k})"
        ids = d.index(f"{order}.narrow({k}, 0, {count}).contiguous()")
        d.emit("scatter", f"torch.scatter({v}, {k}, {ids}, {src})")
    elif form == "diagonal" and rank >= 2:
        source = d.emit("diagonal", f"{d.twin(v)}.diagonal()")
        if source:
            d.emit("scatter", f"torch.diagonal_scatter({v}, {source[0]})")
