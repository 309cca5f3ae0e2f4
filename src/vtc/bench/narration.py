"""What vtc logs while it compiles, as progress of the command that asked for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vtc.bench.timing import Progress
from vtc.options import Options


@contextmanager
def narrated(progress: Progress) -> Iterator[dict[str, Any]]:
    """Pass vtc's log lines to `progress`; gives the options that make it log them.

    Who set VTC_LOG_LEVEL to see them gets them on stderr instead, as without a command.
    """
    if Options.from_env().log_level in ("info", "debug"):
        yield {}
        return
    logger = logging.getLogger("vtc")
    before, handler = logger.level, _Forward(progress)
    logger.addHandler(handler)
    try:
        yield {"log_level": "info"}
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Forward(logging.Handler):
    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self.progress(f"vtc: {record.getMessage()}")
