"""Generated Triton text as kernels.

Triton reads a kernel's source from its file, so a generated kernel needs one. Files are named by
the hash of their text and kept, so that a second process finds both the file and what Triton has
compiled from it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import platformdirs

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice

"""

PREFIX = "vtc_generated_"

_modules: dict[str, ModuleType] = {}


def load(source: str, name: str, folder: Path | None = None) -> Any:
    """The function `name` of generated module text (`HEADER` goes before it).

    folder: where module files are kept; the user's cache by default, and a temporary folder where
    that cannot be written.
    """
    text = HEADER + source
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    module = _modules.get(digest)
    if module is None:
        module = _import(_file(text, digest, folder), f"{PREFIX}{digest}")
        _modules[digest] = module
    return getattr(module, name)


def file_of(module: str) -> Path | None:
    """The file of a generated module by its name; None for another module."""
    found = sys.modules.get(module)
    if not module.startswith(PREFIX) or found is None or found.__file__ is None:
        return None
    return Path(found.__file__)


def _file(text: str, digest: str, folder: Path | None) -> Path:
    """The module file of a text, written if it is not there as it should be."""
    if folder is not None:
        return _written(folder, text, digest)
    try:
        return _written(Path(platformdirs.user_cache_dir("vtc")) / "triton", text, digest)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="vtc-triton-")), text, digest)


def _written(folder: Path, text: str, digest: str) -> Path:
    path = folder / f"k{digest}.py"
    if path.exists() and path.read_text() == text:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
        file.write(text)
    # Renamed, so that processes that generate the same kernel never read half a file.
    Path(file.name).replace(path)
    return path


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # inspect.getsource looks a function's module up here.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
