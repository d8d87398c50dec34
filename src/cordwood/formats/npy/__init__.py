"""numpy's .npy: one array behind a short header."""

from __future__ import annotations

from cordwood.formats.npy.read_index import FORMAT, scan

__all__ = ["FORMAT", "scan"]
