"""These tests need the package onnx, which is an extra."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("onnx") is None:
    collect_ignore_glob = ["test_*.py"]
