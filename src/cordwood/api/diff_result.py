"""The result of diff: the differences of two trees, which can be printed, and all pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from cordwood.message_text import counted, first_lines, printable
from cordwood.public_names import document_fields

if TYPE_CHECKING:
    from cordwood.api.array_change import ArrayChange

What: TypeAlias = Literal[
    "only_a",
    "only_b",
    "kind",
    "shape",
    "dtype",
    "weak_type",
    "value",
    "renamed",
    "bytes",
    "unread",
]

_MAX_LINES = 50


@document_fields
class LeafDiff(NamedTuple):
    """The difference of one leaf. As a string, one line.

    Attributes:
        key_path: the leaf; of a renamed leaf, its key path in b.
        what: "only_a", "only_b", "kind", "shape", "dtype", "weak_type", "value", or "renamed": the
            same elements are at another key path. With `values="digests"` also "bytes" (the stored
            bytes differ) and "unread" (the digests do not show if the leaves are equal).
        a, b: its type on that side, such as float32[4,8]; for Python values, the values.
        size: the number of elements that were compared; 0 if none were.
        differing: the number of elements that differ in value; NaN equals NaN.
        bits: the number of elements equal in value, but not in bits (-0.0, other NaN payloads).
        max_abs: the largest `|a - b|`; inf if one is NaN or infinite; None if nothing differs.
        max_rel: the largest `|a - b| / max(|a|, |b|)`; None if nothing differs.
        share: differing / size; None if no elements were compared.
        read_size: the number of elements that were read; the others are equal by their digests.
        l2: the L2 norm of b - a. NaN and infinite elements of a or b do not count in norms; None
            if there is no norm: for times, PRNG keys and Python values.
        relative_l2: l2 / (the L2 norm of a), over the elements that were read; inf if a is 0 there.
        cosine: the cosine similarity of a and b, over the elements that were read; None if one of
            them is 0 there.
        sign_flips: the number of elements that are above 0 on one side and below 0 on the other;
            of complex elements, those where this holds for the real or the imaginary part.
        new_nan: the number of elements that are NaN (or NaT) in b and not in a.
        new_inf: the number of elements that are infinite in b and not in a.
        renamed_from: the key path of a renamed leaf in a.
    """

    key_path: str
    what: What
    a: str = ""
    b: str = ""
    size: int = 0
    differing: int = 0
    bits: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    share: float | None = None
    read_size: int = 0
    l2: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    sign_flips: int = 0
    new_nan: int = 0
    new_inf: int = 0
    renamed_from: str = ""

    def __str__(self) -> str:
        return printable(self._line(), keep="")

    def _line(self) -> str:
        if self.what in ("only_a", "only_b"):
            side = self.what[-1]
            return f"{self.key_path}: only in {side} ({self.a or self.b})"
        if self.what == "renamed":
            return f"{self.renamed_from} -> {self.key_path}: renamed ({self.b})"
        if self.what == "bytes":
            return f"{self.key_path}: {self.a}: the stored bytes differ"
        if self.what == "unread":
            return f"{self.key_path}: {self.a}: unread; it has no digests of its own to compare"
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
            if self.relative_l2 and math.isfinite(self.relative_l2):
                parts.append(f"relative L2 {self.relative_l2:.3g}")
            if self.new_nan:
                parts.append(f"{self.new_nan} new NaN")
            if self.new_inf:
                parts.append(f"{self.new_inf} new Inf")
        if self.bits:
            parts.append(f"{self.bits} equal in value but not in bits")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """The differences of two trees. As a string, a line for each; `to_json()` gives plain values.

    Attributes:
        a, b: the paths that were compared, or "the tree".
        leaves: the leaves that differ.
        containers: lines for containers of different kinds, and empty ones on one side only.
        equal_leaves: the number of equal leaves.
        equal_by_digest: the number of those that were not read, because digests are equal.
        read_bytes: the number of bytes of elements that were compared, per side.
        with_values: False if only structure, shapes and dtypes were compared (`values=False`).
    """

    a: str
    b: str
    leaves: tuple[LeafDiff, ...]
    containers: tuple[str, ...]
    equal_leaves: int
    equal_by_digest: int
    read_bytes: int
    with_values: bool = True

    @property
    def equal(self) -> bool:
        """True if there is no difference."""
        return not self.leaves and not self.containers

    @property
    def _how(self) -> str:
        """The words for leaves that were not compared by reading all values."""
        if not self.with_values:
            return " (values not compared)"
        return f" ({self.equal_by_digest} by digest)" if self.equal_by_digest else ""

    def __str__(self) -> str:
        same = counted(self.equal_leaves, "leaf", "leaves")
        how = self._how
        if self.equal:
            return printable(f"{self.a} and {self.b} are equal: {same}{how}")
        lines = [*map(str, self.leaves), *self.containers]
        count = counted(len(lines), "difference")
        head = f"{count} between a = {self.a} and b = {self.b}; {same} equal{how}:"
        return printable(f"{head}\n{first_lines(lines, _MAX_LINES)}")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import differences_html

        equal = counted(self.equal_leaves, "leaf", "leaves")
        head, note = "equal", f"{self.a} and {self.b}: {equal}"
        if not self.equal:
            count = len(self.leaves) + len(self.containers)
            head = counted(count, "difference")
            note = f"between a = {self.a} and b = {self.b}; {equal} equal"
        note += self._how
        lines = [(each.key_path, str(each)) for each in self.leaves[:_MAX_LINES]]
        lines += [("", line) for line in self.containers[: _MAX_LINES - len(lines)]]
        hidden = len(self.leaves) + len(self.containers) - len(lines)
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
        }


def _plain(leaf: LeafDiff) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in leaf._asdict().items()
    }


State: TypeAlias = Literal[
    "added",  # only in b
    "removed",  # only in a
    "renamed",  # equal bytes at another key path
    "reshaped",  # another shape
    "recast",  # another dtype, kind or weak type
    "changed",  # other values; or other bytes, by their digests
    "equal",  # equal values, which were read
    "identical",  # equal by digest, not read
    "unread",  # not known: the values were not read, or not all of them have digests
]

# The states of leaves that differ, by `LeafDiff.what`; other words are the same.
_STATES: Mapping[str, State] = {
    "only_a": "removed",
    "only_b": "added",
    "shape": "reshaped",
    "kind": "recast",
    "dtype": "recast",
    "weak_type": "recast",
    "value": "changed",
    "bytes": "changed",
}


class ComparedPair(NamedTuple):
    """A leaf of a, the leaf of b that belongs to it, and the result of comparing them."""

    i: int | None  # position in the index of a; None for an added leaf
    j: int | None  # position in the index of b; None for a removed leaf
    result: What | State  # what differs; or why no difference is known
    difference: LeafDiff | None  # None if no difference is known
    change: ArrayChange | None = None  # None if no elements were read

    @property
    def state(self) -> State:
        """The state of the leaf in one word."""
        return _STATES.get(self.result) or cast(State, self.result)


class Comparison(NamedTuple):
    """The result of comparing two checkpoints or trees."""

    diff: Diff
    pairs: tuple[ComparedPair, ...]  # all leaves: those of a in their order, then the added ones
    equal_by_digest: frozenset[int]  # positions in the index of a
    incomplete: frozenset[int]  # the same, of leaves of which only a sample was read, or nothing
