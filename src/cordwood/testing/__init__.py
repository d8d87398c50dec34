"""Tools for testing checkpoints: random trees, exact equality, and bit flips.

- `assert_trees_equal`: structure, types, dtypes, bits, weak types and placement.
- `strategies`: hypothesis strategies for key paths, arrays, leaves and whole trees; importing it
  needs hypothesis.
- `flip_bits`: load a checkpoint after flipping one bit at a time, and report the results.
"""

from __future__ import annotations

from cordwood.testing.bitflips import BitFlip, Flipped, FlipReport, flip_bits, random_flips
from cordwood.testing.equality import assert_trees_equal

__all__ = [
    "BitFlip",
    "FlipReport",
    "Flipped",
    "assert_trees_equal",
    "flip_bits",
    "random_flips",
    "strategies",
]


def __getattr__(name: str) -> object:
    if name == "strategies":
        import importlib

        return importlib.import_module(f"cordwood.testing.{name}")
    raise AttributeError(f"module 'cordwood.testing' has no attribute {name!r}")
