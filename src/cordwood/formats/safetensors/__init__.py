"""safetensors: one file that any safetensors reader reads, with tree, kinds and digests.

docs/format.md is the specification of what cordwood adds.
"""

from __future__ import annotations

from cordwood.formats.safetensors.layout import plan_save
from cordwood.formats.safetensors.scan import FORMAT, scan

__all__ = ["FORMAT", "plan_save", "scan"]
