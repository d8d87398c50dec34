"""Directories to read from: what they hold, and that nothing outside of them is reached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood.errors import CorruptionError, LimitError, TruncatedError
from cordwood.storage import open_beneath
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.readable_directory import FOLDER, OTHER

BOTH = pytest.mark.parametrize("kernel", [True, False], ids=["openat2", "step by step"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "ckpt"
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "0").write_bytes(b"0123456789")
    (place / "a" / "link").symlink_to("b/0")
    (place / "up").symlink_to("..")
    (place / "a" / "empty").touch()
    os.mkfifo(place / "a" / "pipe")
    (tmp_path / "outside").write_bytes(b"secret")
    return place


def use(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(open_beneath, "_openat2", lambda: None)
    elif open_beneath._openat2() is None:
        pytest.skip("no libc")


@BOTH
def test_files_are_read(folder: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernel, monkeypatch)
    with LocalDirectory(folder) as directory:
        assert directory.read("a/b/0", limit_bytes=10) == b"0123456789"
        file = directory.file("a/b/0", 10)
        assert file.read(2, 3) == b"234"
        assert bytes(file.map()) == b"0123456789"
        views = [bytearray(4), bytearray(6)]
        file.read_into(0, [memoryview(view) for view in views])
        assert views == [b"0123", b"456789"]
        assert bytes(directory.file("a/empty", 0).map()) == b""
        with pytest.raises(LimitError, match=r"ckpt/a/b/0: 10 bytes; expected at most 9"):
            directory.read("a/b/0", limit_bytes=9)


@BOTH
@pytest.mark.parametrize("path", ["a/link", "up/outside", "up/ckpt/a/b/0"])
def test_symlinks_are_refused(
    folder: Path, path: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kernel, monkeypatch)
    with LocalDirectory(folder) as directory:
        with pytest.raises(CorruptionError, match="symbolic link: expected a regular file"):
            directory.read(path, limit_bytes=100)
        with pytest.raises(CorruptionError, match="symbolic link"):
            directory.file(path, 6).read(0, 6)


@BOTH
@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../outside", "", "a/", "./a"])
def test_paths_that_are_not_plain(
    folder: Path, path: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kernel, monkeypatch)
    with LocalDirectory(folder) as directory, pytest.raises(ValueError, match="no path of plain"):
        directory.read(path, limit_bytes=100)


@BOTH
@pytest.mark.parametrize("path", ["none", "none/0", "a/b/0/x", "x" * 300])
def test_a_missing_file_is_corruption(
    folder: Path, path: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kernel, monkeypatch)
    with LocalDirectory(folder) as directory:
        with pytest.raises(CorruptionError, match="is missing: the checkpoint is incomplete"):
            directory.read(path, limit_bytes=100)
        with pytest.raises(CorruptionError, match="is missing"):
            directory.sizes(path)


def test_what_is_no_regular_file(folder: Path) -> None:
    with LocalDirectory(folder) as directory:
        for path in ("a/pipe", "a/b"):
            with pytest.raises(CorruptionError, match="expected a regular file, found a directory"):
                directory.read(path, limit_bytes=100)
        assert directory.sizes("a") == {"b": FOLDER, "link": OTHER, "empty": 0, "pipe": OTHER}
        assert directory.sizes(".") == {"a": FOLDER, "up": OTHER}
        assert directory.sizes(".") == {"a": FOLDER, "up": OTHER}


def test_files_that_go_while_they_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and temporaries of a saver, say: they are not there."""
    really = os.scandir

    @contextmanager
    def scandir(fd: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with really(fd) as entries:
            listed = list(entries)
            (folder / "a" / "empty").unlink()
            (folder / "a" / "pipe").unlink()
            yield iter(listed)

    monkeypatch.setattr(os, "scandir", scandir)
    with LocalDirectory(folder) as directory:
        assert directory.sizes("a") == {"b": FOLDER, "link": OTHER}


def test_files_of_another_size(folder: Path) -> None:
    with LocalDirectory(folder) as directory:
        with pytest.raises(TruncatedError, match="expected 11 bytes, found 10"):
            directory.file("a/b/0", 11).read(0, 1)
        with pytest.raises(CorruptionError, match="expected 9 bytes, found 10"):
            directory.file("a/b/0", 9).read(0, 1)
        with pytest.raises(TruncatedError, match="expected 5 bytes at offset 8, found 2"):
            directory.file("a/b/0", 10).read(8, 5)


def test_the_directory_stays_the_one_that_was_opened(folder: Path, tmp_path: Path) -> None:
    with LocalDirectory(folder) as directory:
        assert directory.is_still_at(folder)
        folder.rename(tmp_path / "old")
        assert not directory.is_still_at(folder)
        folder.mkdir()
        assert not directory.is_still_at(folder)
        assert directory.read("a/b/0", limit_bytes=10) == b"0123456789"
        assert directory.has("a")
        assert directory.has("up")
        assert directory.has("a/link")
        assert not directory.has("none")
        assert not directory.has("up/a")
        assert not directory.has("x" * 300)
        assert not directory.has("x/" * 3000 + "x")
    with pytest.raises(ValueError, match="is closed; open it again"):
        directory.has("a")


def test_a_directory_of_a_directory(folder: Path) -> None:
    with LocalDirectory(folder) as directory:
        inner = directory.folder("a/b")
    with inner:  # which outlives it
        assert inner.name == f"{folder}/a/b"
        assert inner.read("0", limit_bytes=10) == b"0123456789"
    with LocalDirectory(folder) as directory:
        with pytest.raises(CorruptionError, match="up/b is, or lies behind, a symbolic link"):
            directory.folder("up/b")
        with pytest.raises(CorruptionError, match="none is missing"):
            directory.folder("none")
