"""Leaves that are loaded with their axes in another order: which ones, and in which order. Pure.

["**/kernel"]                    matrices come back with their two axes swapped
{"conv/kernel": (2, 3, 1, 0)}    axes as numpy.transpose takes them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cordwood.errors import MismatchError
from cordwood.index import Box, Index, Leaf, Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.plan.path_patterns import Select, match_patterns, path_name

Axes: TypeAlias = tuple[int, ...]
Transpose: TypeAlias = Select | Mapping[str, Sequence[int]]

_ARRAYS = frozenset({"jax", "numpy"})
_MATRIX: Axes = (1, 0)
_SHOWN = 20


def transpose_index(
    index: Index, transpose: Transpose, *, where: str
) -> tuple[Index, dict[int, Axes]]:
    """Return the index with the shapes that leaves have once transposed, and the axes of those.

    Arrays of no or one axis stay as they are, as do PRNG keys and Python values.

    Args:
        index: of what is to be loaded, under its new names.
        transpose: patterns of matrices, or a mapping of patterns to axes, of which the first that
            takes a leaf counts.
        where: what the checkpoint is called in errors.

    Raises:
        MismatchError: a pattern matches nothing; nothing is transposed; or the axes are for
            another number of them than a leaf has.
    """
    leaves = list(index.leaves)
    orders = _orders([leaf.key_path for leaf in leaves], transpose, index.naming, where)
    axes: dict[int, Axes] = {}
    problems = []
    for i, order in enumerate(orders):
        leaf = leaves[i]
        if order is None or leaf.kind not in _ARRAYS or len(leaf.shape) < 2:
            continue
        if len(order) != len(leaf.shape):
            problems.append(f"  {format_path(leaf.key_path)}: {_unfit(leaf, order, transpose)}")
            continue
        axes[i] = order
        leaves[i] = leaf._replace(shape=permute_shape(leaf.shape, order))
    if problems:
        more = [f"  ... and {len(problems) - _SHOWN} more"] * (len(problems) > _SHOWN)
        raise MismatchError(
            f"transpose does not fit leaves of {where}:\n" + "\n".join([*problems[:_SHOWN], *more])
        )
    if not axes:
        raise MismatchError(
            f"transpose changes nothing of {where}: no array of two axes or more matches "
            f"{_patterns(transpose)}"
        )
    return index._replace(leaves=tuple(leaves)), axes


def permute_shape(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """Return the shape that an array has once its axes are in that order."""
    return tuple([shape[axis] for axis in axes])


def stored_box(box: Box, axes: Axes | None) -> Box:
    """Return the box of the stored array that becomes `box` of the transposed one."""
    if axes is None:
        return box
    start, stop = [0] * len(axes), [0] * len(axes)
    for to, axis in enumerate(axes):
        start[axis], stop[axis] = box.start[to], box.stop[to]
    return Box(tuple(start), tuple(stop))


def find_transposition(stored: Sequence[int], wanted: Sequence[int]) -> Axes | None:
    """Return the axes that make one shape of the other, as PyTorch's weights need them.

    None where neither the reversed order nor that of a convolution (out, in, ...) to (..., in,
    out) does.
    """
    count = len(stored)
    for axes in (tuple(range(count))[::-1], (*range(2, count), 1, 0)):
        if 2 <= count == len(wanted) and permute_shape(stored, axes) == tuple(wanted):
            return axes
    return None


def _orders(
    paths: Sequence[KeyPath], transpose: Transpose, naming: Naming, where: str
) -> list[Axes | None]:
    """Return the axes that are asked for each leaf, whatever it is."""
    names = [path_name(path, naming) for path in paths]
    if not isinstance(transpose, Mapping):
        taken = match_patterns(names, transpose, naming=naming, where=where, option="transpose")
        return [_MATRIX if take else None for take in taken]
    if not transpose:
        raise ValueError("transpose: there is no pattern; None transposes nothing")
    orders: list[Axes | None] = [None] * len(names)
    for pattern, axes in reversed(list(transpose.items())):
        order = _checked(pattern, axes)
        taken = match_patterns(names, pattern, naming=naming, where=where, option="transpose")
        orders = [order if take else old for take, old in zip(taken, orders, strict=True)]
    return orders


def _checked(pattern: str, axes: Sequence[int]) -> Axes:
    is_sequence = isinstance(axes, Sequence) and all(type(axis) is int for axis in axes)
    if is_sequence and sorted(axes) == list(range(len(axes))):
        return tuple(axes)
    kind = ValueError if is_sequence else TypeError
    raise kind(
        f"transpose: {pattern!r}: expected the numbers 0 to n-1 of n axes, each once, as "
        f"numpy.transpose takes them, found {axes!r:.80}"
    )


def _unfit(leaf: Leaf, order: Axes, transpose: Transpose) -> str:
    count = len(leaf.shape)
    found = f"it has {count} axes, {list(leaf.shape)}"
    if isinstance(transpose, Mapping):
        return f"{found}, and {order} is for {len(order)}"
    example = {format_path(leaf.key_path): (*range(2, count), 1, 0)}
    return (
        f"{found}, and patterns by themselves are for matrices: leave it out with "
        f"'!...', or say the order of its axes (of a convolution of PyTorch, transpose={example})"
    )


def _patterns(transpose: Transpose) -> str:
    patterns = [transpose] if isinstance(transpose, str) else list(transpose)
    return ", ".join(map(repr, patterns))
