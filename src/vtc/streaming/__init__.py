"""Streaming fusion of eager code (see `stream`)."""

from vtc.streaming.stream import Stream, stream

__all__ = ["Stream", "stream"]
