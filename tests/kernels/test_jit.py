"""Generated text as modules: one file a text, readable, replaced when it is damaged."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from triton.runtime.jit import JITFunction

from vtc.kernels import jit

SOURCE = '''
def answer():
    """Of {}."""
    return {}
'''


def test_a_function_can_be_read_by_inspect(tmp_path: Path) -> None:
    function = jit.load(SOURCE.format("two", 2), "answer", tmp_path)
    assert function() == 2
    assert '"""Of two."""' in inspect.getsource(function)


def test_the_same_text_is_the_same_function(tmp_path: Path) -> None:
    text = SOURCE.format("three", 3)
    assert jit.load(text, "answer", tmp_path) is jit.load(text, "answer", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_file_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SOURCE.format("four", 4)
    jit.load(text, "answer", tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text("raise RuntimeError")
    monkeypatch.setattr(jit, "_modules", {})
    assert jit.load(text, "answer", tmp_path)() == 4


def test_a_folder_that_cannot_be_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triton").write_text("a file, not a folder")
    monkeypatch.setattr(jit.platformdirs, "user_cache_dir", lambda name: str(tmp_path))
    function = jit.load(SOURCE.format("five", 5), "answer")
    assert function() == 5
    assert not inspect.getfile(function).startswith(str(tmp_path))


def test_a_kernel_is_a_triton_function(tmp_path: Path) -> None:
    text = "@triton.jit\ndef kernel(x, N: tl.constexpr):\n    tl.store(x, N)\n"
    kernel = jit.load(text, "kernel", tmp_path)
    assert isinstance(kernel, JITFunction) or hasattr(kernel, "__getitem__")
    assert list(kernel.arg_names) == ["x", "N"]
