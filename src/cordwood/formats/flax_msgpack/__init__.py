"""Flax's msgpack format: scan, lay out, restore."""

from __future__ import annotations

from cordwood.formats.flax_msgpack.layout import plan_save
from cordwood.formats.flax_msgpack.restore import restore
from cordwood.formats.flax_msgpack.scan import scan

__all__ = ["plan_save", "restore", "scan"]
