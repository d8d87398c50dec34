from __future__ import annotations

import errno
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.io.copy_bytes import copy_bytes
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, LeafBytes, LiteralBytes
from cordwood.storage import syscalls, write_files, write_units
from cordwood.storage.syscalls import SystemCalls
from cordwood.storage.write_files import write_file
from cordwood.storage.write_stream import write_stream
from tests.block_digests import digests_of
from tests.faults.systems import CountingSystem
from tests.io.file_plans import expected_file, lay_out, leaves_read_by, stored_bytes

HEADER = b"h" * 4096


def ordinals(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count) % 251).astype(dtype).reshape(shape)


ARRAYS = {
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 3), np.float32),
    "one": np.array([7], np.int8),
    "c": ordinals((31, 7, 5), np.float32),
    "fortran": np.asfortranarray(ordinals((37, 11), np.int16)),
    "strided": ordinals((40, 30), np.int32)[::3, ::-2],
    "broadcast": np.broadcast_to(np.arange(5, dtype=np.int64), (6, 5)),
    "big_endian": ordinals((99,), ">f8"),
    "big_endian_scalar": np.array(258, ">i4"),
    "big_endian_strided": ordinals((20, 21), ">c16").T[1:],
    "bfloat16": ordinals((9, 9), ml_dtypes.bfloat16),
    "bfloat16_fortran": np.asfortranarray(ordinals((9, 8), ml_dtypes.bfloat16)),
    "int4": np.array([-8, 7, 1], ml_dtypes.int4),
    "bool": ordinals((13,), bool),
    "time": np.array(["2001-01-01", "NaT"], "datetime64[s]"),
    "read_only": np.frombuffer(b"abcd", np.uint8),
    "masked": np.ma.array([[1, 2], [3, 4]], mask=[[True, False], [False, False]]),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    ("gap", "header"), [(b"", b""), (b"gap", b""), (b"", HEADER), (b"x", b"odd")]
)
def test_the_file_holds_c_order_little_endian(
    tmp_path: Path, name: str, gap: bytes, header: bytes
) -> None:
    arrays = [ARRAYS[name], ARRAYS["c"]]
    laid = lay_out(arrays, gap=gap, header=header)
    write_file(tmp_path / "f", laid.plan, Leaves(arrays))
    assert (tmp_path / "f").read_bytes() == expected_file(arrays, gap=gap, header=header)


@pytest.mark.parametrize("name", ARRAYS)
def test_any_byte_range_of_any_array(name: str) -> None:
    array = ARRAYS[name]
    whole = stored_bytes(np.asarray(array))
    steps = max(1, len(whole) // 40)
    for start in range(0, len(whole) + 1, steps):
        for stop in range(start, len(whole) + 1, steps):
            target = bytearray(stop - start)
            copy_bytes(array, start, memoryview(target))
            assert target == whole[start:stop]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3 << 10), max_size=40),
    st.binary(max_size=5),
    st.sampled_from([b"", HEADER, b"odd"]),
    st.integers(1, 5),
)
def test_units_and_threads_do_not_show(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    gap: bytes,
    header: bytes,
    pages: int,
) -> None:
    arrays = [np.full(size, i % 251, np.uint8) for i, size in enumerate(sizes)]
    laid = lay_out(arrays, gap=gap, header=header)
    path = tmp_path_factory.mktemp("w") / "f"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_files, "UNIT_BYTES", pages * 4096)
        patch.setattr(write_files, "_DIRECT_BYTES", 8192)
        patch.setattr(write_files, "_SMALL_SEGMENT_BYTES", 0)
        patch.setattr(write_files, "BLOCK_BYTES", 4096)
        patch.setattr(write_units, "BLOCK_BYTES", 4096)
        write_file(path, laid.plan, Leaves(arrays))
    content = path.read_bytes()
    assert content == expected_file(arrays, gap=gap, header=header)
    if laid.seal is not None:
        data = content[len(header) :]
        result = laid.seal.digests
        assert result is not None
        assert result.values == digests_of(data, start=len(header), block_bytes=4096).values


@pytest.fixture(scope="module")
def large() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 255, 9_000_001, dtype=np.uint8),
        rng.random((700, 999)).T,
        rng.integers(0, 9, 1_000_003).astype(">i4"),
    ]


@pytest.mark.parametrize(("gap", "header"), [(b"", HEADER), (b"msg", b""), (b"", b"odd")])
def test_a_large_file_has_its_elements_and_digests(
    tmp_path: Path, large: list[np.ndarray], gap: bytes, header: bytes
) -> None:
    laid = lay_out(large, gap=gap, header=header)
    write_file(tmp_path / "f", laid.plan, Leaves(large))
    content = (tmp_path / "f").read_bytes()
    assert content == expected_file(large, gap=gap, header=header)
    if laid.seal is not None:
        data = content[len(header) :]
        assert laid.seal.digests == digests_of(data, start=len(header))
        assert laid.seal.digests.block_bytes == BLOCK_BYTES


class NoDirect(CountingSystem):
    """A file system that opens with O_DIRECT, or takes fallocate, and then refuses."""

    def __init__(self, refuse: str) -> None:
        super().__init__()
        self.refuse = refuse
        self.direct: set[int] = set()

    def _make(self, number: int, name: str, call: Any, args: tuple[Any, ...]) -> Any:
        if name == "open" and args[1] & os.O_DIRECT:
            if self.refuse == "open":
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            fd = call(*args)
            self.direct.add(fd)
            return fd
        if name == "pwrite" and args[0] in self.direct:
            if self.refuse == "pwrite":
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            if self.refuse == "odd":
                return os.pwrite(args[0], args[1][: len(args[1]) // 2 // 512 * 512], args[2])
        if name == "fallocate" and self.refuse == "fallocate":
            raise OSError(errno.EOPNOTSUPP, "no fallocate here")
        return call(*args)


@pytest.mark.parametrize("refuse", ["open", "pwrite", "fallocate", "odd"])
def test_falls_back_where_the_file_system_refuses(
    tmp_path: Path, large: list[np.ndarray], refuse: str
) -> None:
    laid = lay_out(large, header=HEADER)
    with syscalls.override(NoDirect(refuse)):
        write_file(tmp_path / "f", laid.plan, Leaves(large))
    assert (tmp_path / "f").read_bytes() == expected_file(large, header=HEADER)


class ShortWrites(SystemCalls):
    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return super().pwrite(fd, data[:1000], offset)


def test_short_writes_go_on(tmp_path: Path) -> None:
    arrays = [ordinals((50_000,), np.uint8)]
    with syscalls.override(ShortWrites()):
        write_file(tmp_path / "f", lay_out(arrays).plan, Leaves(arrays))
    assert (tmp_path / "f").read_bytes() == arrays[0].tobytes()


def test_each_leaf_is_fetched_once_and_dropped_after_its_last_byte(tmp_path: Path) -> None:
    alive: list[weakref.ref[np.ndarray]] = []
    fetched: list[int] = []
    most = 0
    inside = threading.Lock()

    def fetch(leaf: int) -> np.ndarray:
        nonlocal most
        assert inside.acquire(blocking=False), "two threads fetched at once"
        fetched.append(leaf)
        array = np.full(3 << 20, leaf, np.uint8)
        alive.append(weakref.ref(array))
        most = max(most, sum(ref() is not None for ref in alive))
        inside.release()
        return array

    count = 24
    segments = tuple(LeafBytes(i, 0, 3 << 20) for i in range(count))
    write_file(tmp_path / "f", FilePlan(count * (3 << 20), segments), leaves_read_by(fetch, count))
    assert sorted(fetched) == list(range(count))
    assert all(ref() is None for ref in alive)
    assert most <= 12  # four threads, each with at most three leaves in its 4 MiB


def test_a_leaf_in_several_segments_is_fetched_once(tmp_path: Path) -> None:
    fetched: list[int] = []
    array = np.arange(100, dtype=np.uint8)

    def fetch(leaf: int) -> np.ndarray:
        fetched.append(leaf)
        return array

    segments = (LeafBytes(0, 50, 100), LiteralBytes(b"|"), LeafBytes(0, 0, 50), LeafBytes(0, 7, 7))
    write_file(tmp_path / "f", FilePlan(101, segments), leaves_read_by(fetch, 1))
    assert (tmp_path / "f").read_bytes() == array[50:].tobytes() + b"|" + array[:50].tobytes()
    assert fetched == [0]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (FilePlan(5, (LiteralBytes(b"abc"),)), "a plan of 5 bytes.*segments end at 3"),
        (FilePlan(3, (LiteralBytes(b"abc"),), 0, lambda _: b""), "with make_header"),
        (FilePlan(5, (LiteralBytes(b"abc"),), 2, None), "no make_header"),
        (
            FilePlan(5, (LiteralBytes(b"abc"),), 2, lambda _: b"h"),
            "returned 1 bytes for a header of 2",
        ),
        (FilePlan(9, (LeafBytes(0, 0, 9),)), "leaf 0: expected bytes 0 to 9, found 4 in all"),
    ],
)
def test_a_plan_that_does_not_add_up_leaves_the_old_file(
    tmp_path: Path, plan: FilePlan, message: str
) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write_file(tmp_path / "f", plan, Leaves([np.zeros(4, np.uint8)]))
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("size", [10, 20 << 20])
def test_what_fetch_raises_passes_through(tmp_path: Path, size: int) -> None:
    def fetch(leaf: int) -> np.ndarray:
        raise KeyboardInterrupt

    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_file(
            tmp_path / "f", FilePlan(size, (LeafBytes(0, 0, size),)), leaves_read_by(fetch, 1)
        )
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_20000_small_leaves_take_few_calls(tmp_path: Path) -> None:
    arrays = [np.full(256, i, np.float32) for i in range(20_000)]
    counting = CountingSystem()
    with syscalls.override(counting):
        write_file(tmp_path / "f", lay_out(arrays, gap=b"g").plan, Leaves(arrays))
    assert len(counting.made) < 40
    assert (tmp_path / "f").read_bytes() == expected_file(arrays, gap=b"g")


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b""],
        [b"a", bytearray(b"bc"), memoryview(b"def")],
        [b"x" * (3 << 20), b"y", b"z" * (1 << 20), b"w" * 100],
        [bytes([i % 256]) * 1000 for i in range(3000)],
    ],
)
def test_a_stream_is_written_as_a_file(tmp_path: Path, chunks: list[bytes]) -> None:
    write_stream(tmp_path / "f", iter(chunks))
    assert (tmp_path / "f").read_bytes() == b"".join(chunks)


def test_a_stream_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    def chunks() -> Any:
        yield b"x" * (2 << 20)
        raise RuntimeError("no more")

    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="no more"):
        write_stream(tmp_path / "f", chunks())
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"
