"""The layout of packs: what `cordwood.formats.directory_formats` asks of one."""

from __future__ import annotations
