"""The zarr layout: eFormer's directories, one zarr version 2 array for each leaf.

docs/format.md is the specification of what cordwood adds.
"""

from __future__ import annotations

from cordwood.formats.zarr.scan import FORMAT, scan

__all__ = ["FORMAT", "scan"]
