"""The option `transpose`: leaves with other orders of axes. Pure.

["**/kernel"]                    matrices load with their two axes swapped
{"conv/kernel": (2, 3, 1, 0)}    axes as numpy.transpose takes them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cordwood.errors import MismatchError
from cordwood.index import Index, Leaf, Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import first_lines
from cordwood.plan.arrangements import transposed_leaf
from cordwood.plan.path_patterns import Select, match_patterns, path_name

Axes: TypeAlias = tuple[int, ...]
Transpose: TypeAlias = Select | Mapping[str, Sequence[int]]
_ARRAYS = frozenset({"jax", "numpy"})
_MATRIX: Axes = (1, 0)
_SHOWN = 20


def transpose_index(index: Index, transpose: Transpose, *, where: str) -> Index:
    """Return the index with transposed leaves.

    Arrays without axes or with one axis stay unchanged, as do PRNG keys and Python values.

    Args:
        index: the index of the leaves to load, under their new paths.
        transpose: patterns of matrices, or a mapping of patterns to axes, of which the first that
            matches a leaf counts.
        where: the checkpoint's name for errors.

    Raises:
        MismatchError: a pattern matches nothing; nothing is transposed; or a leaf has another
            number of axes than its pattern names.
    """
    leaves = list(index.leaves)
    orders = _orders([leaf.key_path for leaf in leaves], transpose, index.naming, where)
    problems = []
    for i, order in enumerate(orders):
        leaf = leaves[i]
        if order is None or leaf.kind not in _ARRAYS or len(leaf.shape) < 2:
            continue
        if len(order) != len(leaf.shape):
            problems.append(f"{format_path(leaf.key_path)}: {_explain(leaf, order, transpose)}")
            continue
        leaves[i] = transposed_leaf(leaf, order)
    if problems:
        lines = first_lines(problems, _SHOWN)
        raise MismatchError(f"transpose does not fit leaves of {where}:\n{lines}")
    if leaves == list(index.leaves):
        patterns = [transpose] if isinstance(transpose, str) else transpose
        raise MismatchError(
            f"transpose changes nothing of {where}: no array of two axes or more matches "
            f"{', '.join(map(repr, patterns))}"
        )
    return index._replace(leaves=tuple(leaves))


def find_transposition(stored: Sequence[int], target: Sequence[int]) -> Axes | None:
    """Return the axes that turn one shape into the other, as needed for PyTorch's weights.

    Only two orders are tried: the reversed one, and that of a convolution, (out, in, ...) to
    (..., in, out). Return None if neither fits.
    """
    count = len(stored)
    for axes in (tuple(range(count))[::-1], (*range(2, count), 1, 0)):
        if 2 <= count == len(target) and tuple([stored[axis] for axis in axes]) == tuple(target):
            return axes
    return None


def _orders(
    paths: Sequence[KeyPath], transpose: Transpose, naming: Naming, where: str
) -> list[Axes | None]:
    """Return the requested order of axes for each leaf, even for leaves that are no arrays."""
    names = [path_name(path, naming) for path in paths]
    entries = list(transpose.items()) if isinstance(transpose, Mapping) else [(transpose, _MATRIX)]
    if not entries:
        raise ValueError("transpose: there is no pattern; None transposes nothing")
    orders: list[Axes | None] = [None] * len(names)
    for pattern, axes in reversed(entries):
        order = _checked(pattern, axes)
        matches = match_patterns(names, pattern, naming=naming, where=where, option="transpose")
        orders = [order if take else old for take, old in zip(matches, orders, strict=True)]
    return orders


def _checked(pattern: Select, axes: Sequence[int]) -> Axes:
    is_sequence = isinstance(axes, Sequence) and all(type(axis) is int for axis in axes)
    if is_sequence and sorted(axes) == list(range(len(axes))):
        return tuple(axes)
    kind = ValueError if is_sequence else TypeError
    raise kind(
        f"transpose: {pattern!r}: expected the numbers 0 to n-1 of n axes, each once, as "
        f"numpy.transpose takes them, found {axes!r:.80}"
    )


def _explain(leaf: Leaf, order: Axes, transpose: Transpose) -> str:
    """Return the reason why the order of axes does not fit a leaf."""
    count = len(leaf.shape)
    axes = f"it has {count} axes, {list(leaf.shape)}"
    if isinstance(transpose, Mapping):
        return f"{axes}, and {order} is for {len(order)}"
    example = {format_path(leaf.key_path): (*range(2, count), 1, 0)}
    return (
        f"{axes}, and patterns by themselves are for matrices: leave it out with "
        f"'!...', or say the order of its axes (of a convolution of PyTorch, transpose={example})"
    )
