"""The difference of one leaf, as one line and as numbers."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from cordwood.comparing.array_change import ArrayChange, has_numbers
from cordwood.comparing.scaled_sums import cosine_of, root_of_quotient, root_of_scaled
from cordwood.index import Leaf, leaf_text
from cordwood.keypath import path_label
from cordwood.message_text import counted, printable
from cordwood.public_names import document_fields
from cordwood.sharding.boxes import element_count, whole_box

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
        prefix: the prefix of its tree, if the directory holds several; "" for the one without.
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
    prefix: str = ""

    def __str__(self) -> str:
        return printable(in_tree(self.prefix, self._line()), keep="")

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


def in_tree(prefix: str, line: str) -> str:
    """Return a line of a difference with the prefix of its tree."""
    return f"[{prefix}] {line}" if prefix else line


def leaf_diff(what: What, a: Leaf | None, b: Leaf | None) -> LeafDiff:
    """Return a difference with the types of both leaves; it is named like that of a if it can."""
    name = b if a is None or what == "renamed" else a
    return LeafDiff(
        "" if name is None else path_label(name.key_path),
        what,
        "" if a is None else leaf_text(a),
        "" if b is None else leaf_text(b),
        renamed_from=path_label(a.key_path) if a and what == "renamed" else "",
    )


def with_statistics(
    difference: LeafDiff, change: ArrayChange, leaf: Leaf, *, size: int | None = None
) -> LeafDiff:
    """Return a difference with the statistics of the change of a leaf.

    Args:
        difference: the other members.
        change: the change, of the elements that were read.
        leaf: the leaf of a.
        size: the number of elements that were compared. None: all of the leaf; those that were
            not read are equal by digest.
    """
    if size is None:
        size = element_count(whole_box(leaf.shape))
    if change.differing:
        difference = difference._replace(max_abs=change.max_abs, max_rel=change.max_rel)
    difference = difference._replace(
        size=size,
        differing=change.differing,
        bits=change.bits,
        share=change.differing / size if size else None,
        read_size=change.size,
        new_nan=change.new_nan,
    )
    if not has_numbers(leaf) or not change.size:
        return difference
    return difference._replace(
        l2=root_of_scaled(change.change_squares),
        relative_l2=root_of_quotient(change.change_squares, change.a_squares),
        cosine=cosine_of(change.products, change.a_squares, change.b_squares),
        sign_flips=change.sign_flips,
        new_inf=change.new_inf,
    )
