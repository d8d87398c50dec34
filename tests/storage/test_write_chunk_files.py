"""Chunk files: what they hold, whatever the leaf's memory looks like; what is held meanwhile."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from cordwood.devices.array_shards import LocalShards
from cordwood.dtypes import to_numpy
from cordwood.index import Box
from cordwood.io.chunk_codecs import chunk_encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import ChunkFile, PlannedFile, SmallFile
from cordwood.sharding.boxes import slices, whole_box
from cordwood.storage import syscalls, write_chunk_files
from cordwood.storage.write_chunk_files import write_new_files
from cordwood.threads.stop_check import StoppedError, stop_check
from tests.block_digests import digests_of
from tests.faults.systems import CountingSystem, FailingSystem
from tests.io.file_plans import leaves_read_by


def held(array: np.ndarray, boxes: Sequence[Box]) -> Any:
    """Return the array, or a snapshot of its boxes."""
    if not boxes:
        return array
    return LocalShards(array.shape, array.dtype, boxes, [array[slices(box)] for box in boxes])


def write(
    folder: Path, array: np.ndarray, files: Sequence[PlannedFile], boxes: Sequence[Box] = ()
) -> list[bytes]:
    written = write_new_files(str(folder), files, Leaves([held(array, boxes)]), None)
    results = [(folder / file.path).read_bytes() for file in files]
    for data, (size, digests) in zip(results, written, strict=True):
        assert size == len(data)
        assert digests == digests_of(data, start=0).values
    return results


def chunk(path: str, box: Box, shape: tuple[int, ...], array: np.ndarray) -> ChunkFile:
    return ChunkFile(path, 0, box, shape, array.itemsize)


ARRAYS: dict[str, np.ndarray] = {
    "C": np.arange(60, dtype=np.float32).reshape(5, 4, 3),
    "F": np.asfortranarray(np.arange(60, dtype=np.int16).reshape(5, 4, 3)),
    "strided": np.arange(240, dtype=np.int64).reshape(10, 8, 3)[::2, ::2],
    "reversed": np.arange(60, dtype=np.uint8).reshape(5, 4, 3)[::-1, :, ::-1],
    "big-endian": np.arange(60, dtype=">c16").reshape(5, 4, 3),
    "int4": (np.arange(60) % 7).astype(to_numpy("int4")).reshape(5, 4, 3),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    ("box", "shape"),
    [
        (Box((0, 0, 0), (5, 4, 3)), (5, 4, 3)),
        (Box((2, 0, 0), (4, 4, 3)), (2, 4, 3)),
        (Box((4, 0, 0), (5, 4, 3)), (3, 4, 3)),  # padded at the end
        (Box((0, 2, 1), (5, 4, 3)), (5, 3, 4)),  # and in the middle
        (Box((4, 3, 0), (5, 4, 2)), (2, 2, 2)),
    ],
)
def test_what_a_chunk_file_holds(
    tmp_path: Path, name: str, box: Box, shape: tuple[int, ...]
) -> None:
    array = ARRAYS[name]
    expected = np.zeros(shape, array.dtype.newbyteorder("<"))
    part = array[slices(box)]
    expected[tuple(map(slice, part.shape))] = part
    cuts = [Box((a, 0, 0), (b, 4, 3)) for a, b in [(0, 1), (1, 3), (3, 5)]]
    for boxes in ([], cuts):  # one shard, and several that no chunk ends with
        place = tmp_path / str(len(boxes))
        place.mkdir()
        assert write(place, array, [chunk("0", box, shape, array)], boxes) == [expected.tobytes()]


def test_scalars_and_small_files(tmp_path: Path) -> None:
    array = np.array(7.5, np.float64)
    (tmp_path / "a").mkdir()
    files: list[PlannedFile] = [SmallFile("a/.zarray", b"{}"), chunk("a/0", Box((), ()), (), array)]
    assert write(tmp_path, array, files) == [b"{}", array.tobytes()]
    assert write_new_files(str(tmp_path), [], Leaves([]), None) == []


@pytest.mark.parametrize("strided", [False, True])
def test_large_chunks_are_written_and_padded(tmp_path: Path, strided: bool) -> None:
    """The file has several units and many blocks; the last ones are short."""
    array = np.arange(5_300_001, dtype=np.int32)[:: 2 if strided else 1]
    size = len(array)
    files = [
        chunk("0", Box((0,), (2_000_000,)), (2_000_000,), array),
        chunk("1", Box((2_000_000,), (size,)), (4_000_000,), array),
    ]
    first, second = write(tmp_path, array, files)
    assert first == array[:2_000_000].tobytes()
    assert second[: (size - 2_000_000) * 4] == array[2_000_000:].tobytes()
    assert not any(second[(size - 2_000_000) * 4 :])


def test_many_files_with_few_descriptors(tmp_path: Path) -> None:
    array = np.arange(1000, dtype=np.int8)
    files = [chunk(str(i), Box((i,), (i + 1,)), (1,), array) for i in range(1000)]
    most = 0

    class Watching(syscalls.SystemCalls):
        def fsync(self, fd: int) -> None:
            nonlocal most
            most = max(most, len(os.listdir("/proc/self/fd")))
            super().fsync(fd)

    before = len(os.listdir("/proc/self/fd"))
    with syscalls.override(Watching()):
        written = write(tmp_path, array, files)
    assert b"".join(written) == array.tobytes()
    assert most - before <= write_chunk_files._CHUNK_THREADS * (write_chunk_files._OPEN_FILES + 2)
    assert len(os.listdir("/proc/self/fd")) == before


def test_compressed_chunks_have_checksums(tmp_path: Path) -> None:
    array = np.arange(50_000, dtype=np.float32).reshape(100, 500)
    files = [chunk("0", Box((0, 0), (60, 500)), (60, 500), array)]
    files += [chunk("1", Box((60, 0), (100, 500)), (60, 500), array)]
    written = write_new_files(str(tmp_path), files, Leaves([array]), chunk_encoder("zstd"))
    decoder = zstandard.ZstdDecompressor()
    second = (tmp_path / "1").read_bytes()
    assert written[1].size_bytes == len(second) < array.nbytes / 2
    expected = array[60:].tobytes() + bytes(20 * 500 * 4)
    assert decoder.decompress(second) == expected
    assert zstandard.get_frame_parameters(second).has_checksum


@pytest.mark.parametrize("compression", ["zstd", "blosc"])
@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "float32", "float64", "complex128"])
def test_tensorstore_reads_what_is_compressed(compression: str, dtype: str) -> None:
    import tensorstore

    array = (np.arange(600) % 2).astype(to_numpy(dtype)).reshape(20, 30)
    context = tensorstore.Context()
    compressor = {"id": compression}
    metadata = {"compressor": compressor, "shape": [20, 30], "chunks": [20, 30]}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata, "dtype": dtype}
    store = tensorstore.open(spec, create=True, context=context).result()
    memory = tensorstore.KvStore.open("memory://", context=context).result()
    memory["0.0"] = chunk_encoder(compression)(array)
    assert np.array_equal(store.read().result(), array)


def test_leaves_are_fetched_once_and_let_go(tmp_path: Path) -> None:
    fetched: list[int] = []
    alive: list[weakref.ref[Any]] = []
    most = 0

    class Watched(np.ndarray):
        pass

    def fetch(leaf: int) -> Any:
        nonlocal most
        gc.collect()
        most = max(most, sum(ref() is not None for ref in alive))
        fetched.append(leaf)
        array = np.full(20, leaf, np.uint8)
        alive.append(weakref.ref(watched := array.view(Watched)))
        return LocalShards((20,), array.dtype, [whole_box((20,))], [watched])

    files = [
        ChunkFile(f"{leaf}-{i}", leaf, Box((5 * i,), (5 * i + 5,)), (5,), 1)
        for leaf in range(40)
        for i in range(4)
    ]
    gc.freeze()  # the collections traverse what this test has made, and nothing older
    try:
        write_new_files(str(tmp_path), files, leaves_read_by(fetch, 40), None)
        gc.collect()
    finally:
        gc.unfreeze()
    assert sorted(fetched) == list(range(40))
    assert not any(ref() is not None for ref in alive)
    assert most <= 2 * write_chunk_files._CHUNK_THREADS


def test_errors_name_the_file(tmp_path: Path) -> None:
    array = np.zeros(4)
    with pytest.raises(FileNotFoundError) as missing:
        write(tmp_path, array, [chunk("none/0", whole_box((4,)), (4,), array)])
    assert missing.value.filename == f"{tmp_path}/none/0"
    (tmp_path / "0").touch()
    with pytest.raises(FileExistsError):
        write(tmp_path, array, [chunk("0", whole_box((4,)), (4,), array)])


def test_every_failing_call_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        write_chunk_files, "_CHUNK_THREADS", 1
    )  # so that each number is always the same call
    array = np.arange(100, dtype=np.int16)
    files = [chunk(str(i), Box((50 * i,), (50 * i + 50,)), (50,), array) for i in range(2)]
    counting = CountingSystem()
    with syscalls.override(counting):
        write_new_files(str(tmp_path), files, Leaves([array]), None)
    before = len(os.listdir("/proc/self/fd"))
    failed = set()
    for number in range(1, len(counting.made) + 1):
        place = tmp_path / f"fail-{number}"
        place.mkdir()
        error: OSError | None = None
        failing = FailingSystem(number, 5)
        with syscalls.override(failing):
            try:
                write_new_files(str(place), files, Leaves([array]), None)
            except OSError as e:
                error = e
        call = failing.made[number - 1]
        failed.add(call)
        if call in ("start_writeback", "close"):  # a hint; and after the flush
            assert error is None
        else:
            assert error is not None
            assert error.errno == 5
            assert os.path.dirname(error.filename) == str(place)
    assert failed == {"open", "pwrite", "fsync", "start_writeback", "close"}
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_stops_at_a_stop_check(tmp_path: Path) -> None:
    array = np.arange(100, dtype=np.int8)
    files = [chunk(str(i), Box((i,), (i + 1,)), (1,), array) for i in range(100)]
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise StoppedError

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoppedError), stop_check(check):
        write_new_files(str(tmp_path), files, Leaves([array]), None)
    assert len(os.listdir(tmp_path)) == 5
    assert len(os.listdir("/proc/self/fd")) == before
