"""The table of what a recipe makes of a tree: names, shapes, and where they come from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class RecipeRow(NamedTuple):
    """A leaf that a recipe makes."""

    path: str
    type: str  # dtype and shape, such as float32[2,3]; "" for one that only `like` has
    sources: str  # the leaves that it is made of, with their types
    expected: str | None  # the type that `like` has; "nothing" if it has no such leaf


@dataclass(frozen=True, repr=False)
class RecipeTable:
    """The result of `Recipe.explain`; printed, it has a line for each leaf.

    Attributes:
        rows: for each leaf its key path, its dtype and shape, what it is made of, and what `like`
            has instead (None without `like`).
    """

    rows: tuple[RecipeRow, ...]

    @property
    def fits(self) -> bool:
        """True if `like` has the same leaves, of the same shapes and dtypes."""
        return all(row.expected in (None, row.type) for row in self.rows)

    def __str__(self) -> str:
        made = [row for row in self.rows if row.type]
        path_width = max([len(row.path) for row in made], default=0)
        type_width = max([len(row.type) for row in made], default=0)
        return "\n".join(self._lines(path_width, type_width))

    def _lines(self, path_width: int, type_width: int) -> Iterator[str]:
        for path, text, sources, expected in self.rows:
            if not text:
                yield f"{path} {expected}: only in like"
                continue
            note = "" if expected in (None, text) else f"  (like has {expected})"
            yield f"{path:{path_width}} {text:{type_width}} <- {sources}{note}"

    __repr__ = __str__
