"""What it means for two trees to be equal: everything that a checkpoint is to keep."""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from cordwood.keypath import DictKey, Key, KeyPath, format_path

_EXTENDED = (np.longdouble, np.clongdouble)

_Pair = tuple[KeyPath, Any, Any]


def assert_trees_equal(got: Any, want: Any, *, placement: bool = True) -> None:
    """Raise AssertionError, naming the first key path that differs, unless two trees are equal.

    Compared are the types of containers and leaves, dict keys with their types and order, static
    parts of registered nodes, shapes, dtypes, every bit of every element, weak types, and PRNG
    implementations. NaNs are equal where their bits are. The byte order of numpy arrays is not
    compared, as no format keeps it; their values are.

    Args:
        got: the tree at hand.
        want: the tree it is to equal.
        placement: whether jax arrays must be committed alike, to equal shardings if they are.

    >>> assert_trees_equal({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]})
    >>> assert_trees_equal({"a": [1]}, {"a": [True]})
    Traceback (most recent call last):
        ...
    AssertionError: a/0: expected a value of type bool, found int
    """
    stack: list[_Pair] = [((), got, want)]
    while stack:
        path, one, other = stack.pop()
        _require(
            path,
            type(one) is type(other),
            f"a value of type {type(other).__qualname__}",
            type(one).__qualname__,
        )
        children = _children(path, one, other)
        if children is None:
            _compare_leaves(path, one, other, placement)
        else:
            stack += reversed(children)


def _require(path: KeyPath, holds: bool, expected: object, found: object) -> None:
    if not holds:
        name = format_path(path) or "the root"
        raise AssertionError(f"{name}: expected {expected!s:.200}, found {found!s:.200}")


def _children(path: KeyPath, got: Any, want: Any) -> list[_Pair] | None:
    """The children of two nodes of one type, paired; None for leaves."""
    kind = type(want)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        # repr: True is not 1, and -0.0 is not 0.0.
        keys, found = [repr(key) for key in want], [repr(key) for key in got]
        _require(path, found == keys, f"the keys {', '.join(keys)}", ", ".join(found))
        if kind is defaultdict:
            factory = got.default_factory
            _require(path, factory == want.default_factory, want.default_factory, factory)
        names: list[Key] = [key if isinstance(key, str) else DictKey(key) for key in want]
        return _paired(path, names, got.values(), want.values())
    if kind is list or isinstance(want, tuple):
        _require(path, len(got) == len(want), f"{len(want)} items", len(got))
        return _paired(path, getattr(want, "_fields", range(len(want))), got, want)
    return _registered_children(path, got, want)


def _paired(
    path: KeyPath, names: Iterable[Key], got: Iterable[Any], want: Iterable[Any]
) -> list[_Pair]:
    return [((*path, name), one, other) for name, one, other in zip(names, got, want, strict=True)]


def _registered_children(path: KeyPath, got: Any, want: Any) -> list[_Pair] | None:
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None or want is None:
        return None
    ours, our_form = tree_util.tree_flatten_with_path(got, is_leaf=lambda x: x is not got)
    theirs, form = tree_util.tree_flatten_with_path(want, is_leaf=lambda x: x is not want)
    if len(theirs) == 1 and theirs[0][0] == ():
        return None
    _require(path, our_form == form, form, our_form)
    names = [tree_util.keystr(keys, simple=True, separator=".") for keys, _ in theirs]
    return _paired(path, names, [value for _, value in ours], [value for _, value in theirs])


def _compare_leaves(path: KeyPath, got: Any, want: Any, placement: bool) -> None:
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(want, jax.Array):
        _compare_jax(path, got, want, placement, jax)
    elif isinstance(want, (np.ndarray, np.generic)):
        _compare_arrays(path, got, want)
    elif isinstance(want, (float, complex)):
        _require(path, _float_bits(got) == _float_bits(want), repr(want), repr(got))
    else:
        _require(path, got == want, repr(want), repr(got))


def _compare_jax(path: KeyPath, got: Any, want: Any, placement: bool, jax: Any) -> None:
    _require(path, got.dtype == want.dtype, f"dtype {want.dtype}", got.dtype)
    if placement:
        committed = "committed", "uncommitted"
        _require(
            path,
            got.committed == want.committed,
            committed[not want.committed],
            committed[not got.committed],
        )
        if want.committed:
            _require(path, got.sharding == want.sharding, want.sharding, got.sharding)
    if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
        got, want = jax.random.key_data(got), jax.random.key_data(want)
    weak = "a strong type", "a weak type"
    _require(path, got.weak_type == want.weak_type, weak[want.weak_type], weak[got.weak_type])
    _compare_arrays(path, np.asarray(got), np.asarray(want))


def _compare_arrays(path: KeyPath, got: Any, want: Any) -> None:
    dtype = want.dtype.newbyteorder("=")
    found = got.dtype.newbyteorder("=")
    _require(path, found == dtype, f"dtype {dtype}", found)
    _require(path, got.shape == want.shape, f"shape {want.shape}", got.shape)
    ours, theirs = _element_bytes(got, dtype), _element_bytes(want, dtype)
    differ = np.flatnonzero((ours != theirs).any(axis=1))
    if differ.size:
        first = int(differ[0])
        expected = f"{np.asarray(want).flat[first]!r} (bytes {theirs[first].tobytes().hex()})"
        actual = f"{np.asarray(got).flat[first]!r} (bytes {ours[first].tobytes().hex()})"
        _require(path, False, f"{expected} as element {first} in C order", actual)


def _element_bytes(array: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """uint8[elements, bytes each], native byte order."""
    values = np.asarray(array)
    if values.dtype != dtype:
        values = values.byteswap().view(dtype)
    raw = np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, dtype.itemsize)
    if dtype.type in _EXTENDED and np.finfo(np.longdouble).nmant == 63:
        raw = raw.reshape(-1, 16)[:, :10]  # x87: ten bytes of value, six of padding
    return raw


def _float_bits(value: Any) -> bytes:
    return struct.pack("<2d", value.real, value.imag)
