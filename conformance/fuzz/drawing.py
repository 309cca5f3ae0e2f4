"""Drawing a case: a statement is tried on real tensors as it is made, and kept where it runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import MODULES, Argument, Case, Statement, names_in, seeded
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
PRECISE = (torch.float32, torch.float64, *INTEGERS, torch.bool)
LIMIT = 6000
"""Elements of the largest tensor of a case."""

Predicate = Callable[[Tensor], bool]


class Dead(Exception):  # noqa: N818 - the drawing is over, nothing is wrong
    """A statement failed after it may have updated something: nothing can be added."""


def overlaps(t: Tensor) -> bool:
    """Do two elements lie at one address? What is written there depends on the order."""
    reach = 1 + sum(s * (n - 1) for s, n in zip(t.stride(), t.shape, strict=True))
    places = torch.arange(reach).as_strided(t.shape, t.stride())
    return places.unique().numel() < t.numel()


class Draw:
    """A case under construction: what every value is in every world."""

    def __init__(self, seed: int, worlds: int, special: bool) -> None:
        self.seed, self.special = seed, special
        self.rng = random.Random(seed)
        self.worlds: list[dict[str, Any]] = [dict(MODULES) for _ in range(worlds)]
        self.arguments: list[Argument] = []
        self.statements: list[Statement] = []
        self.values: list[str] = []
        self.exact: set[str] = set()
        self.count = 0
        # What sizes of new arguments are drawn from: a size for each world.
        self.sizes: list[tuple[int, ...]] = []

    # Reading.

    def __getitem__(self, name: str) -> Tensor:
        return self.worlds[0][name]  # type: ignore[no-any-return]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].shape)

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """The shape in every world."""
        return [tuple(world[name].shape) for world in self.worlds]

    def size(self, name: str, d: int) -> str:
        """The size of a dimension as code: a number where it is the same in all worlds."""
        found = {shape[d] for shape in self.shapes(name)}
        return str(found.pop()) if len(found) == 1 else f"{name}.shape[{d % self[name].dim()}]"

    def pick(self, like: Predicate = lambda t: True, exact: bool = False) -> str | None:
        """A value for which `like` holds, later ones more often."""
        found = [v for v in self.values if like(self[v]) and (not exact or v in self.exact)]
        if not found:
            return None
        k = int(len(found) * self.rng.random() ** 0.6)
        return found[min(k, len(found) - 1)]

    def twin(self, name: str, like: Predicate = lambda t: True) -> str:
        """Another value of the same shapes and dtype, or a new argument of them."""
        shapes, dtype = self.shapes(name), self[name].dtype
        found = [
            v
            for v in self.values
            if self[v].dtype == dtype and self.shapes(v) == shapes and like(self[v])
        ]
        if found and self.rng.random() < 0.75:
            return self.rng.choice(found)
        return self.argument(shapes, dtype)

    # Arguments.

    def fresh_size(self) -> tuple[int, ...]:
        """A size for each world."""
        if len(self.worlds) == 1:
            return (self.rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 16, 17, 33]),)
        if self.sizes and self.rng.random() < 0.6:
            return self.rng.choice(self.sizes)
        first = self.rng.choice([2, 3, 4, 5, 6, 8])
        made = (first,) * len(self.worlds)
        if self.rng.random() < 0.7:
            made = (first, *(self.rng.choice([1, 2, 3, 7, 10, 16]) for _ in self.worlds[1:]))
        self.sizes.append(made)
        return made

    def fresh_shapes(self, dims: int | None = None) -> list[tuple[int, ...]]:
        """A shape for each world, of few elements; now and then an empty one."""
        count = self.rng.choice([0, 1, 2, 2, 3, 3, 3, 4, 4, 5]) if dims is None else dims
        while True:
            columns = [self.fresh_size() for _ in range(count)]
            if columns and len(self.worlds) == 1 and self.rng.random() < 0.02:
                columns[self.rng.randrange(count)] = (0,)
            shapes = [tuple(c[w] for c in columns) for w in range(len(self.worlds))]
            if all(torch.Size(s).numel() <= LIMIT // 6 for s in shapes):
                return shapes

    def argument(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> str:
        """A new parameter with random values in some layout."""
        layout = self.rng.choice(_LAYOUTS) if self.rng.random() < 0.4 else _dense
        draw = self.rng.random()  # the same layout in every world
        texts = [
            layout(random.Random(draw), tuple(shape), lambda s: self._values(s, dtype))
            for shape in shapes
        ]
        return self._add(texts)

    def masks(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> str:
        """A new parameter that is added to scores: 0 or -inf, in some rows -inf alone."""
        form = "torch.where(torch.rand({}) > 0.5, 0.0, -inf).to({})"
        return self._add([form.format(shape, dtype) for shape in shapes])

    def index(self, text: str) -> str:
        """A new parameter of runtime indices."""
        return self._add([text] * len(self.worlds))

    def _values(self, shape: tuple[int, ...], dtype: torch.dtype) -> str:
        name = str(dtype)
        if dtype is torch.bool:
            return f"(torch.rand({shape}) > 0.5)"
        if dtype in INTEGERS:
            low = 0 if dtype is torch.uint8 else -9
            return f"torch.randint({low}, 10, {shape}, dtype={name})"
        if self.special and dtype in FLOATS:
            pool = "torch.tensor([0.0, -0.0, 1.0, -1.5, inf, -inf, nan, 3e-39, 0.25, 7.0])"
            return f"{pool}[torch.randint(10, {shape})].to({name})"
        return f"torch.randn({shape}, dtype={name})"

    def _add(self, texts: list[str], exact: bool = True) -> str:
        name = f"a{len(self.arguments)}"
        for k, (world, text) in enumerate(zip(self.worlds, texts, strict=True)):
            seeded(self.seed * 1000 + len(self.arguments) + 97 * k)
            world[name] = eval(text, world)
        self.arguments.append(Argument(name, tuple(texts)))
        self.values.append(name)
        if exact:
            self.exact.add(name)
        return name

    def same_tensor(self, name: str) -> str:
        """An argument that is another one, or overlaps it."""
        forms = ["", "", ".mT", "[1:]", "[:-1]", "[::2]", "[:, 1:]"]
        whole = self.rng.choice(forms) if self[name].dim() >= 2 else ""
        return self._add([f"{name}{whole}"] * len(self.worlds), exact=name in self.exact)

    # Statements.

    def emit(
        self,
        kind: str,
        expression: str,
        *,
        rounds: bool = False,
        exact: bool = True,
        parts: int = 0,
    ) -> list[str]:
        """Add `name = expression` if it runs in every world and its values are tame.

        exact: the operator has one right answer. rounds: only where it rounds once, in float32
        and wider. parts: how many values of a tuple to name; 0 for no tuple.
        """
        made = [f"v{self.count + k}" for k in range(max(parts, 1))]
        text = f"{', '.join(made)}{',' * (parts == 1)} = {expression}"
        if not self._run(text):
            return []
        self.count += len(made)
        if not all(self._tame(world[n]) for world in self.worlds for n in made):
            return []
        self.statements.append(Statement(text, kind, tuple(made)))
        reads = names_in(expression)
        # Of whole numbers the bits of floats that are rounded in place have more than one answer.
        bits = any(self._whole(n) and n not in self.exact for n in reads)
        for name in made:
            precise = not rounds or all(self._precise(n) for n in (name, *reads))
            if (self._whole(name) and not bits) or (
                exact and precise and all(r in self.exact for r in reads)
            ):
                self.exact.add(name)
        # What has another number of dimensions in another world is returned, but no operand.
        ranks = [{world[n].dim() for world in self.worlds} for n in made]
        self.values += [n for n, own in zip(made, ranks, strict=True) if len(own) == 1]
        return made

    def _whole(self, name: str) -> bool:
        value = self.worlds[0].get(name)
        kinds = (*INTEGERS, torch.bool)
        return isinstance(value, Tensor) and value.dtype in kinds

    def _precise(self, name: str) -> bool:
        value = self.worlds[0].get(name)
        return not isinstance(value, Tensor) or value.dtype in PRECISE

    def update(
        self, kind: str, text: str, target: str, *, rounds: bool = False, exact: bool = True
    ) -> None:
        """Add a statement that writes into `target`. Raises Dead where it does not run."""
        reads = [n for n in names_in(text) if n in self.worlds[0]]
        safe = exact and all(r in self.exact for r in reads)
        safe = safe and (not rounds or self[target].dtype in PRECISE)
        versions = [world[target]._version for world in self.worlds]
        if not self._run(text):
            if versions != [world[target]._version for world in self.worlds]:
                raise Dead
            return
        if not all(self._tame(world[target]) for world in self.worlds):
            raise Dead
        self.statements.append(Statement(text, kind))
        if not safe and self[target].dtype in (*FLOATS, torch.complex64):
            storage = self[target].untyped_storage()._cdata
            self.exact -= {v for v in self.values if self[v].untyped_storage()._cdata == storage}

    def _run(self, text: str) -> bool:
        code = compile(text, "<statement>", "exec")
        for world in self.worlds:
            try:
                exec(code, world)
            # With one of these eager PyTorch refuses a statement: another one is drawn.
            except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
                return False
        return True

    def _tame(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.numel() > LIMIT or value.dim() > 6:
            return False
        if self.special or not value.dtype.is_floating_point:
            return True
        bound = 300 if value.dtype is torch.float16 else 1e4
        return value.numel() == 0 or bool(value.abs().max() < bound)

    def finish(self) -> Case:
        """The case, with the values that nothing reads and some others as outputs."""
        read = {n for s in self.statements for n in s.reads}
        made = [n for s in self.statements for n in s.makes]
        outputs = [v for v in made if v not in read or self.rng.random() < 0.12]
        outputs += [a.name for a in self.arguments if a.name in read and self.rng.random() < 0.04]
        if len(outputs) > 1 and self.rng.random() < 0.05:
            outputs.append(self.rng.choice(outputs))
        if not outputs:
            outputs = [a.name for a in self.arguments][:1]
        return Case(
            self.seed,
            tuple(self.arguments),
            tuple(self.statements),
            tuple(outputs),
            frozenset(self.exact),
            len(self.worlds) > 1,
        ).without_idle_arguments()


# Layouts of arguments: the same values in other strides.

Values = Callable[[tuple[int, ...]], str]


def _dense(rng: random.Random, shape: tuple[int, ...], values: Values) -> str:
    return values(shape)


def _transposed(rng: random.Random, shape: tuple[int, ...], values: Values) -> str:
    if len(shape) < 2:
        return values(shape)
    a, b = rng.sample(range(len(shape)), 2)
    swapped = list(shape)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    return f"{values(tuple(swapped))}.transpose({a}, {b})"


def _sliced(rng: random.Random, shape: tuple[int, ...], values: Values) -> str:
    if not shape:
        return f"{values((3,))}[1]"
    d, step, start = rng.randrange(len(shape)), rng.choice([1, 1, 2, 3]), rng.choice([0, 1, 2])
    wide = list(shape)
    wide[d] = start + step * shape[d] + rng.choice([0, 1])
    cut = f"{start}:{start + step * shape[d]}" + (f":{step}" if step > 1 else "")
    return f"{values(tuple(wide))}[{':, ' * d}{cut}]"


def _expanded(rng: random.Random, shape: tuple[int, ...], values: Values) -> str:
    if not shape:
        return values(shape)
    d = rng.randrange(len(shape))
    narrow = (*shape[:d], 1, *shape[d + 1 :])
    return f"{values(narrow)}.expand{shape}"


def _channels_last(rng: random.Random, shape: tuple[int, ...], values: Values) -> str:
    if len(shape) != 4:
        return _transposed(rng, shape, values)
    return f"{values(shape)}.to(memory_format=torch.channels_last)"


_LAYOUTS = (_transposed, _transposed, _sliced, _sliced, _sliced, _expanded, _channels_last)
