"""Chunks: they begin where shards do, and are of bounded size."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cordwood.formats.zarr.chunk_grid import chunk_count, chunk_shape, chunks, leading_bytes
from cordwood.index import Box
from cordwood.sharding.boxes import Cuts, element_count, slices


@pytest.mark.parametrize(
    ("shape", "cuts", "expected"),
    [
        ((), (), ()),
        ((0, 3), ((0,), (0,)), (1, 3)),
        ((8,), ((0,),), (8,)),
        ((8, 4), ((0, 4), (0, 2)), (4, 2)),
        ((10, 4), ((0, 4, 8), (0,)), (4, 4)),
        ((10, 4), ((0, 4, 6), (0,)), (2, 4)),
        ((100,), ((0,),), (25,)),
        ((97,), ((0,),), (25,)),
        ((96,), ((0, 48),), (24,)),
        ((94,), ((0, 47),), (47,)),  # a prime: rather a large chunk than 94 small ones
        ((2, 100), ((0,), (0,)), (1, 25)),
        ((1, 97), ((0,), (0,)), (1, 25)),
    ],
)
def test_chunk_shapes_fit_cuts_and_limit(
    shape: tuple[int, ...], cuts: Cuts, expected: tuple[int, ...]
) -> None:
    assert chunk_shape(shape, cuts, itemsize=4, max_bytes=128) == expected


@st.composite
def cut_arrays(draw: st.DrawFn) -> tuple[tuple[int, ...], Cuts]:
    shape = draw(st.lists(st.integers(0, 40), max_size=3).map(tuple))
    cuts = tuple(
        tuple(sorted({0, *draw(st.lists(st.integers(0, max(0, size - 1)), max_size=3))}))
        for size in shape
    )
    return shape, cuts


@given(cut_arrays(), st.integers(1, 300))
def test_chunks_cover_the_array_once_and_hold_no_two_shards(
    array: tuple[tuple[int, ...], Cuts], max_bytes: int
) -> None:
    shape, cuts = array
    extents = chunk_shape(shape, cuts, itemsize=2, max_bytes=max_bytes)
    assert all(extent >= 1 for extent in extents)
    items = list(chunks(shape, extents, "."))
    assert len(items) == chunk_count(shape, extents) == len({name for name, _ in items})
    seen = np.zeros(shape, np.int64)
    for _, box in items:
        seen[slices(box)] += 1
        for axis, starts in enumerate(cuts):
            inside = [cut for cut in starts if box.start[axis] < cut < box.stop[axis]]
            assert not inside
    assert (seen == 1).all()


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=3),
    st.sampled_from([1, 4]),
)
def test_a_box_is_leading_bytes_where_it_is_contiguous(
    axes: list[tuple[int, int]], itemsize: int
) -> None:
    """Told from where the elements are in a padded chunk."""
    extents = [max(pair) for pair in axes]
    box = Box((0,) * len(axes), tuple(min(pair) for pair in axes))
    held = np.zeros(extents, bool)
    held[slices(box)] = True
    flat = held.reshape(-1)
    count = element_count(box)
    contiguous = bool(flat[:count].all())
    assert leading_bytes(box, extents, itemsize) == (count * itemsize if contiguous else None)


def test_chunks_are_named_by_their_position() -> None:
    assert [name for name, _ in chunks((), (), ".")] == ["0"]
    assert [name for name, _ in chunks((3, 2), (2, 1), ".")] == ["0.0", "0.1", "1.0", "1.1"]
    assert [name for name, _ in chunks((3, 2), (2, 1), "/")] == ["0/0", "0/1", "1/0", "1/1"]
