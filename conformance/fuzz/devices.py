"""A case on a device that it was not drawn on.

Tensors that the code makes of nothing are made there, and statements that eager PyTorch cannot run
there are left out, with what reads them: as in drawing, a statement is kept where it runs.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

import torch
from cases import FACTORIES, MODULES, Case, Statement

ATTENTION = re.compile(r"scaled_dot_product_attention\((\w+), (\w+), (\w+)")
VECTOR = 16
"""Bytes that the kernels of attention read at once."""
_NAMES = {factory.__name__ for factory in FACTORIES}


def on_device(case: Case, device: str) -> Case:
    """The case as eager PyTorch can run it there. Raises AcceleratorError for what fails there
    otherwise than by the lack of a kernel."""
    made = tuple(replace(s, text=made_there(s.text, device)) for s in case.statements)
    case = replace(case, statements=made)
    left: set[int] = set()
    for world in case.worlds:
        left |= _failing(case, left, world, device)
    kept = tuple(s for k, s in enumerate(made) if k not in left)
    lost = {name for k in left for name in made[k].makes}
    kept = _without(kept, lost)
    known = {a.name for a in case.arguments} | {name for s in kept for name in s.makes}
    return replace(case, statements=kept, outputs=tuple(o for o in case.outputs if o in known))


def made_there(text: str, device: str) -> str:
    """The code with the device named where a tensor is made of nothing."""
    code = ast.parse(text)
    calls = [n for n in ast.walk(code) if isinstance(n, ast.Call) and _makes(n.func)]
    for call in calls:
        call.keywords.append(ast.keyword("device", ast.Constant(device)))
    return ast.unparse(code) if calls else text


def _makes(function: ast.expr) -> bool:
    named = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    return named and function.value.id == "torch" and function.attr in _NAMES  # type: ignore[attr-defined]


def _failing(case: Case, left: set[int], world: int, device: str) -> set[int]:
    """The statements but for those of `left` that do not run in a world."""
    names: dict[str, Any] = dict(MODULES)
    names.update(zip((a.name for a in case.arguments), case.args(world, device), strict=True))
    failed = set()
    with torch.no_grad():
        for k, statement in enumerate(case.statements):
            if k in left or any(name not in names for name in statement.reads):
                continue
            if _faults(statement, names):
                failed.add(k)
                continue
            try:
                exec(statement.text, names)
            except torch.AcceleratorError:
                raise
            except RuntimeError:
                failed.add(k)
        if device != "cpu":
            torch.cuda.synchronize()
    return failed


def _faults(statement: Statement, names: dict[str, Any]) -> bool:
    """Is it an attention that eager PyTorch may read past alignment? Its kernels are chosen by
    sizes and some of the strides, and not by addresses (pytorch/pytorch#183484)."""
    found = ATTENTION.search(statement.text)
    return found is not None and not all(aligned(names[name]) for name in found.groups())


def aligned(tensor: torch.Tensor) -> bool:
    """Does every row begin at a multiple of 16 bytes? Rows of another length are padded first, or
    left to matrix products."""
    size = tensor.element_size()
    if tensor.shape[-1] * size % VECTOR:
        return True
    pairs = zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
    steps = [step * size for step, n in pairs if n > 1]
    return all(address % VECTOR == 0 for address in (tensor.data_ptr(), *steps))


def _without(statements: tuple[Statement, ...], lost: set[str]) -> tuple[Statement, ...]:
    """The statements that read nothing that is lost."""
    kept = []
    for statement in statements:
        if lost.isdisjoint(statement.reads):
            kept.append(statement)
        else:
            lost = lost | set(statement.makes)
    return tuple(kept)
