from __future__ import annotations

import gc
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood.errors import LimitError, TruncatedError
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import LocalFile, ReadableFile, read_whole

DATA = bytes(range(256)) * 8


def local(folder: Path, data: bytes) -> ReadableFile:
    path = folder / "data"
    path.write_bytes(data)
    return LocalFile(path)


def memory(folder: Path, data: bytes) -> ReadableFile:
    return MemoryFile(data)


each_kind = pytest.mark.parametrize("make", [local, memory])
Make = Callable[[Path, bytes], ReadableFile]


@each_kind
def test_reads_the_whole_up_to_a_limit(tmp_path: Path, make: Make) -> None:
    with make(tmp_path, DATA) as file:
        assert read_whole(file, limit_bytes=len(DATA)) == DATA
        message = f"{file.name}: 2048 bytes; expected at most 2047"
        with pytest.raises(LimitError, match=f"^{re.escape(message)}$"):
            read_whole(file, limit_bytes=2047)


@each_kind
def test_reads_any_range(tmp_path: Path, make: Make) -> None:
    with make(tmp_path, DATA) as file:
        assert file.size_bytes == len(DATA)
        assert file.read(0, 0) == b""
        assert file.read(7, 300) == DATA[7:307]
        assert file.read(len(DATA), 0) == b""
        assert bytes(file.map()) == DATA
        assert file.map().readonly


@each_kind
@pytest.mark.parametrize("count", [0, 1, 3, 1024, 1025, 2000])
def test_scatters_over_any_number_of_views(tmp_path: Path, make: Make, count: int) -> None:
    target = bytearray(len(DATA))
    view = memoryview(target)
    parts = [view[i : i + 1] for i in range(count)] + [view[count:count], view[count:]]
    with make(tmp_path, DATA) as file:
        file.read_into(0, parts)
    assert target == DATA


@each_kind
@pytest.mark.parametrize(("offset", "length"), [(0, 2049), (2000, 100), (5000, 1), (1 << 60, 7)])
def test_reads_past_the_end(tmp_path: Path, make: Make, offset: int, length: int) -> None:
    with make(tmp_path, DATA) as file:
        size = max(0, len(DATA) - offset)
        expected = "1 byte" if length == 1 else f"{length} bytes"
        message = re.escape(f"{file.name}: expected {expected} at offset {offset}, found {size}")
        with pytest.raises(TruncatedError, match=message):
            file.read(offset, length)
        with pytest.raises(TruncatedError, match=message):
            file.read_into(offset, [memoryview(bytearray(length))])


@each_kind
def test_an_empty_file_is_read_and_mapped(tmp_path: Path, make: Make) -> None:
    with make(tmp_path, b"") as file:
        assert file.read(0, 0) == b""
        assert bytes(file.map()) == b""


def test_short_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def short(fd: int, buffers: Any, offset: int) -> int:
        room, some = 97, []
        for buffer in buffers:
            some.append(buffer[:room])
            room -= len(some[-1])
        return real(fd, some, offset)

    monkeypatch.setattr(os, "preadv", short)
    target = bytearray(len(DATA))
    view = memoryview(target)
    with local(tmp_path, DATA) as file:
        file.read_into(0, [view[:50], view[50:60], view[60:60], view[60:1000], view[1000:]])
    assert target == DATA


def test_a_view_of_a_mapping_outlives_its_file(tmp_path: Path) -> None:
    file = local(tmp_path, DATA)
    array = np.frombuffer(file.map(), np.uint8)[100:200]
    file.close()
    file.close()
    os.unlink(tmp_path / "data")
    del file
    gc.collect()
    assert array.tobytes() == DATA[100:200]


def test_memory_is_not_copied() -> None:
    data = bytearray(DATA)
    file = MemoryFile(data)
    data[3] = 77
    assert file.read(3, 1) == bytes([77])
    assert MemoryFile(np.zeros((2, 3), np.float32).data).size_bytes == 24
    with pytest.raises(ValueError, match="cannot read 3 bytes at offset -1"):
        file.read(-1, 3)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalFile(tmp_path / "missing")
    with pytest.raises(IsADirectoryError, match="expected a file, found a directory"):
        LocalFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="expected a regular file, found a pipe"):
        LocalFile(tmp_path / "pipe")
    with pytest.raises(OSError, match="expected a regular file"):
        LocalFile("/dev/null")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device or address"):
            LocalFile(tmp_path / "socket")
