"""Making a failing case small while it fails the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from cases import Case, Statement

Fails = Callable[[Case], str | None]


def kind_of(what: str) -> str:
    """What is wrong without its numbers and names, to know it again."""
    text = re.sub(r"\([^)]*\)|\[[^]]*\]", "", what.split("\n")[0])
    return re.sub(r"[\w.]*\d[\w.+-]*", "#", text)[:80]


def shrink(case: Case, fails: Fails, tries: int = 400) -> Case:
    """The smallest case found of which `fails` says what it says of `case`, or nearly.

    Worlds, outputs, statements and arguments are taken away, and values are replaced by earlier
    ones, as long as eager PyTorch still runs it.
    """
    first = fails(case)
    assert first is not None
    kind = kind_of(first)
    left = tries
    changed = True
    while changed and left > 0:
        changed = False
        for smaller in _smaller(case):
            left -= 1
            if left <= 0:
                break
            if _runs(smaller) and (found := fails(smaller)) and kind_of(found) == kind:
                case, changed = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    for outputs in _fewer(case.outputs):
        if outputs:
            yield replace(case, outputs=outputs).without_idle_arguments()
    used = {*case.outputs, *(n for s in case.statements for n in s.reads)}
    idle = tuple(s for s in case.statements if not s.makes or used.intersection(s.makes))
    if len(idle) < len(case.statements):
        yield replace(case, statements=idle).without_idle_arguments()
    for k in reversed(range(len(case.statements))):
        rest = case.statements[:k] + case.statements[k + 1 :]
        gone = case.statements[k].makes
        if not gone:
            yield replace(case, statements=rest).without_idle_arguments()
            continue
        outputs = tuple(o for o in case.outputs if o not in gone)
        if outputs:
            yield replace(case, statements=rest, outputs=outputs).without_idle_arguments()
        if len(gone) == 1:
            for name in dict.fromkeys(case.statements[k].reads):
                yield _renamed(case, k, gone[0], name)
    for k, a in enumerate(case.arguments):
        plain = tuple(re.sub(r"\.(transpose|expand|to)\([^()]*\)$", "", t) for t in a.texts)
        if plain != a.texts:
            arguments = (*case.arguments[:k], replace(a, texts=plain), *case.arguments[k + 1 :])
            yield replace(case, arguments=arguments)


def _fewer(outputs: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    half = len(outputs) // 2
    if half > 1:
        yield outputs[:half]
        yield outputs[half:]
    for k in range(len(outputs)):
        yield outputs[:k] + outputs[k + 1 :]


def _renamed(case: Case, k: int, old: str, new: str) -> Case:
    """Without statement k: what it made is `new` instead."""

    def fix(text: str) -> str:
        return re.sub(rf"\b{old}\b", new, text)

    statements = [
        Statement(fix(s.text), s.kind, s.makes) for n, s in enumerate(case.statements) if n != k
    ]
    outputs = tuple(new if o == old else o for o in case.outputs)
    made = replace(case, statements=tuple(statements), outputs=outputs)
    return made.without_idle_arguments()


def _runs(case: Case) -> bool:
    try:
        for world in case.worlds:
            case.function(*case.args(world))
    except Exception:
        return False
    return True
