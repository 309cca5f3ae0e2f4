"""What `vtc.explain` returns: the report of a compilation as data, as text and as an HTML page."""

from vtc.report.report import Report

__all__ = ["Report"]
