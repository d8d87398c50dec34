"""What the tables of managers call the contenders; apart, as peers need not be imported for it."""

from __future__ import annotations

__all__ = ["CORDWOOD", "EFORMER", "NAMES", "ORBAX", "WITHOUT"]

CORDWOOD = "cordwood.CheckpointManager"
ORBAX = "orbax CheckpointManager"
EFORMER = "eformer Checkpointer"
WITHOUT = "no saving"
NAMES = (CORDWOOD, ORBAX, EFORMER)
