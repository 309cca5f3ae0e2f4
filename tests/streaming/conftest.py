"""Streams need the native module."""

from __future__ import annotations

import pytest

from vtc import errors
from vtc.runtime import dvm

try:
    dvm.native_machine()
except errors.EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)
