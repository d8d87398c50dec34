from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.errors import CorruptionError, FileChangedError, LimitError, TruncatedError
from cordwood.index import Digests
from cordwood.io import execute_load as execution
from cordwood.io import read_units
from cordwood.io.check_files import check_files
from cordwood.io.execute_load import execute_load
from cordwood.io.memory.buffers import allocate_bytes
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import LocalFile
from cordwood.plan.load_plan import LoadPlan, Move
from cordwood.tiles.tiled_file import TiledFile
from tests.block_digests import digests_of

DATA = np.random.default_rng(1).integers(0, 256, 40_000, dtype=np.uint8).tobytes()
BLOCK = 1000


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5 << 20])
def test_buffers_begin_at_multiples_of_64(size: int) -> None:
    buffer = allocate_bytes(size, alignment=64)
    assert buffer.shape == (size,)
    assert buffer.dtype == np.uint8
    assert size == 0 or buffer.ctypes.data % 64 == 0
    assert buffer.flags.writeable


def test_memory_of_a_system_that_maps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = allocate_bytes(5 << 20, alignment=4096)
    assert mapped.ctypes.data % 4096 == 0
    mapped[:] = 7

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    other = allocate_bytes(5 << 20, alignment=4096)
    assert (other.shape, other.ctypes.data % 4096) == ((5 << 20,), 0)
    other[:] = 8
    assert mapped.min() == mapped.max() == 7


@st.composite
def plans(draw: st.DrawFn) -> LoadPlan:
    """Draw moves with gaps, neighbours, overlaps and several buffers, sorted by offset."""
    sizes: list[int] = [0, 0, 0]
    moves: list[Move] = []
    for offset, length, buffer, skip in draw(
        st.lists(
            st.tuples(
                st.integers(0, len(DATA)),
                st.one_of(st.integers(0, 60), st.integers(0, 9000)),
                st.integers(0, 2),
                st.sampled_from([0, 0, 5]),
            ),
            max_size=25,
        )
    ):
        length = min(length, len(DATA) - offset)
        moves.append(Move(0, offset, length, buffer, sizes[buffer] + skip))
        sizes[buffer] += skip + length
    moves.sort()
    return LoadPlan(tuple(sizes), tuple(moves), ())


@settings(max_examples=300)
@given(
    plans(),
    st.integers(0, 2500),
    st.sampled_from([None, 1000, 7777]),
    st.sampled_from([1, 100, 1 << 30]),
    st.booleans(),
)
def test_every_move_is_made(
    tmp_path_factory: pytest.TempPathFactory,
    plan: LoadPlan,
    start: int,
    block: int | None,
    small: int,
    local: bool,
) -> None:
    digests = None
    if block is not None:
        digests = digests_of(DATA[start:], start=start, block_bytes=block)
    if local:
        path = tmp_path_factory.getbasetemp() / "data"
        if not path.exists():
            path.write_bytes(DATA)
        file: LocalFile | MemoryFile = LocalFile(path)
    else:
        file = MemoryFile(DATA)
    with pytest.MonkeyPatch.context() as patch, file:
        patch.setattr(read_units, "_UNIT_BYTES", 4000)
        patch.setattr(read_units, "_GAP_BYTES", 30)
        patch.setattr(read_units, "SMALL_MOVE_BYTES", small)
        patch.setattr(execution, "SMALL_MOVE_BYTES", small)
        patch.setattr(execution, "_BYTES_PER_THREAD", 4000)
        buffers = execute_load(plan, [file], digests=[digests], verify=True)
    assert [len(buffer) for buffer in buffers] == list(plan.buffers)
    for move in plan.moves:
        assert isinstance(move.target, int)
        result = buffers[move.target][move.position : move.position + move.length]
        assert result.tobytes() == DATA[move.offset : move.offset + move.length]


def one_move(offset: int, length: int) -> LoadPlan:
    return LoadPlan((length,), (Move(0, offset, length, 0, 0),), ())


def test_buffers_are_filled_from_several_sources() -> None:
    moves = (Move(0, 0, 2, 0, 0), Move(0, 4, 2, 1, 0), Move(2, 1, 3, 0, 2))
    files = [MemoryFile(b"abcdef"), MemoryFile(b"unused"), MemoryFile(b"vwxyz")]
    buffers = execute_load(
        LoadPlan((5, 2), moves, ()), files, digests=[None, None, None], verify=True
    )
    assert [buffer.tobytes() for buffer in buffers] == [b"abwxy", b"ef"]


@pytest.mark.parametrize("flipped", [0, 999, 1000, 20_500, len(DATA) - 1])
def test_a_flipped_bit_is_named(flipped: int) -> None:
    damaged = bytearray(DATA)
    damaged[flipped] ^= 4
    digests = digests_of(DATA, start=0, block_bytes=BLOCK)
    file = MemoryFile(damaged, "some.file")
    a = flipped // BLOCK * BLOCK
    b = min(a + BLOCK, len(DATA))
    message = f"some.file: bytes {a} to {b} do not match"
    with pytest.raises(CorruptionError, match=message):
        execute_load(one_move(0, len(DATA)), [file], digests=[digests], verify=True)
    with pytest.raises(CorruptionError, match=message):  # rounded out to its whole block
        execute_load(one_move((a + b) // 2, 1), [file], digests=[digests], verify=True)
    execute_load(one_move(0, len(DATA)), [file], digests=[digests], verify=False)
    elsewhere = (a + 5 * BLOCK) % (len(DATA) - BLOCK)
    execute_load(one_move(elsewhere, 1), [file], digests=[digests], verify=True)
    assert check_files([(file, digests)])[0] == [(a, b)]


def test_check_file_lists_every_damaged_block(tmp_path: Path) -> None:
    size = 21 * (1 << 20) + 12345
    data = np.zeros(size, np.uint8)
    digests = digests_of(data.data[100:], start=100)
    flipped = [100, (9 << 20) + 100, size - 1]
    data[flipped] = 1
    data.tofile(tmp_path / "f")
    block = 1 << 20
    with LocalFile(tmp_path / "f") as file:
        assert check_files([(file, digests)])[0] == [
            (100, 100 + block),
            (100 + 9 * block, 100 + 10 * block),
            (100 + 21 * block, size),
        ]


@pytest.mark.parametrize(
    ("digests", "error", "message"),
    [
        (Digests(0, 1000, b""), CorruptionError, "expected 40 block digests.*found 0"),
        (Digests(0, 1000, b"x" * 41 * 16), CorruptionError, "found 41: the file grew, shrank"),
        (Digests(0, 0, b""), LimitError, "digest blocks of 0 bytes"),
        (Digests(0, 1 << 40, b"x" * 16), LimitError, "MAX_BLOCK_BYTES"),
        (Digests(-1, 1 << 20, b"x" * 16), CorruptionError, "from byte -1"),
    ],
)
def test_digests_of_another_file_are_refused(
    digests: Digests, error: type[Exception], message: str
) -> None:
    file = MemoryFile(DATA, "f")
    with pytest.raises(error, match=message):
        execute_load(one_move(0, 1), [file], digests=[digests], verify=True)
    with pytest.raises(error, match=message):
        check_files([(file, digests)])[0]


@pytest.mark.parametrize(
    ("move", "error", "message"),
    [
        (Move(0, 39_990, 20, 0, 0), TruncatedError, "f: expected 20 bytes at offset 39990"),
        (Move(0, 0, 101, 0, 0), ValueError, "does not fit its buffer of 100 bytes"),
        (Move(0, 0, 50, 0, 51), ValueError, "does not fit its buffer of 100 bytes"),
        (Move(0, 0, 50, 0, -1), ValueError, "does not fit its buffer of 100 bytes"),
        (Move(0, -5, 5, 0, 0), ValueError, "begins before its file"),
    ],
)
def test_moves_outside_their_file_or_buffer(
    move: Move, error: type[Exception], message: str
) -> None:
    plan = LoadPlan((100,), (move,), ())
    with pytest.raises(error, match=message):
        execute_load(plan, [MemoryFile(DATA, "f")], digests=[None], verify=True)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(DATA)
    with LocalFile(path) as file:
        os.truncate(path, 1000)
        message = f"{re.escape(str(path))} has changed since it was opened"
        with pytest.raises(FileChangedError, match=message):
            execute_load(one_move(0, len(DATA)), [file], digests=[None], verify=True)


def test_20000_small_moves_take_few_reads(tmp_path: Path) -> None:
    class Counted(MemoryFile):
        reads = 0

        def read_into(self, offset: int, views: object) -> None:
            type(self).reads += 1
            super().read_into(offset, views)  # type: ignore[arg-type]

    data = np.random.default_rng(0).integers(0, 255, 20_000 * 110, dtype=np.uint8)
    moves = tuple(Move(0, i * 110 + 10, 100, 0, i * 128) for i in range(20_000))
    plan = LoadPlan((20_000 * 128,), moves, ())
    (buffers,) = execute_load(plan, [Counted(data.data)], digests=[None], verify=True)
    assert Counted.reads == 1
    assert (buffers.reshape(20_000, 128)[:, :100] == data.reshape(20_000, 110)[:, 10:]).all()


def test_units_end_with_tiles_so_that_threads_do_not_wait_for_each_other() -> None:
    mib = 1 << 20
    sizes = [3 * mib + 5, 1, 2 * mib, 2 * mib, 9 * mib, 3 * mib]
    ends = list(itertools.accumulate(sizes))
    data = np.random.default_rng(0).bytes(ends[-1])
    calls: list[tuple[int, int]] = []

    class RecordingFile(TiledFile):
        def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
            calls.append((offset, offset + sum(map(len, views))))
            super().read_into(offset, views)

    def make(number: int) -> np.ndarray:
        return np.frombuffer(data, np.uint8)[ends[number] - sizes[number] : ends[number]]

    plan = LoadPlan((len(data) - 7,), (Move(0, 7, len(data) - 7, 0, 0),), ())
    (buffer,) = execute_load(plan, [RecordingFile("f", ends, make)], digests=[None], verify=True)
    assert buffer.tobytes() == data[7:]
    cuts = [stop for _, stop in sorted(calls)]
    large = ends[3], ends[4]  # a tile of more than a unit
    assert [cut for cut in cuts if not large[0] < cut < large[1]] == [ends[1], ends[3], ends[5]]
