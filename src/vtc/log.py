"""The logger "vtc" and the level that `Options.log_level` gives it.

Modules log to `logging.getLogger(__name__)`, which is below "vtc". A program that configures
logging itself keeps its handlers: vtc adds one only where there is none.
"""

from __future__ import annotations

import logging

from vtc.options import LogLevel


def set_level(level: LogLevel) -> None:
    """Show what "vtc" logs from `level` up; on stderr where the program handles no logging."""
    logger = logging.getLogger("vtc")
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("vtc %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
