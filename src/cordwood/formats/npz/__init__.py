"""numpy's .npz: a zip archive of .npy arrays."""

from __future__ import annotations

from cordwood.formats.npz.read_index import FORMAT, scan

__all__ = ["FORMAT", "scan"]
