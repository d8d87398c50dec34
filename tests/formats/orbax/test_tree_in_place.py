"""Trees whose arrays stay in cordwood's files, described for Orbax."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cordwood.errors import UnsupportedLeafError
from cordwood.formats.orbax.tree_in_place import chunk_shape
from cordwood.index import Box, LeafSpec
from cordwood.sharding.boxes import grid_cells


def chunks(shape: tuple[int, ...], cuts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    boxes: list[Box] = grid_cells(shape, cuts)
    return chunk_shape(LeafSpec(("w",), "numpy", shape, "float32"), boxes)


@pytest.mark.parametrize(
    ("shape", "cuts", "expected"),
    [
        ((6, 4), [(0, 4), (0,)], (2, 4)),
        ((6, 4), [(0, 3), (0, 2)], (3, 2)),
        ((4, 6), [(0,), (0, 4)], (1, 2)),
        ((), [], ()),
        ((0, 3), [(0,), (0,)], (1, 3)),
    ],
)
def test_chunks_are_equal_and_within_the_parts(
    shape: tuple[int, ...], cuts: list[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    assert chunks(shape, cuts) == expected


@pytest.mark.parametrize(
    ("shape", "cuts"), [((7, 5), [(0, 4), (0, 3)]), ((1 << 10, 1 << 10), [(0,), (0, 3)])]
)
def test_parts_that_are_no_equal_chunks_are_refused(
    shape: tuple[int, ...], cuts: list[tuple[int, ...]]
) -> None:
    with pytest.raises(UnsupportedLeafError, match=r"^w: it is stored in parts of different sizes"):
        chunks(shape, cuts)
