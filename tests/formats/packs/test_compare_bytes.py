"""Comparison of stored files with the leaves of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cordwood.errors import CorruptionError
from cordwood.formats.packs import compare_with_file
from cordwood.formats.packs.compare_with_file import (
    Difference,
    changed_cells,
    check_smallest_difference,
    find_difference,
)
from cordwood.index import Digests
from cordwood.io.memory_file import MemoryFile
from cordwood.plan.links import StoredCell
from tests.block_digests import digests_of

Array = np.ndarray[Any, Any]
HEADER = 100
BLOCK = 64


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_with_file, "_UNIT_BYTES", 2 * BLOCK)
    monkeypatch.setattr(compare_with_file, "_PEEK_BYTES", 8)


def file_of(arrays: list[Array]) -> tuple[bytearray, Digests, list[StoredCell]]:
    """Return a file of the arrays, its digests and its cells; cells at odd positions are unused."""
    raw = bytearray(HEADER)
    cells = []
    for i, array in enumerate(arrays):
        cells.append(StoredCell(None if i % 2 else i, 0, len(raw), array.nbytes))
        raw += array.tobytes()
    return raw, digests_of(raw[HEADER:], start=HEADER, block_bytes=BLOCK), cells


def compared(
    raw: bytes | bytearray,
    digests: Digests,
    cells: list[StoredCell],
    value_of: Callable[[int], Array],
) -> set[int]:
    same = frozenset(i for i, cell in enumerate(cells) if cell.leaf is not None)
    return changed_cells(MemoryFile(raw, "old"), digests, cells, same, value_of)


def arrays_of(sizes: list[int]) -> list[Array]:
    rng = np.random.default_rng(sum(sizes))
    return [rng.integers(0, 256, size, np.uint8) for size in sizes]


SIZES = [300, 5, 1, 9, 0, 64, 700, 0, 128, 3, 17]


def test_equal_to_the_last_byte() -> None:
    arrays = arrays_of(SIZES)
    raw, digests, cells = file_of(arrays)
    assert compared(raw, digests, cells, arrays.__getitem__) == set()


@pytest.mark.parametrize("position", [i for i in range(0, len(SIZES), 2) if SIZES[i]])
def test_one_byte_has_changed(position: int) -> None:
    arrays = arrays_of(SIZES)
    raw, digests, cells = file_of(arrays)
    for at in {0, SIZES[position] // 3, SIZES[position] - 1}:
        new = [array.copy() for array in arrays]
        new[position][at] ^= 1
        assert compared(raw, digests, cells, new.__getitem__) == {position}


def test_any_strides_and_byte_order() -> None:
    grid = np.arange(60, dtype=np.float64).reshape(6, 10)
    raw, digests, cells = file_of([grid, grid, grid])
    values = [np.asfortranarray(grid), None, grid.astype(">f8")]
    assert compared(raw, digests, cells, lambda i: np.asarray(values[i])) == set()


@pytest.mark.parametrize("at", [0, 301, 1000, -1])
def test_damage_anywhere_is_found(at: int) -> None:
    arrays = arrays_of(SIZES)
    raw, digests, cells = file_of(arrays)
    raw[at + HEADER if at >= 0 else at] ^= 1
    with pytest.raises(CorruptionError, match=r"^old: bytes \d+ to \d+ do not match the digest"):
        compared(raw, digests, cells, arrays.__getitem__)


def test_what_is_not_worth_a_link_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compare_with_file, "reading_threads", lambda latency_bound: 16 if latency_bound else 1
    )
    arrays = arrays_of([50 * BLOCK, 0, 30 * BLOCK])
    raw, digests, cells = file_of(arrays)
    raw[-1] ^= 1  # which is not noticed any more
    new = [array + 1 for array in arrays]
    assert compared(raw, digests, cells, new.__getitem__) == {0}


def test_each_value_is_asked_for_once() -> None:
    arrays = arrays_of(SIZES)
    raw, digests, cells = file_of(arrays)
    asked: list[int] = []

    def value_of(position: int) -> Array:
        asked.append(position)
        return arrays[position]

    compared(raw, digests, cells, value_of)
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(("at", "seen"), [(0, True), (49, True), (99, True), (20, False)])
def test_a_look_at_three_places(at: int, seen: bool) -> None:
    (array,) = arrays_of([100])
    raw, _, (cell,) = file_of([array])
    with MemoryFile(raw, "old") as file:
        assert find_difference(file, cell, array) is None
        array[at] ^= 1
        difference = find_difference(file, cell, array)
        assert (difference is not None) is seen
        if difference is not None:
            assert difference.offset <= HEADER + at < difference.offset + 8
            assert difference.part == 1 / 8


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 199])
def test_where_little_differs_the_digest_is_asked(at: int) -> None:
    (array,) = arrays_of([200])
    raw, digests, _ = file_of([array])
    around = Difference(HEADER + max(at - 7, 0), 1 / 8)  # which may go on in the next block
    differences = [Difference(HEADER + 190, 1.0), around]
    check_smallest_difference(MemoryFile(raw, "old"), lambda: digests, differences)
    raw[HEADER + at] ^= 1
    with pytest.raises(CorruptionError, match=r"^old: bytes \d+ to \d+ do not match the digest"):
        check_smallest_difference(MemoryFile(raw, "old"), lambda: digests, differences)


def test_where_all_differs_nothing_is_asked() -> None:
    def never() -> Digests:
        raise AssertionError

    file = MemoryFile(b"", "old")
    check_smallest_difference(file, never, [])
    check_smallest_difference(file, never, [Difference(0, 1.0), Difference(10, 0.5)])
