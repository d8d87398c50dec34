"""What two trees differ in, as values that can be printed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood.errors import counted

__all__ = ["Diff", "LeafDiff"]

What: TypeAlias = Literal["only_a", "only_b", "kind", "shape", "dtype", "weak_type", "value"]

_MAX_LINES = 50


class LeafDiff(NamedTuple):
    """How one leaf differs."""

    key_path: str
    what: What
    a: str = ""  # what it is there: float32[4,8]; of Python values that differ, the values
    b: str = ""
    size: int = 0  # how many elements were compared; 0: none were
    differing: int = 0  # how many of them differ in value; NaN equals NaN
    bits: int = 0  # how many more are equal, but of other bits (-0.0, NaNs of another payload)
    max_abs: float | None = None  # |a - b|; inf where one is NaN or infinite
    max_rel: float | None = None  # |a - b| / max(|a|, |b|)

    def __str__(self) -> str:
        if self.what in ("only_a", "only_b"):
            side = self.what[-1]
            return f"{self.key_path}: only in {side} ({self.a or self.b})"
        what = self.what.replace("_", " ")
        if self.what == "value":
            text = f"{self.key_path}: {self.a}" if self.size else f"{self.key_path}:"
        else:
            text = f"{self.key_path}: {what}: {self.a} | {self.b}"
        if not self.size:
            return f"{text} {self.a} | {self.b}" if self.what == "value" else text
        return f"{text}: {self._values()}"

    def _values(self) -> str:
        if not self.differing and not self.bits:
            return "the values are equal"
        parts = []
        if self.differing:
            parts.append(f"{self.differing} of {counted(self.size, 'element')} differ")
            if self.max_abs is not None:
                parts.append(f"max abs {self.max_abs:.6g}")
            if self.max_rel is not None:
                parts.append(f"max rel {self.max_rel:.3g}")
        if self.bits:
            parts.append(f"{self.bits} equal in value but not in bits")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Diff:
    """What two trees differ in; `str()` tells it, `to_json()` gives it as plain values.

    Attributes:
        a, b: what was compared: paths, or "the tree".
        leaves: those that differ.
        containers: containers of different kinds, and empty ones that one side has.
        equal_leaves: how many are equal.
        equal_by_digest: how many of those were not read, as their digests are equal.
        read_bytes: how many bytes of elements were compared, of each side.
    """

    a: str
    b: str
    leaves: tuple[LeafDiff, ...]
    containers: tuple[str, ...]
    equal_leaves: int
    equal_by_digest: int
    read_bytes: int

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return not self.leaves and not self.containers

    def __str__(self) -> str:
        same = counted(self.equal_leaves, "leaf", "leaves")
        how = f" ({self.equal_by_digest} by digest)" if self.equal_by_digest else ""
        if self.equal:
            return f"{self.a} and {self.b} are equal: {same}{how}"
        lines = [*map(str, self.leaves), *self.containers]
        count = counted(len(lines), "difference")
        shown = [f"  {line}" for line in lines[:_MAX_LINES]]
        if len(lines) > _MAX_LINES:
            shown.append(f"  ... and {len(lines) - _MAX_LINES} more")
        head = f"{count} between a = {self.a} and b = {self.b}; {same} equal{how}:"
        return "\n".join([head, *shown])

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; numbers that JSON lacks are strings ("inf")."""
        return {
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "leaves": [_plain(leaf) for leaf in self.leaves],
            "containers": list(self.containers),
            "equal_leaves": self.equal_leaves,
            "equal_by_digest": self.equal_by_digest,
            "read_bytes": self.read_bytes,
        }


def _plain(leaf: LeafDiff) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in leaf._asdict().items()
    }
