"""Orbax checkpoints, read only: zarr arrays in files or in an OCDBT database.

docs/format.md says what is read of them.
"""

from __future__ import annotations

from cordwood.formats.orbax.read_index import FORMAT, Scanned, scan

__all__ = ["FORMAT", "Scanned", "scan"]
