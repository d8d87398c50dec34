"""Reading of whole leaves that are stored in the order of their elements.

This is the fast path for files of many leaves. `read_boxes` reads all other leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.index import Leaf, Pieces
from cordwood.loading.decode_elements import decode_elements
from cordwood.loading.read_context import ReadContext
from cordwood.plan.load_plan import Placement, plan_load

_MAX_DIMS = 64  # numpy's limit

_Buffers: TypeAlias = Sequence[np.ndarray[Any, Any]] | Mapping[int, np.ndarray[Any, Any]]


def read_leaves(reading: ReadContext, leaves: Sequence[Leaf]) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of leaves that are stored as spans.

    Eager arrays own their memory and are writable. Mapped arrays are read-only views into the
    file's mapping and keep it open; leaves in several pieces, or in another byte order than
    this machine's, are read even then.
    """
    if reading.mmap:
        return _mapped(reading, leaves)
    # The reader is imported here so that opening an index imports no thread pools.
    from cordwood.io.crc32 import check_loaded
    from cordwood.io.execute_load import execute_load

    plan = plan_load(leaves)
    sources, files, digests, _, verify = reading
    buffers = execute_load(plan, files, digests=digests, verify=verify)
    if verify:
        check_loaded(plan, buffers, sources, files)
    return _views(buffers, leaves, plan.placements)


def _mapped(reading: ReadContext, leaves: Sequence[Leaf]) -> list[np.ndarray[Any, Any]]:
    eager: list[int] = []
    mapped: list[int] = []
    placements: list[Placement] = []
    for i, leaf in enumerate(leaves):
        pieces, encoding = _pieces(leaf)
        if len(pieces) == 1 and encoding == "raw":
            mapped.append(i)
            placements.append(pieces[0][1:])
        else:
            eager.append(i)
    needed = {source for source, _, _ in placements}
    maps = {source: np.frombuffer(reading.files[source].map(), np.uint8) for source in needed}
    arrays = _views(maps, [leaves[i] for i in mapped], placements)
    if not eager:
        return arrays
    by_position = dict(zip(mapped, arrays, strict=True))
    read = read_leaves(reading._replace(mmap=False), [leaves[i] for i in eager])
    by_position.update(zip(eager, read, strict=True))
    return [by_position[i] for i in range(len(leaves))]


def _pieces(leaf: Leaf) -> Pieces:
    assert isinstance(leaf.storage, Pieces)
    return leaf.storage


def _views(
    buffers: _Buffers,
    leaves: Sequence[Leaf],
    placements: Sequence[Placement],
) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of leaves in buffers; they are views unless they must be decoded."""
    arrays: list[np.ndarray[Any, Any]] = []
    first = 0
    while first < len(leaves):
        end = _end_of_run(leaves, placements, first)
        arrays += _run(buffers, leaves[first], placements[first], end - first)
        first = end
    return arrays


def _end_of_run(leaves: Sequence[Leaf], placements: Sequence[Placement], first: int) -> int:
    """Return the end of the run of adjacent leaves of one type that begins at `first`."""
    _, _, shape, dtype, storage, _, _ = leaves[first]
    buffer, position, length = placements[first]
    encoding = storage[1:]
    if not 0 < len(shape) < _MAX_DIMS:
        return first + 1
    for i in range(first + 1, len(leaves)):
        position += length
        _, _, its_shape, its_dtype, its_storage, _, _ = leaves[i]
        if (
            placements[i] != (buffer, position, length)
            or its_shape != shape
            or its_dtype != dtype
            or its_storage[1:] != encoding
        ):
            return i
    return len(leaves)


def _run(
    buffers: _Buffers, leaf: Leaf, placement: Placement, count: int
) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of `count` adjacent leaves of the type of `leaf`.

    They are the rows of one array, which numpy makes ten times as fast as single views.
    """
    buffer, position, length = placement
    shape = leaf.shape if count == 1 else (count, *leaf.shape)
    encoding = _pieces(leaf).encoding
    if encoding == "raw":
        whole = _view(buffers[buffer], position, shape, leaf.dtype)
    else:
        raw = buffers[buffer][position : position + count * length]
        whole = decode_elements(raw, encoding, shape, leaf.dtype)
    return [whole] if count == 1 else list(whole)


def _view(
    buffer: np.ndarray[Any, Any], offset: int, shape: tuple[int, ...], dtype: str
) -> np.ndarray[Any, Any]:
    if 0 in shape:
        return np.empty(shape, dtypes.to_numpy(dtype))
    return np.ndarray(shape, dtypes.to_numpy(dtype), buffer, offset)
