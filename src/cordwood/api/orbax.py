"""Orbax checkpoints: what `cordwood.api.layouts` asks of a layout that is only read."""

from __future__ import annotations

from cordwood.api.open_orbax import (
    is_at,
    open_contents,
    refuse_unfinished,
    steps_at,
    verify_all,
)

__all__ = ["is_at", "open_contents", "refuse_unfinished", "steps_at", "verify_all"]
