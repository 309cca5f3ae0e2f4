"""Packages of the extra `vtc[bench]`, imported when a model or a peer asks for them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vtc.errors import MissingExtraError


def need(module: str, needed_for: str) -> Any:
    """The imported `module`. Raises `MissingExtraError` where its package is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise MissingExtraError(missing, needed_for) from error


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore what they and OMP_NUM_THREADS were."""
    names = {*changes, "OMP_NUM_THREADS"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def need_ultralytics(module: str) -> Any:
    """The imported `module` of ultralytics.

    On import the package asks the network for its version and sets OMP_NUM_THREADS=1 for the whole
    process, which would slow down every peer that starts its threads later: both are prevented.
    """
    quiet = {"YOLO_OFFLINE": "True", "YOLO_AUTOINSTALL": "False", "YOLO_VERBOSE": "False"}
    with environment(quiet):
        return need(module, "model yolo11")
