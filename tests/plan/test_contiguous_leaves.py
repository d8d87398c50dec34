"""Leaves that can be read as byte ranges, and the moves that fill memory with such a range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.index import Box, Codec, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.plan.load_plan import contiguous_extents, plan_extent_moves
from cordwood.sharding.boxes import grid_cells, slices, whole_box


def leaf_of(shape: tuple[int, ...], storage: Pieces | Encoded | Inline) -> Leaf:
    return Leaf(("w",), "numpy", shape, "int16", storage)


@st.composite
def stored(draw: st.DrawFn) -> tuple[np.ndarray, list[bytes], Pieces]:
    """Draw an array that is stored in cells, in any order, in two files."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    array = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    cuts = tuple((0, *sorted(draw(st.sets(st.integers(1, 6).filter(n.__gt__))))) for n in shape)
    files = [bytearray(), bytearray()]
    pieces = []
    empty = Box((0,) * len(shape), (0, *shape[1:]))
    boxes = [*grid_cells(shape, cuts), *[empty] * draw(st.integers(0, 2))]
    for box in draw(st.permutations(boxes)):
        source = draw(st.integers(0, 1))
        files[source] += bytes(draw(st.integers(0, 3)))
        data = array[slices(box)].tobytes()
        pieces.append(Piece(box, source, len(files[source]), len(data)))
        files[source] += data
    return array, [bytes(file) for file in files], Pieces(tuple(pieces))


@given(stored(), st.data())
def test_any_range_of_any_leaf(
    case: tuple[np.ndarray, list[bytes], Pieces], data: st.DataObject
) -> None:
    array, files, pieces = case
    numbers: Any = np.arange(array.size).reshape(array.shape)
    parts = [numbers[slices(box)] for box, *_ in pieces.pieces if isinstance(box, Box)]
    unbroken = all(part.size == 0 or np.ptp(part) == part.size - 1 for part in parts)
    extents = contiguous_extents(leaf_of(array.shape, pieces))
    assert (extents is not None) == unbroken
    if extents is None:
        return
    stop = data.draw(st.integers(0, array.nbytes))
    start = data.draw(st.integers(0, stop))
    moves = plan_extent_moves(extents, start, stop)
    assert moves == sorted(moves)
    target = bytearray(stop - start)
    for source, offset, length, buffer, position in moves:
        assert buffer == 0
        assert length > 0
        target[position : position + length] = files[source][offset : offset + length]
    assert sum(move.length for move in moves) == len(target)
    assert target == array.tobytes()[start:stop]


def test_spans_of_a_leaf_become_moves() -> None:
    empty = Piece(Span(3, 3), 0, 7, 0)
    pieces = Pieces((Piece(Span(0, 3), 1, 50, 6), empty, Piece(Span(3, 4), 0, 9, 2)))
    extents = contiguous_extents(leaf_of((2, 2), pieces))
    assert extents == [(0, 6, 1, 50), (6, 8, 0, 9)]
    assert plan_extent_moves(extents, 5, 7) == [(0, 9, 1, 0, 1), (1, 55, 1, 0, 0)]


WHOLE = whole_box((2, 2))


@pytest.mark.parametrize(
    "storage",
    [
        Inline(3),
        Encoded((Piece(WHOLE, 0, 0, 8),), (2, 2), Codec(None)),
        Pieces((Piece(WHOLE, 0, 0, 8),), "swapped"),
        Pieces((Piece(WHOLE, 0, 0, 7),)),
        Pieces((Piece(Box((0,), (4,)), 0, 0, 8),)),
        Pieces((Piece(Box((0, 0), (1, 4)), 0, 0, 8),)),
        Pieces((Piece(Box((0, 0), (1, 2)), 0, 0, 4),)),
        Pieces((Piece(Box((1, 0), (2, 2)), 0, 0, 4),)),
        Pieces((Piece(WHOLE, 0, 0, 8), Piece(WHOLE, 0, 8, 8))),
        Pieces(()),
    ],
    ids=[
        "inline",
        "encoded",
        "swapped",
        "short",
        "axes",
        "beyond",
        "tail",
        "head",
        "twice",
        "nothing",
    ],
)
def test_what_is_no_such_leaf(storage: Pieces | Encoded | Inline) -> None:
    assert contiguous_extents(leaf_of((2, 2), storage)) is None
