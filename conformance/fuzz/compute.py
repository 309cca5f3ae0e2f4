"""Makers of computation: pointwise operators, reductions, matmuls, convolutions, attention."""

from __future__ import annotations

import torch
from drawing import FLOATS, INTEGERS, Draw
from movement import Maker
from torch import Tensor

MAKERS: list[tuple[Maker, int]] = []


def maker(weight: int):  # type: ignore[no-untyped-def]
    def register(make: Maker) -> Maker:
        MAKERS.append((make, weight))
        return make

    return register


def _floating(t: Tensor) -> bool:
    return t.dtype in FLOATS


def _whole(t: Tensor) -> bool:
    return t.dtype in INTEGERS


# Pointwise.

ONE_ANSWER = ["neg", "abs", "relu", "sign", "square"]
STEPS = ["floor", "ceil", "round", "trunc", "isnan", "logical_not", "signbit", "isfinite", "frac"]
SMOOTH = ["exp", "sin", "cos", "tanh", "sigmoid", "erf", "expm1", "atan", "asinh", "exp2"]
PARTIAL = ["sqrt", "rsqrt", "log", "log1p", "reciprocal", "log2", "lgamma", "digamma"]
ACTIVATIONS = [
    "F.gelu({})",
    "F.gelu({}, approximate='tanh')",
    "F.silu({})",
    "F.softplus({})",
    "F.mish({})",
    "F.elu({})",
    "F.selu({})",
    "F.logsigmoid({})",
    "F.softsign({})",
    "F.tanhshrink({})",
    "F.celu({}, 0.7)",
]
CLIPPED = [
    "F.relu6({})",
    "F.hardtanh({})",
    "F.leaky_relu({}, 0.25)",
    "torch.clamp({}, -0.5, 1.5)",
    "torch.clamp({}, min=-1)",
    "F.threshold({}, 0.5, 0.25)",
]
HARD = ["F.hardswish({})", "F.hardsigmoid({})"]


@maker(14)
def unary(d: Draw) -> None:
    draw = d.rng.random()
    if draw < 0.25:
        if v := d.pick(lambda t: t.dtype != torch.bool):
            d.emit("unary", f"{v}.{d.rng.choice(ONE_ANSWER)}()", rounds=True)
    elif draw < 0.35:
        if v := d.pick(_floating, exact=True):
            d.emit("step", f"{v}.{d.rng.choice(STEPS)}()")
    elif v := d.pick(_floating):
        if draw < 0.6:
            d.emit("unary", f"{v}.{d.rng.choice(SMOOTH)}()", exact=False)
        elif draw < 0.7:
            call = d.rng.choice(PARTIAL)
            d.emit("unary", f"({v}.abs() + 0.5).{call}()", exact=False)
        elif draw < 0.85:
            d.emit("activation", d.rng.choice(ACTIVATIONS).format(v), exact=False)
        elif draw < 0.95:
            d.emit("clip", d.rng.choice(CLIPPED).format(v), rounds=True)
        else:
            d.emit("activation", d.rng.choice(HARD).format(v), exact=False)


def _pair(d: Draw) -> tuple[str, str] | None:
    """Two tensors that broadcast, often of one shape."""
    if not (v := d.pick()):
        return None
    if d.rng.random() < 0.6:
        return v, d.twin(v)
    for _ in range(4):
        w = d.pick()
        assert w is not None
        try:
            for a, b in zip(d.shapes(v), d.shapes(w), strict=True):
                torch.broadcast_shapes(a, b)
        except RuntimeError:
            continue
        return (v, w) if d.rng.random() < 0.5 else (w, v)
    k = d.rng.randint(0, d[v].dim())
    shapes = [
        tuple(1 if j < d[v].dim() - 1 and d.rng.random() < 0.0 else n for j, n in enumerate(s))[k:]
        for s in d.shapes(v)
    ]
    if shapes[0] and d.rng.random() < 0.3:
        shapes = [(1, *s[1:]) for s in shapes]
    return v, d.argument(shapes, d[v].dtype)


@maker(16)
def binary(d: Draw) -> None:
    if not (pair := _pair(d)):
        return
    v, w = pair
    draw = d.rng.random()
    if draw < 0.45:
        sign = d.rng.choice(["+", "-", "*", "+", "*"])
        d.emit("binary", f"{v} {sign} {w}", rounds=True)
    elif draw < 0.6:
        call = d.rng.choice(["maximum", "minimum", "fmax", "fmin"])
        d.emit("binary", f"torch.{call}({v}, {w})")
    elif draw < 0.7:
        forms = [f"{v} / ({w}.abs() + 1)", f"torch.atan2({v}, {w}.abs() + 1)"]
        forms += [f"torch.hypot({v}, {w})", f"torch.add({v}, {w}, alpha=0.5)"]
        forms += [f"torch.lerp({v}, {w}, 0.3)", f"({v}.abs() + 0.1) ** ({w}.tanh())"]
        forms += [f"torch.addcmul({v}, {w}, {w}, value=0.5)", f"torch.rsub({v}, {w})"]
        forms += [f"torch.addcdiv({v}, {w}, {w}.abs() + 1)", f"torch.logaddexp({v}, {w})"]
        d.emit("binary", d.rng.choice(forms), exact=False)
    elif v in d.exact and w in d.exact:
        if draw < 0.85:
            sign = d.rng.choice(["<", "<=", ">", ">=", "==", "!="])
            d.emit("compare", f"{v} {sign} {w}")
        elif draw < 0.9:
            forms = [f"torch.copysign({v}, {w})", f"torch.remainder({v}, {w}.abs() + 1)"]
            forms += [f"torch.fmod({v}, {w}.abs() + 1)", f"torch.floor_divide({v}, {w}.abs() + 1)"]
            d.emit("binary", d.rng.choice(forms), rounds=True)
        elif (_whole(d[v]) and _whole(d[w])) or d[v].dtype == d[w].dtype == torch.bool:
            call = d.rng.choice(["&", "|", "^"])
            d.emit("binary", f"{v} {call} {w}")
        else:
            call = d.rng.choice(["logical_and", "logical_or", "logical_xor"])
            d.emit("binary", f"torch.{call}({v}, {w})")


@maker(6)
def with_number(d: Draw) -> None:
    if not (v := d.pick(lambda t: t.dtype != torch.bool)):
        return
    number = d.rng.choice([2, 3, -1, 0, 1])
    if d[v].is_floating_point() and d.rng.random() < 0.6:
        number = d.rng.choice([0.5, -1.25, 2.0, 0.1])
    forms = [f"{v} + {number}", f"{v} * {number}", f"{number} - {v}", f"{v} - {number}"]
    if d.rng.random() < 0.7:
        d.emit("scalar", d.rng.choice(forms), rounds=True)
    elif d[v].is_floating_point():
        forms = [f"{v} / 3", f"1.5 / ({v}.abs() + 1)", f"{v} ** 2", f"{v}.abs() ** 1.5"]
        d.emit("scalar", d.rng.choice([*forms, f"{v} ** 3"]), exact=False)
    elif v in d.exact:
        forms = [f"{v} // 3", f"{v} % 4", f"{v} // -2", f"{v} / 2", f"{v} << 1", f"{v} >> 1"]
        d.emit("scalar", d.rng.choice(forms))


@maker(4)
def choices(d: Draw) -> None:
    if not (pair := _pair(d)):
        return
    v, w = pair
    masks = [m for m in d.values if d[m].dtype == torch.bool]
    if masks and d.rng.random() < 0.7:
        mask = d.rng.choice(masks)
    elif v in d.exact and d[v].dtype != torch.bool:
        mask = f"({v} > 0)"
    else:
        return
    forms = [f"torch.where({mask}, {v}, {w})", f"torch.where({mask}, {v}, 0)"]
    forms += [f"{v}.masked_fill({mask}, -1)"]
    d.emit("where", d.rng.choice(forms))


@maker(4)
def casts(d: Draw) -> None:
    if not (v := d.pick(exact=d.rng.random() < 0.5)):
        return
    if v in d.exact and d.rng.random() < 0.5:
        target = d.rng.choice([*FLOATS, *INTEGERS, torch.bool])
    else:
        target = d.rng.choice([*FLOATS, torch.float32])
    if target in INTEGERS and _floating(d[v]):
        if d.special or v not in d.exact:
            return  # what a cast of nan or of a rounded value gives is not defined
        value = f"{v}.clamp(0, 100)" if target == torch.uint8 else f"{v}.clamp(-100, 100)"
        d.emit("cast", f"{value}.to({target})")
        return
    if target == torch.bool and v not in d.exact:
        return
    name = str(target).removeprefix("torch.")
    short = {"float32": "float", "float64": "double", "float16": "half", "int64": "long"}
    forms = [f"{v}.to({target})"] + ([f"{v}.{short[name]}()"] if name in short else [])
    d.emit("cast", d.rng.choice(forms))


@maker(2)
def made(d: Draw) -> None:
    """Tensors from nothing, or from a shape alone."""
    n = d.rng.choice([1, 2, 3, 4, 6])
    v = d.pick(lambda t: t.dim() > 0)
    forms = [f"torch.arange({n})", f"torch.zeros({n}, 3)", f"torch.full(({n},), 1.5)"]
    forms += [f"torch.ones({n}, dtype=torch.float64)", f"torch.arange({n}, 0, -1) * 0.5"]
    if v:
        forms += [f"torch.zeros_like({v})", f"{v}.new_ones({d.size(v, 0)}, 2)"] * 2
        forms += [f"torch.full_like({v}, 2)", f"{v}.new_zeros({v}.shape)"] * 2
        forms += [f"torch.arange({v}.shape[0])", f"{v}.new_zeros({d.size(v, -1)}, 3)"]
    d.emit("make", d.rng.choice(forms))


# Reductions.


def _dims(d: Draw, v: str) -> str:
    n = d[v].dim()
    if not n or d.rng.random() < 0.15:
        return ""
    chosen = d.rng.sample(range(n), d.rng.choice([1, 1, 1, min(2, n)]))
    if d.rng.random() < 0.3:
        chosen = [k - n for k in chosen]
    keep = d.rng.choice(["", ", keepdim=True"])
    return (str(chosen[0]) if len(chosen) == 1 else str(tuple(chosen))) + keep


@maker(9)
def reductions(d: Draw) -> None:
    draw = d.rng.random()
    if draw < 0.25:
        if v := d.pick(lambda t: t.numel() > 0):
            dims = _dims(d, v)
            d.emit("reduce", f"{v}.{d.rng.choice(['amax', 'amin'])}({dims or '()'})")
    elif draw < 0.35:
        if v := d.pick(lambda t: t.dim() > 0 and t.numel() > 0, exact=True):
            k = d.rng.randrange(-d[v].dim(), d[v].dim())
            forms = [f"{v}.argmax({k})", f"{v}.argmin({k}, keepdim=True)", f"{v}.argmax()"]
            forms += [f"{v}.any({k})", f"{v}.all({k})", f"torch.count_nonzero({v}, {k})"]
            forms += [f"{v}.max({k}).values", f"{v}.max({k}).indices", f"{v}.min({k}).indices"]
            d.emit("reduce", d.rng.choice(forms))
    elif draw < 0.55:
        if v := d.pick(_whole) if d.rng.random() < 0.3 else d.pick():
            call = d.rng.choice(["sum", "sum", "mean", "prod"])
            dims = _dims(d, v)
            if call == "prod":
                dims = dims if not dims.startswith("(") else "0"
            if call == "mean" and not d[v].is_floating_point():
                call = "sum"
            d.emit("reduce", f"{v}.{call}({dims})", exact=False)
    elif v := d.pick(lambda t: _floating(t) and t.dim() > 0):
        k = d.rng.randrange(-d[v].dim(), d[v].dim())
        keep = d.rng.choice([True, False])
        forms = [
            f"{v}.var({k}, unbiased=False)",
            f"{v}.std({k}, correction=0, keepdim={keep})",
            f"{v}.logsumexp({k})",
            f"{v}.norm(dim={k}, keepdim={keep})",
            f"torch.linalg.vector_norm({v}, dim={k})",
            f"{v}.softmax({k})",
            f"{v}.softmax({k})",
            f"F.log_softmax({v}, {k})",
            f"{v}.cumsum({k})",
            f"F.normalize({v}, dim={k})",
            f"torch.var_mean({v}, {k}, correction=0)[0]",
        ]
        d.emit("reduce", d.rng.choice(forms), exact=False)


@maker(1)
def scans(d: Draw) -> None:
    if v := d.pick(lambda t: t.dim() > 0 and t.numel() > 0, exact=True):
        k = d.rng.randrange(d[v].dim())
        call = d.rng.choice(["cummax", "cummin"])
        forms = [f"{v}.{call}({k}).values"]
        if _whole(d[v]):
            forms += [f"{v}.cumsum({k})", f"{v}.cumprod({k})"]
        d.emit("scan", d.rng.choice(forms))


@maker(3)
def norms(d: Draw) -> None:
    v = d.pick(lambda t: _floating(t) and t.dim() >= 2 and t.numel() > 0)
    if d.special:
        return  # where the mean is no number, kernels differ in what they make of the rest
    if not v or len({s[-1] for s in d.shapes(v)}) > 1 or len({s[1] for s in d.shapes(v)}) > 1:
        return
    n, c, dtype = d.shape(v)[-1], d.shape(v)[1], d[v].dtype
    worlds = len(d.worlds)

    def weight(size: int) -> str:
        return d.argument([(size,)] * worlds, dtype)

    form = d.rng.choice(["layer", "layer", "rms", "group", "batch"])
    if form == "layer":
        d.emit("norm", f"F.layer_norm({v}, ({n},), {weight(n)}, {weight(n)})", exact=False)
    elif form == "rms":
        d.emit("norm", f"F.rms_norm({v}, ({n},), {weight(n)})", exact=False)
    elif form == "group":
        groups = d.rng.choice([g for g in (1, 2, 3, 4) if c % g == 0])
        d.emit("norm", f"F.group_norm({v}, {groups}, {weight(c)}, {weight(c)})", exact=False)
    else:
        mean, var = weight(c), weight(c)
        call = f"F.batch_norm({v}, {mean}, {var}.abs() + 0.5, {weight(c)}, {weight(c)})"
        d.emit("norm", call, exact=False)


# Contractions.


@maker(7)
def matmuls(d: Draw) -> None:
    v = d.pick(lambda t: _floating(t) and t.dim() >= 1 and t.shape[-1] <= 64)
    if not v:
        return
    dtype, rank = d[v].dtype, d[v].dim()
    inner = [s[-1] for s in d.shapes(v)]
    fixed = len(set(inner)) == 1
    n = d.rng.choice([1, 2, 3, 4, 5, 8, 16, 20])
    form = d.rng.choice(["matmul", "matmul", "linear", "linear", "bmm", "add", "self", "mv", "sum"])
    if form == "self" and rank >= 2:
        d.emit("matmul", f"{v} @ {v}.transpose(-1, -2)", exact=False)
    elif form == "linear" and fixed:
        w = _operand(d, [(n, k) for k in inner], dtype)
        bias = f", {_operand(d, [(n,)] * len(inner), dtype)}" if d.rng.random() < 0.5 else ""
        d.emit("linear", f"F.linear({v}, {w}{bias})", exact=False)
    elif form == "bmm" and rank == 3:
        w = _operand(d, [(s[0], s[-1], n) for s in d.shapes(v)], dtype)
        calls = [f"torch.bmm({v}, {w})", f"{v} @ {w}", f"torch.einsum('bij,bjk->bik', {v}, {w})"]
        calls += [f"torch.einsum('bij,bjk->kbi', {v}, {w})"]
        d.emit("matmul", d.rng.choice(calls), exact=False)
    elif form == "add" and rank == 2:
        w = _operand(d, [(k, n) for k in inner], dtype)
        bias = _operand(d, d.rng.choice([[(n,)] * len(inner), [(1, n)] * len(inner)]), dtype)
        scale = d.rng.choice(["", "", ", beta=0.5, alpha=2"])
        d.emit("matmul", f"torch.addmm({bias}, {v}, {w}{scale})", exact=False)
    elif form == "mv":
        w = _operand(d, [(k,) for k in inner], dtype)
        d.emit("matmul", f"{v} @ {w}", exact=False)
    else:
        w = _operand(d, [(k, n) for k in inner], dtype)
        d.emit("matmul", f"{v} @ {w}", exact=False)


def _operand(d: Draw, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> str:
    """A value of these shapes; or the transpose of one, or a new argument."""
    found = [v for v in d.values if d[v].dtype == dtype and d.shapes(v) == shapes]
    if found and d.rng.random() < 0.5:
        return d.rng.choice(found)
    if len(shapes[0]) >= 2 and d.rng.random() < 0.3:
        swapped = [(*s[:-2], s[-1], s[-2]) for s in shapes]
        return f"{_operand(d, swapped, dtype)}.mT"
    return d.argument(shapes, dtype)


@maker(5)
def convolutions(d: Draw) -> None:
    v = d.pick(lambda t: _floating(t) and t.dim() in (3, 4) and t.numel() > 0)
    if not v or len({s[1] for s in d.shapes(v)}) > 1:
        return
    c, spatial, dtype = d.shape(v)[1], d[v].dim() - 2, d[v].dtype
    if c > 40:
        return
    draw = d.rng.random()
    if draw < 0.3:
        pools = [
            f"F.max_pool{spatial}d({v}, {d.rng.choice([2, 3])}, {d.rng.choice([1, 2])}, 1)",
            f"F.avg_pool{spatial}d({v}, 2, {d.rng.choice([1, 2])})",
            f"F.avg_pool{spatial}d({v}, 3, 2, 1, count_include_pad={d.rng.choice([True, False])})",
            f"F.adaptive_avg_pool{spatial}d({v}, {d.rng.choice([1, 2])})",
            f"F.max_pool{spatial}d({v}, 2, stride=2, ceil_mode=True)",
        ]
        if spatial == 2 and not d.special:  # kernels differ in whether they weigh with nought
            pools.append(f"F.interpolate({v}, scale_factor=2, mode='bilinear')")
        exact = False
        d.emit("pool", d.rng.choice(pools), exact=exact)
        return
    groups = d.rng.choice([g for g in (1, 1, 1, 2, 3, 4, c) if c % g == 0])
    out = groups * d.rng.choice([1, 2, 3, 4])
    k = d.rng.choice([1, 1, 2, 3, 3])
    # Kernels differ in whether they multiply an infinite weight by what is padded: none then.
    transposed = draw > 0.93 and not d.special
    weight = (
        (c, out // groups, *[k] * spatial) if transposed else (out, c // groups, *[k] * spatial)
    )
    if torch.Size(weight).numel() > 3000:
        return
    worlds = len(d.worlds)
    w = _operand(d, [weight] * worlds, dtype)
    bias = _operand(d, [(out,)] * worlds, dtype) if d.rng.random() < 0.5 else "None"
    stride, padding = d.rng.choice([1, 1, 2]), d.rng.choice([0, 1, k // 2])
    padding = 0 if d.special else padding
    if transposed:
        text = f"F.conv_transpose{spatial}d({v}, {w}, {bias}, {stride}, 0, 0, {groups})"
    else:
        dilation = d.rng.choice([1, 1, 1, 2])
        same = stride == 1 and not d.special and d.rng.random() < 1 / 3
        pad = "'same'" if same else str(padding)
        text = f"F.conv{spatial}d({v}, {w}, {bias}, {stride}, {pad}, {dilation}, {groups})"
    d.emit("convolution", text, exact=False)


@maker(4)
def attention(d: Draw) -> None:
    if d.special:
        return  # what comes of scores that are nan or inf depends on which kernel PyTorch takes
    v = d.pick(lambda t: _floating(t) and t.dim() == 4 and 0 < t.numel() < 1200)
    if not v or any(0 in shape for shape in d.shapes(v)):
        return  # with no elements a kernel of PyTorch's divides by zero, which ends the process
    dtype = d[v].dtype
    length = d.rng.choice([1, 3, 5, 8])
    group = d.rng.choice([1, 1, 1, 2, 3])
    if any(s[1] % group for s in d.shapes(v)):
        group = 1
    keys = [(s[0], s[1] // group, length, s[3]) for s in d.shapes(v)]
    k, value = _operand(d, keys, dtype), _operand(d, keys, dtype)
    if ".mT" in k + value:
        return
    if group > 1 and d.rng.random() < 0.6:
        sizes = [d.size(v, j) for j in range(4)]
        k, value = (_repeated(d, t, group, sizes[0], length) for t in (k, value))
        if not k or not value:
            return
        group = 1
    draw = d.rng.random()
    options = ", enable_gqa=True" if group > 1 else ""
    if draw < 0.3 and group == 1:
        scores = d.emit("matmul", f"{v} @ {k}.transpose(-2, -1) * 0.5", exact=False)
        if scores and (weights := d.emit("reduce", f"{scores[0]}.softmax(-1)", exact=False)):
            d.emit("attention", f"{weights[0]} @ {value}", exact=False)
        return
    if draw < 0.5:
        options += ", is_causal=True"
    elif draw < 0.75:
        shapes = [(s[0], 1, s[2], length) for s in d.shapes(v)]
        if d.rng.random() < 0.4:
            mask = d.masks(shapes, dtype)
        else:
            mask = d.argument(shapes, d.rng.choice([dtype, torch.bool]))
        options += f", attn_mask={mask}"
    elif draw < 0.85:
        options += ", scale=0.3"
    d.emit("attention", f"F.scaled_dot_product_attention({v}, {k}, {value}{options})", exact=False)


def _repeated(d: Draw, t: str, group: int, batch: str, length: int) -> str:
    b, h, s, w = (d.size(t, j) for j in range(4))
    text = f"{t}[:, :, None].expand({b}, {h}, {group}, {s}, {w}).reshape({b}, -1, {s}, {w})"
    made = d.emit("repeat", text)
    return made[0] if made else ""


@maker(1)
def rotary(d: Draw) -> None:
    """Halves swapped and one negated, as rotary embeddings do."""
    v = d.pick(lambda t: _floating(t) and t.dim() >= 2 and t.shape[-1] % 2 == 0)
    if v and (parts := d.emit("split", f"{v}.chunk(2, -1)", parts=2)):
        turned = d.emit("cat", f"torch.cat([-{parts[1]}, {parts[0]}], -1)")
        if turned:
            d.emit("binary", f"{v} * {d.twin(v)} + {turned[0]} * {d.twin(v)}", exact=False)


@maker(1)
def sorts(d: Draw) -> None:
    v = d.pick(lambda t: t.dim() > 0 and t.numel() > 0, exact=True)
    if v and not d.special:
        k = d.rng.randrange(d[v].dim())
        forms = [f"{v}.sort({k}).values", f"torch.sort({v}, {k}, stable=True).indices"]
        forms += [f"{v}.topk(1, {k}).values", f"torch.argsort({v}, {k}, stable=True)"]
        d.emit("sort", d.rng.choice(forms))
