"""Tests that need a CUDA device are run seldom: that what they name exists is held without one."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vtc.lowering import timing

FILES = sorted((Path(__file__).parent / "gpu").glob("test_*.py"))


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"named_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a name, or an attribute of a module, stands for; None for all that is computed."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value(node.value, names)
        if isinstance(owner, ModuleType | type):
            return getattr(owner, node.attr)
    return None


def missing(tree: ast.Module, names: dict[str, Any]) -> list[str]:
    """Attributes that a module has not: of those that are read, and of those that are replaced."""
    found = []
    for node in ast.walk(tree):
        owner, name = None, ""
        try:
            if isinstance(node, ast.Attribute):
                owner, name = value(node.value, names), node.attr
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "setattr"
                and len(node.args) == 3
                and isinstance(node.args[1], ast.Constant)
            ):
                owner, name = value(node.args[0], names), node.args[1].value
        except AttributeError:
            continue  # reported where the inner attribute is met
        if isinstance(owner, ModuleType) and not hasattr(owner, name):
            found.append(f"line {node.lineno}: {owner.__name__}.{name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_a_test_for_the_device_names_exists(path: Path) -> None:
    assert missing(ast.parse(path.read_text()), vars(imported(path))) == []


def test_a_name_that_is_gone_is_found() -> None:
    text = "timing.replayed\ntiming.gone\nmonkeypatch.setattr(timing, 'also_gone', 1)\n"
    found = missing(ast.parse(text), {"timing": timing})
    assert found == ["line 2: vtc.lowering.timing.gone", "line 3: vtc.lowering.timing.also_gone"]
