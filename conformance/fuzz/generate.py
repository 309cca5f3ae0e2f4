"""A seed -> a case."""

from __future__ import annotations

import random

import compute
import movement
import torch
import updates
from cases import Case
from drawing import FLOATS, INTEGERS, Dead, Draw


def generate(seed: int, *, symbolic: bool | None = None, statements: int | None = None) -> Case:
    """A random case; the same for the same seed.

    One in five has symbolic sizes, that is, is called with arguments of several sizes.
    """
    rng = random.Random(f"case {seed}")
    drawn = rng.random() < 1 / 5
    symbolic = drawn if symbolic is None else symbolic
    draw = Draw(seed, worlds=3 if symbolic else 1, special=rng.random() < 0.05)
    dtype = rng.choices(
        [torch.float32, *FLOATS[1:], *INTEGERS, torch.bool], [70, 6, 5, 5, 4, 2, 1, 1, 2, 1]
    )[0]
    for _ in range(rng.choice([1, 2, 2, 3])):
        dims = rng.choice([None, None, None, 2, 3, 4])
        shapes = draw.fresh_shapes(dims)
        other = rng.random() < 0.1
        draw.argument(shapes, rng.choice([*FLOATS, *INTEGERS, torch.bool]) if other else dtype)
    if rng.random() < 0.06:
        draw.same_tensor(rng.choice(draw.values))
    makers = [*movement.MAKERS, *compute.MAKERS]
    if rng.random() < 0.35:
        makers += [(make, 3 * weight // 2) for make, weight in updates.MAKERS]
    wanted = statements or rng.choice([3, 5, 7, 8, 10, 12, 14, 18])
    weights = [weight for _, weight in makers]
    try:
        for _ in range(5 * wanted):
            if len(draw.statements) >= wanted:
                break
            rng.choices(makers, weights)[0][0](draw)
    except Dead:
        pass
    return draw.finish()
