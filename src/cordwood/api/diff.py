"""diff: the differences of two checkpoints, or of a checkpoint and a tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.api.compare_checkpoints import Values, compare_checkpoints
from cordwood.api.diff_result import Diff
from cordwood.io.progress import ProgressOption
from cordwood.plan.path_patterns import Select


def diff(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    strict: bool = False,
    values: Values = True,
    progress: ProgressOption = None,
) -> Diff:
    """Compare two checkpoints, a checkpoint and a tree, or two trees, leaf by leaf.

    Leaves are paired by key path, in any two formats: where one format stores keys as strings, or
    joined, the keys of the other are compared in that form. Leaves with equal digests over blocks
    of equal size are equal and are not read. All others are read and compared a few MiB at a
    time, in several threads: memory stays below about 300 MiB for checkpoints of any size. A leaf
    of a tree in memory that is sharded over devices is copied to the host whole. The result does
    not depend on the threads: each call returns the same numbers.

    An array that only `a` has, and one of the same type and elements that only `b` has, count as
    one renamed leaf. They are recognised by their digests; where these do not show it, and in
    trees in memory, by the digest of their elements, of which at first only 64 KiB are read. Of
    several arrays with the same elements, such as biases that are all zero, those are paired whose
    key paths have the longest end in common, and the others in order if each side has equally
    many. Arrays of fewer than 16 elements are paired only if the last key is the same name; empty
    arrays and Python values never are. Nothing is renamed with `values=False`.

    Args:
        a: a path, an open checkpoint (`cordwood.open` takes a prefix or a format), or a tree.
        b: the same for the other side.
        select: patterns of key paths, as in `load`: compare only those leaves.
        rename: new key paths for leaves of `a`, as in `load`, by which they are paired with `b`.
        strict: True also reports an array that is numpy's on one side and jax's on the other, and
            weak types that differ.
        values: False compares structure, shapes and dtypes only, and reads no elements. "digests"
            compares the digests too, and still reads no elements: an array whose stored bytes
            differ is listed as "bytes", without statistics, and one that has no digests of its own
            to compare as "unread". Its values may be equal, but `.equal` is then False.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`, whose exception ends the call.

    Returns:
        The differences; `str()` shows them, and `.equal` and `.to_json()` are for programs. NaN
        equals NaN. Elements that are equal in value but not in bits (-0.0 and 0.0) are counted
        separately.

    Raises:
        MismatchError: a pattern matches nothing, or one side has arrays without names.
        CorruptionError: stored bytes that were read do not match their digest.
        Exception: all errors of `cordwood.open`.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("example.safetensors", {"w": np.zeros(4, np.float32), "step": 7})
    >>> print(diff("example.safetensors", {"w": np.float32([0, 0, 1, 0]), "step": 7}))
    1 difference between a = example.safetensors and b = the tree; 1 leaf equal:
      w: float32[4]: 1 of 4 elements differ, max abs 1, max rel 1
    """
    return compare_checkpoints(
        a, b, select=select, rename=rename, strict=strict, values=values, progress=progress
    ).diff
