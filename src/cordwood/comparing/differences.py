"""The differences of two checkpoints or trees, which can be printed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cordwood.comparing.leaf_diff import LeafDiff
from cordwood.message_text import counted, first_lines, first_names, printable

_MAX_LINES = 50
_MAX_SKIPPED = 10


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """The differences of two checkpoints or trees.

    As a string, a line for each, which begins with the tree in brackets if that has a prefix;
    `to_json()` gives plain values.

    Attributes:
        a, b: the paths that were compared, or "the tree".
        leaves: the leaves that differ.
        containers: lines for containers of different kinds, and empty ones on one side only.
        equal_leaves: the number of equal leaves.
        equal_by_digest: the number of those that were not read, because digests are equal.
        read_bytes: the number of bytes of elements that were compared, per side.
        with_values: False if only structure, shapes and dtypes were compared (`values=False`).
        trees: lines for trees that only one of two directories holds.
        prefixes: the prefixes of the trees that were compared; "" for a tree without one.
        skipped: what a or b also holds and was not compared, in words: other trees, where one was
            chosen or is in memory, items of Orbax that are no trees, and elements of other parts.
    """

    a: str
    b: str
    leaves: tuple[LeafDiff, ...]
    containers: tuple[str, ...]
    equal_leaves: int
    equal_by_digest: int
    read_bytes: int
    with_values: bool = True
    trees: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    skipped: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if there is no difference in what was compared."""
        return not self.leaves and not self.containers and not self.trees

    @property
    def _how(self) -> str:
        """The words for what was compared, and what was not, or not by reading all values."""
        where = ""
        if len(self.prefixes) > 1:
            where = f" in {len(self.prefixes)} trees"
        elif self.prefixes[0]:
            where = f" in the tree {self.prefixes[0]!r}"
        if not self.with_values:
            where += " (values not compared)"
        elif self.equal_by_digest:
            where += f" ({self.equal_by_digest} by digest)"
        return where

    @property
    def _left_out(self) -> str:
        names = first_names(self.skipped, _MAX_SKIPPED)
        return f"; not compared: {names}" if self.skipped else ""

    def __str__(self) -> str:
        same = counted(self.equal_leaves, "leaf", "leaves")
        how = self._how
        if self.equal:
            return printable(f"{self.a} and {self.b} are equal: {same}{how}{self._left_out}")
        lines = [*self.trees, *map(str, self.leaves), *self.containers]
        count = counted(len(lines), "difference")
        head = f"{count} between a = {self.a} and b = {self.b}; {same} equal{how}{self._left_out}:"
        return printable(f"{head}\n{first_lines(lines, _MAX_LINES)}")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import differences_html

        equal = counted(self.equal_leaves, "leaf", "leaves")
        head, note = "equal", f"{self.a} and {self.b}: {equal}"
        if not self.equal:
            count = len(self.trees) + len(self.leaves) + len(self.containers)
            head = counted(count, "difference")
            note = f"between a = {self.a} and b = {self.b}; {equal} equal"
        note += self._how + self._left_out
        lines = [("", line) for line in self.trees[:_MAX_LINES]]
        lines += [(each.key_path, str(each)) for each in self.leaves[: _MAX_LINES - len(lines)]]
        lines += [("", line) for line in self.containers[: _MAX_LINES - len(lines)]]
        hidden = len(self.trees) + len(self.leaves) + len(self.containers) - len(lines)
        return differences_html(head, note, lines, hidden=hidden)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`; numbers that JSON lacks are strings ("inf")."""
        return {
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "leaves": [_plain(leaf) for leaf in self.leaves],
            "containers": list(self.containers),
            "equal_leaves": self.equal_leaves,
            "equal_by_digest": self.equal_by_digest,
            "read_bytes": self.read_bytes,
            "trees": list(self.trees),
            "prefixes": list(self.prefixes),
            "skipped": list(self.skipped),
        }


def _plain(leaf: LeafDiff) -> dict[str, object]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in leaf._asdict().items()
    }
