"""The table of all mistakes, in the order of docs/mistakes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demo.mistakes.calls import CALLS
from demo.mistakes.damage import DAMAGE
from demo.mistakes.fits import FITS
from demo.mistakes.leaves import LEAVES
from demo.mistakes.machines import MACHINES
from demo.mistakes.mistake import Mistake
from demo.mistakes.places import PLACES

__all__ = ["CHAPTERS", "MISTAKES"]

CHAPTERS: Mapping[str, Sequence[Mistake]] = {
    "The checkpoint does not fit the tree": FITS,
    "The path has something else": PLACES,
    "The checkpoint is incomplete or damaged": DAMAGE,
    "The tree cannot be saved": LEAVES,
    "Disks, permissions and devices": MACHINES,
    "The call is wrong": CALLS,
}
MISTAKES: Sequence[Mistake] = [mistake for chapter in CHAPTERS.values() for mistake in chapter]
