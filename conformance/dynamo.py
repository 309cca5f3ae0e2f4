"""What is left out of compilation where only results count."""

from __future__ import annotations

from torch._dynamo import guards


def leave_guards_untimed() -> None:
    """Dynamo times the guards of each frame on flushed caches, for a metric that is not read here:
    a fifth of what a graph of one operator costs."""
    guards.profile_guard_manager = lambda *_: 0.0
