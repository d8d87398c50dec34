"""A disk that does not give back some of what was written: errors name the file."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import CorruptionError

MIB = 1 << 20
TREE = {"a": np.arange(3 * MIB // 4, dtype=np.float32), "b": np.ones(MIB, np.float32)}


@pytest.fixture
def break_sector(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have reads of some bytes of a file fail, until the test ends."""
    broken: list[tuple[tuple[int, int], int, int]] = []

    def require(fd: int, offset: int, length: int) -> None:
        status = os.fstat(fd)
        for place, start, stop in broken:
            if (
                (status.st_dev, status.st_ino) == place
                and offset < stop
                and offset + length > start
            ):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    pread, preadv = os.pread, os.preadv

    def failing_pread(fd: int, length: int, offset: int) -> bytes:
        require(fd, offset, length)
        return pread(fd, length, offset)

    def failing_preadv(fd: int, views: Any, offset: int) -> int:
        require(fd, offset, sum(map(len, views)))
        return preadv(fd, views, offset)

    monkeypatch.setattr(os, "pread", failing_pread)
    monkeypatch.setattr(os, "preadv", failing_preadv)

    def start(path: Path, start: int, stop: int) -> None:
        status = path.stat()
        broken.append(((status.st_dev, status.st_ino), start, stop))

    return start


def saved(folder: Path, kind: str) -> tuple[Path, Path]:
    """Save the tree; return the checkpoint, and the file that holds the elements of `b`."""
    path = folder / kind
    if kind == "zarr":
        cordwood.save(path, TREE, format="zarr")
        return path, path / "b/0"
    cordwood.save(path, TREE)
    if kind == "packs":
        (data,) = path.glob("data-*")
        return path, data
    return path, path


def read_by(how: str, path: Path) -> None:
    if how == "load":
        cordwood.load(path)
    elif how == "open":
        with cordwood.open(path) as checkpoint:
            checkpoint["b"][...]
    else:
        cordwood.diff(path, TREE)


KINDS = ["m.safetensors", "m.msgpack", "packs", "zarr"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["load", "open", "diff"])
def test_reading_names_the_file(
    tmp_path: Path, kind: str, how: str, break_sector: Callable[..., None]
) -> None:
    path, data = saved(tmp_path, kind)
    middle = data.stat().st_size // 2 if kind == "zarr" else data.stat().st_size - MIB
    break_sector(data, middle, middle + 512)
    with pytest.raises(OSError, match="Input/output error") as e:
        read_by(how, path)
    assert (e.value.errno, e.value.filename) == (errno.EIO, str(data))
    assert type(e.value) is OSError


@pytest.mark.parametrize("kind", ["m.safetensors", "packs", "zarr"])
def test_verify_goes_on_and_lists_the_rest(
    tmp_path: Path, kind: str, break_sector: Callable[..., None]
) -> None:
    path, data = saved(tmp_path, kind)
    other = path / "a/0" if kind == "zarr" else data
    size = data.stat().st_size
    with other.open("r+b") as file:
        file.seek(other.stat().st_size // 2 if kind == "zarr" else size // 4)
        file.write(b"damage")
    break_sector(data, size - 100, size)
    with pytest.raises(CorruptionError) as e:
        cordwood.verify(path)
    lines = str(e.value).splitlines()[1:]
    unread = [line for line in lines if "cannot be read: Input/output error" in line]
    assert len(lines) == 2
    assert len(unread) == 1
    assert unread[0].endswith(": b")
    # No more than the block that holds the sector.
    assert size - MIB <= int(unread[0].split()[1])


def test_verify_of_an_archive_goes_on(tmp_path: Path, break_sector: Callable[..., None]) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, a=TREE["a"], b=TREE["b"])
    data = path.read_bytes()
    damaged = bytearray(data)
    damaged[len(data) // 4] ^= 1
    path.write_bytes(damaged)
    break_sector(path, len(data) - MIB, len(data) - MIB + 1)
    with pytest.raises(CorruptionError, match=r"(?s): a.*cannot be read: Input/output error\): b"):
        cordwood.verify(path)


def test_restore_says_which_step_and_what_else_can_be_restored(
    tmp_path: Path, break_sector: Callable[..., None]
) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (10, 20):
            manager.save(step, {"w": np.full(MIB, step)})  # nothing is linked
    (data,) = (tmp_path / "20").glob("data-*")
    break_sector(data, data.stat().st_size - 100, data.stat().st_size)
    reader = cordwood.StepReader(tmp_path)
    message = r"step 20 cannot be read .*; restore\(10\) loads the step before it"
    for restore in (reader.restore, lambda: reader.restore(20)):
        with pytest.raises(OSError, match=message) as e:
            restore()
        assert (e.value.errno, e.value.filename) == (errno.EIO, str(data))
    assert reader.restore(10).tree["w"][0] == 10


@pytest.mark.parametrize(
    ("layout", "name"), [("packs", "cordwood.json"), ("zarr", "tensorstore_index.json")]
)
@pytest.mark.parametrize("verb", [cordwood.load, cordwood.verify, cordwood.open])
def test_the_index_is_named_too(
    tmp_path: Path,
    layout: Literal["packs", "zarr"],
    name: str,
    verb: Callable[[Path], object],
    break_sector: Callable[..., None],
) -> None:
    cordwood.save(tmp_path / "step", TREE, format=layout)
    index = tmp_path / "step" / name
    break_sector(index, 0, 10)
    with pytest.raises(OSError, match="Input/output error") as e:
        verb(tmp_path / "step")
    assert (e.value.errno, e.value.filename) == (errno.EIO, str(index))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_close_names_the_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = saved(tmp_path, kind)
    place = data.stat().st_ino
    close = os.close

    def failing(fd: int) -> None:
        fails = os.fstat(fd).st_ino == place
        close(fd)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(OSError, match="Input/output error") as e:
        cordwood.load(path)
    assert (e.value.errno, e.value.filename) == (errno.EIO, str(data))


@pytest.mark.parametrize("shared_only", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_file_systems_without_mmap(
    tmp_path: Path, kind: str, shared_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved(tmp_path, kind)
    real = mmap.mmap

    def failing(fd: int, length: int, **options: Any) -> mmap.mmap:
        flags = options.get("flags", mmap.MAP_SHARED)
        if fd >= 0 and (not shared_only or flags == mmap.MAP_SHARED):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return real(fd, length, **options)

    monkeypatch.setattr(mmap, "mmap", failing)
    loaded = cordwood.load(path)
    for name, leaf in TREE.items():
        np.testing.assert_array_equal(loaded[name], leaf)
