"""The names of the managers in the tables, in a module that does not import the peers."""

from __future__ import annotations

__all__ = ["CORDWOOD", "EFORMER", "NAMES", "ORBAX", "WITHOUT"]

CORDWOOD = "cordwood.CheckpointManager"
ORBAX = "orbax CheckpointManager"
EFORMER = "eformer Checkpointer"
WITHOUT = "no saving"
NAMES = (CORDWOOD, ORBAX, EFORMER)
