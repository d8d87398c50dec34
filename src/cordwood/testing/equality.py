"""Equality of trees in everything that a checkpoint must keep."""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from cordwood.keypath import DictKey, Key, KeyPath, path_label

_EXTENDED = (np.longdouble, np.clongdouble)

_LeafPair = tuple[KeyPath, Any, Any]


def assert_trees_equal(got: Any, want: Any, *, placement: bool = True) -> None:
    """Raise AssertionError with the first key path that differs, unless two trees are equal.

    The comparison covers the types of containers and leaves, dict keys with their types and order,
    static parts of registered nodes, shapes, dtypes, every bit of every element, weak types, and
    PRNG implementations. NaNs are equal if their bits are. The byte order of numpy arrays is not
    compared, because no format keeps it; their values are.

    Args:
        got: the tree to check.
        want: the expected tree.
        placement: True to require that jax arrays have the same committedness and, if committed,
            equal shardings.

    >>> assert_trees_equal({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]})
    >>> assert_trees_equal({"a": [1]}, {"a": [True]})
    Traceback (most recent call last):
        ...
    AssertionError: a/0: expected a value of type bool, found int
    """
    stack: list[_LeafPair] = [((), got, want)]
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


def _require(path: KeyPath, is_equal: bool, expected: object, actual: object) -> None:
    if not is_equal:
        name = path_label(path)
        raise AssertionError(f"{name}: expected {expected!s:.200}, found {actual!s:.200}")


def _children(path: KeyPath, got: Any, want: Any) -> list[_LeafPair] | None:
    """Pair the children of two nodes of the same type; return None for leaves."""
    kind = type(want)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        # repr: True is not 1, and -0.0 is not 0.0.
        keys, got_keys = [repr(key) for key in want], [repr(key) for key in got]
        _require(path, got_keys == keys, f"the keys {', '.join(keys)}", ", ".join(got_keys))
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
) -> list[_LeafPair]:
    return [((*path, name), one, other) for name, one, other in zip(names, got, want, strict=True)]


def _registered_children(path: KeyPath, got: Any, want: Any) -> list[_LeafPair] | None:
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None or want is None:
        return None
    got_items, got_treedef = tree_util.tree_flatten_with_path(got, is_leaf=lambda x: x is not got)
    want_items, treedef = tree_util.tree_flatten_with_path(want, is_leaf=lambda x: x is not want)
    if len(want_items) == 1 and want_items[0][0] == ():
        return None
    _require(path, got_treedef == treedef, treedef, got_treedef)
    names = [tree_util.keystr(keys, simple=True, separator=".") for keys, _ in want_items]
    return _paired(
        path, names, [value for _, value in got_items], [value for _, value in want_items]
    )


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
    got_dtype = got.dtype.newbyteorder("=")
    _require(path, got_dtype == dtype, f"dtype {dtype}", got_dtype)
    _require(path, got.shape == want.shape, f"shape {want.shape}", got.shape)
    got_bytes, want_bytes = _element_bytes(got, dtype), _element_bytes(want, dtype)
    differ = np.flatnonzero((got_bytes != want_bytes).any(axis=1))
    if differ.size:
        first = int(differ[0])
        expected = f"{np.asarray(want).flat[first]!r} (bytes {want_bytes[first].tobytes().hex()})"
        actual = f"{np.asarray(got).flat[first]!r} (bytes {got_bytes[first].tobytes().hex()})"
        _require(path, False, f"{expected} as element {first} in C order", actual)


def _element_bytes(array: Any, dtype: np.dtype) -> np.ndarray:
    """Return the bytes as uint8[elements, bytes of an element], in native byte order."""
    values = np.asarray(array)
    if values.dtype != dtype:
        values = values.byteswap().view(dtype)
    raw = np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, dtype.itemsize)
    if dtype.type in _EXTENDED and np.finfo(np.longdouble).nmant == 63:
        raw = raw.reshape(-1, 16)[:, :10]  # x87: ten bytes of value, then six of padding
    return raw


def _float_bits(value: Any) -> bytes:
    return struct.pack("<2d", value.real, value.imag)
