"""Hand-written programs that the tests of the reference interpreter and the disassembler share."""

from vm.assembling import access, instr, kernel, loop, number, program


def softmax(rows: int, columns: int, chunk: int) -> list[int]:
    """y = softmax(x, 1) with rows longer than a tile: three passes over chunks of columns."""
    full = {"type": "f32", "kind_dst": "full"}
    load = instr("LOAD", 0, *access(0, columns, 1), type2="f32", dst=0, **full)
    store = instr("STORE", 0, *access(1, columns, 1), type2="f32", a=0, kind_a="full", **full)
    shifted = [
        instr("sub", dst=0, a=0, b=2, kind_a="full", kind_b="row", **full),
        instr("exp", dst=0, a=0, kind_a="full", **full),
    ]
    fold = {"type": "f32", "kind_dst": "row"}
    body = [
        instr("INIT", 2, dst=1, type2="f32", **fold),
        loop(1, chunk, load, instr("ACCUM", 2, dst=1, a=0, type2="f32", kind_a="full", **fold)),
        instr("FINISH", 2, dst=2, a=1, type2="f32", **fold),
        instr("INIT", 0, dst=3, type2="f64", **fold),
        loop(1, chunk, load, *shifted,
             instr("ACCUM", 0, dst=3, a=0, type2="f64", kind_a="full", **fold)),
        instr("FINISH", 0, dst=4, a=3, type2="f64", **fold),
        loop(1, chunk, load, *shifted,
             instr("div", dst=0, a=0, b=4, kind_a="full", kind_b="row", **full), store),
    ]  # fmt: skip
    space = [4 * 3 * chunk, 12, 12, 24, 12]
    return program(
        [("f32", rows * columns), ("f32", rows * columns)],
        kernel([(rows, 3), (columns, max(1, columns))], (0, 1), space, body),
    )


def split_fold(fold: int, count: int, part: int) -> list[int]:
    """y[0] = fold of x in parts, each kept by a task, and merged by a kernel behind a barrier."""
    tasks, places = -(-count // part), fold in (6, 7)
    wide = "f64" if fold in (0, 1) else "f32"
    own = {"type": "f32", "type2": wide, "kind_dst": "scalar"}
    keep = kernel(
        [(count, part)], (None, 0), [4 * part, 8, 8],
        [
            instr("LOAD", 0, *access(0, 1), type="f32", type2="f32", dst=0, kind_dst="column"),
            instr("INIT", fold, dst=1, b=2, **own),
            instr("ACCUM", fold, *([1] if places else []), dst=1, a=0, b=2, kind_a="column", **own),
            instr("SPILL", fold, 64, 16, type="f32", type2=wide, a=1, b=2, kind_a="scalar"),
        ],
    )  # fmt: skip
    result, value = ("i64", 4) if places else ("f32", 3)
    merge = kernel(
        [], (None, None), [0, 8, 8, 8, 8],
        [
            instr("MERGE", fold, 64, 16, tasks, 1, dst=1, b=2, **own),
            instr("FINISH", fold, dst=value, a=1, b=2, **own),
            instr("STORE", 0, *access(1), type=result, type2=result, a=value),
        ],
        index=1,
    )  # fmt: skip
    arena = 64 + 16 * tasks
    return program([("f32", count), (result, 1)], keep, instr("BARRIER"), merge, arena=arena)


def lookups() -> list[int]:
    """y[i, j] = x[index[i], j] * p + 0.5 where j < 3, else -1: terms, masks, a prologue."""
    full = {"type": "f32", "kind_dst": "full"}
    term = (1, "i64", "row", 5, 4)
    body = [
        instr("LOAD", 0, *access(1, 1, 0), type="i64", type2="i64", dst=1, kind_dst="row"),
        instr("CONST", number(-1.0), dst=3, type="f32"),
        instr("MOVE", dst=0, a=3, kind_a="scalar", **full),
        instr("LOAD", 1, *access(0, 0, 1, terms=[term], masks=[(1, 0, 3)]), type2="bf16", dst=0,
              a=0, kind_a="full", **full),
        instr("fma", dst=0, a=0, b=2, c=4, kind_a="full", **full),
        instr("STORE", 0, *access(2, 5, 1), type2="f32", a=0, kind_a="full", **full),
    ]  # fmt: skip
    prologue = [
        instr("PARAM", 0, dst=2, type="f32"),
        instr("CONST", number(0.5), dst=4, type="f32"),
    ]
    return program(
        [("bf16", 20), ("i64", 3), ("f32", 15)],
        kernel([(3, 2), (5, 5)], (0, 1), [40, 16, 4, 4, 4], body, prologue),
        params=1,
    )


def branch() -> list[int]:
    """y[0] = 1 if flag[0] else 2, by way of a value in the arena."""

    def put(value: float, buffer: int, index: int) -> list[int]:
        own = [instr("CONST", number(value), dst=0, type="f32"),
               instr("STORE", 0, *access(buffer), type="f32", type2="f32", a=0)]  # fmt: skip
        return kernel([], (None, None), [4], own, index=index)

    first = 5 + 3 * 3
    one, two = put(1.0, 1, 0), put(2.0, 1, 1)
    behind_one = first + 3 + len(one) + 2
    behind_two = behind_one + len(two)
    copy = kernel(
        [], (None, None), [4],
        [instr("LOAD", 0, *access(1), type="f32", type2="f32", dst=0),
         instr("STORE", 0, *access(2), type="f32", type2="f32", a=0)],
        index=2,
    )  # fmt: skip
    return program(
        [("bool", 1), ("f32", 1, 0), ("f32", 1)],
        instr("BRANCH", 0, behind_one), one, instr("JUMP", behind_two), two,
        instr("BARRIER"), copy,
        arena=64,
    )  # fmt: skip


def scan(rows: int, columns: int, step: int) -> list[int]:
    """y = cumsum(x, 1), in chunks of `step` columns."""
    own = {"type": "f32", "kind_dst": "full"}
    body = [
        instr("INIT", 0, dst=1, type="f32", type2="f64", kind_dst="row"),
        loop(1, step,
             instr("LOAD", 0, *access(0, columns, 1), type2="f32", dst=0, **own),
             instr("SCAN", 0, 1, dst=2, a=0, b=1, type2="f64", kind_a="full", kind_b="row", **own),
             instr("STORE", 0, *access(1, columns, 1), type2="f32", a=2, kind_a="full", **own)),
    ]  # fmt: skip
    space = [4 * rows * step, 8 * rows, 4 * rows * step]
    return program(
        [("f32", rows * columns)] * 2,
        kernel([(rows, rows), (columns, columns)], (0, 1), space, body),
    )


def product(m: int, n: int, k: int) -> list[int]:
    """y = a @ b^T."""
    full = {"type": "f32", "kind_dst": "full"}
    operands = [*access(0, k, 0, 1), *access(1, 0, k, 1)]
    body = [
        instr("MATMUL", k, 0, *operands, type2="f32", dst=0, **full),
        instr("STORE", 2, *access(2, n, 1), type2="f32", a=0, kind_a="full", **full),
    ]
    return program(
        [("f32", m * k), ("f32", n * k), ("f32", m * n)],
        kernel([(m, 2), (n, 3)], (0, 1), [24], body),
    )


def packed_product(m: int, n: int, k: int, width: int, depth: int) -> list[int]:
    """y = a @ b, b in panels as [panel][k / depth][width][depth]."""
    full = {"type": "f32", "kind_dst": "full"}
    row = width * depth
    panel = -(-k // depth) * row
    operands = [*access(0, k, 0, 1), *access(1, 0, panel, row)]
    body = [
        instr("MATMUL", k, width | depth << 32, *operands, type2="f32", dst=0, **full),
        instr("STORE", 2, *access(2, n, 1), type2="f32", a=0, kind_a="full", **full),
    ]
    return program(
        [("f32", m * k), ("f32", -(-n // width) * panel), ("f32", m * n)],
        kernel([(m, 2), (n, width)], (0, 1), [8 * width], body),
    )


def attention(s: int, d: int, t: int, flags: int) -> list[int]:
    """y = attention of one head: flags as in the table; a bool mask."""
    full = {"type": "f32", "kind_dst": "full"}
    masks = access(3, t, 0, 1) if flags & 8 else []
    words = [t, d, number(d**-0.5), flags, number(1.5), 1, 2, 0]
    operands = [*access(0, d, 1, 0), *access(1, 0, 1, d), *access(2, 0, 1, d), *masks]
    body = [
        instr("ATTENTION", *words, *operands, dst=0, **full),
        instr("STORE", 0, *access(4, d, 1), type2="f32", a=0, kind_a="full", **full),
    ]
    return program(
        [("f32", s * d), ("f32", t * d), ("f32", t * d), ("bool", s * t), ("f32", s * d)],
        kernel([(s, 2), (d, d)], (0, 1), [8 * d], body),
    )
