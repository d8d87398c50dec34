"""What tests of checkpoints need: random trees, exact equality, and damage of every kind.

- `assert_trees_equal`: structure, types, dtypes, bits, weak types and placement.
- `strategies`: hypothesis strategies for key paths, arrays, leaves and whole trees; importing it
  needs hypothesis.
- `flip_bits`: one bit of a file at a time; what does a load make of it?
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
