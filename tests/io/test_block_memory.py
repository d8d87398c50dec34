"""Memory for blocks that are read one after another: one place, lent to one thread at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.io import execute_load
from cordwood.io.memory import buffers
from cordwood.io.memory.block_memory import BlockMemories, BlockMemory
from cordwood.io.memory.buffers import Buffer, allocate_buffers, allocate_bytes


def test_each_read_has_aligned_buffers_in_the_memory_of_the_one_before() -> None:
    memory = BlockMemory()
    sizes = [100, 64, 1]
    first = [each.array for each in memory.allocate(sizes, alignment=64)]
    assert [array.nbytes for array in first] == sizes
    assert not any(array.ctypes.data % 64 for array in first)
    for number, array in enumerate(first):
        array[:] = number
    assert [set(array.tolist()) for array in first] == [{0}, {1}, {2}]
    scratch = memory.scratch(), memory.scratch()
    again = [each.array for each in memory.allocate([50], alignment=64)]
    assert again[0].ctypes.data == first[0].ctypes.data
    assert {memory.scratch(), memory.scratch()} == {*scratch}
    assert memory.scratch() not in scratch  # of another thread of the read
    with pytest.raises(ValueError, match="alignment=100: expected a divisor"):
        memory.allocate([1], alignment=100)


def test_threads_have_memories_of_their_own_that_later_ones_use_again() -> None:
    memories = BlockMemories()
    with memories.one() as first, memories.one() as second:
        assert first is not second
    with pytest.raises(OSError, match="stopped"), memories.one() as third:
        raise OSError("stopped")
    assert third in (first, second)


def test_a_combination_allocates_memory_for_blocks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each of 2 * 12 blocks, whose new pages would take longer than the reads."""
    weights = {}
    for name in "ab":
        cordwood.save(tmp_path / name, {"w": np.ones((12, 1 << 20), np.float32)})
        weights[tmp_path / name] = 0.5
    allocated: list[int] = []  # the sizes of buffers that are used again
    loaded: list[int] = []  # those of buffers of one read

    def allocate(size_bytes: int, *, alignment: int) -> np.ndarray:
        allocated.append(size_bytes)
        return allocate_bytes(size_bytes, alignment=alignment)

    def allocate_for_load(sizes: Sequence[int], *, alignment: int) -> list[Buffer]:
        loaded.extend(sizes)
        return allocate_buffers(sizes, alignment=alignment)

    monkeypatch.setattr(buffers, "allocate_bytes", allocate)
    monkeypatch.setattr(execute_load, "allocate_buffers", allocate_for_load)
    monkeypatch.setattr("cordwood.combining.combined_checkpoint.reading_threads", lambda **_: 1)
    with cordwood.open_combined(weights) as combination:
        mean = combination.load(to="numpy")
    assert (mean["w"] == 1).all()
    assert loaded == [mean["w"].nbytes]
    assert 1 <= len(allocated) <= 6  # a block and scratch buffers
