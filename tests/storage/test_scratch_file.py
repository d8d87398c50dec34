"""Files without a name: nothing is left of them, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.errors import StorageError, TruncatedError
from cordwood.storage import syscalls
from cordwood.storage.paths import temporary_path
from cordwood.storage.scratch.scratch_file import UnnamedTemporaryFile, scratch_directory
from cordwood.storage.syscalls import SystemCalls
from tests.faults.systems import CountingSystem, FailingSystem

NAME = "models/m.msgpack.zst"


class Named(CountingSystem):
    """A file system where every file has a name."""

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name == "open" and args[1] & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return super()._make(number, name, call, args)


@pytest.fixture(params=[SystemCalls, Named], ids=["unnamed", "named for a moment"])
def kind(request: pytest.FixtureRequest) -> Iterator[type[SystemCalls]]:
    with syscalls.override(request.param()):
        yield request.param


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("kind")
def test_what_is_appended_is_read(tmp_path: Path) -> None:
    before = descriptors()
    with UnnamedTemporaryFile(tmp_path, NAME) as file:
        assert list(tmp_path.iterdir()) == []
        file.reserve(1 << 20)
        for number in range(10):
            file.append(bytes([number]) * 100)
        assert file.size_bytes == 1000  # whatever was reserved
        assert file.read(95, 10) == bytes([0] * 5 + [1] * 5)
        view = file.map()
        assert view.readonly
        assert bytes(view) == b"".join([bytes([number]) * 100 for number in range(10)])
        with pytest.raises(TruncatedError, match=f"^{NAME}: expected 2 bytes at offset 999"):
            file.read(999, 2)
    assert bytes(view[-2:]) == b"\t\t"  # the mapping outlives the descriptor
    del view
    with pytest.raises(ValueError, match=f"{NAME} is closed"):
        file.read(0, 1)
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_it_is_in_no_directory(tmp_path: Path) -> None:
    counting = CountingSystem()
    with syscalls.override(counting), UnnamedTemporaryFile(tmp_path, NAME) as file:
        names = os.fstat(file.opened[0])
        assert (names.st_nlink, names.st_dev) == (0, tmp_path.stat().st_dev)
    assert counting.made == ["open"]


def test_what_a_killed_one_had_left_goes(tmp_path: Path) -> None:
    stale = Path(temporary_path(str(tmp_path), "m.msgpack.zst"))
    stale.touch()
    others = Path(temporary_path(str(tmp_path), "other"))
    others.touch()
    with syscalls.override(Named()), UnnamedTemporaryFile(tmp_path, NAME):
        assert list(tmp_path.iterdir()) == [others]


def use(folder: Path) -> None:
    with UnnamedTemporaryFile(folder, NAME) as file:
        file.reserve(500)
        file.append(b"x" * 400)
        file.append(b"y" * 300)
        file.finish()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_system_call_leaves_no_file(tmp_path: Path, code: int) -> None:
    before = descriptors()
    messages = []
    for number in range(1, 6):  # open, fallocate, pwrite, pwrite, fsync
        with (
            syscalls.override(FailingSystem(number, code)),
            pytest.raises(StorageError) as caught,
        ):
            use(tmp_path)
        error = caught.value
        assert (error.errno, error.filename) == (code, NAME)
        messages.append(str(error.strerror))
        assert list(tmp_path.iterdir()) == []
        assert descriptors() == before
    place = f"a temporary file in {tmp_path} for what it decompresses to"
    advice = "pass scratch= (--scratch), another directory"
    if code != errno.EIO:
        advice = f"make room there, or {advice} on a disk that has it"
    why = os.strerror(code)
    assert messages == [
        f"{why} while creating {place}; {advice}",
        f"{why} while filling {place}, at least 500 bytes; {advice}",
        f"{why} while filling {place}, at least 500 bytes; {advice}",
        f"{why} while filling {place}, at least 700 bytes; {advice}",
        f"{why} while filling {place}, at least 700 bytes; {advice}",
    ]


def test_a_disk_that_reserves_nothing_will_do(tmp_path: Path) -> None:
    with syscalls.override(FailingSystem(2, errno.EOPNOTSUPP)):
        use(tmp_path)


def test_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=re.escape(f"in {tmp_path / 'no'} for")) as caught:
        UnnamedTemporaryFile(tmp_path / "no", NAME)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, NAME)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="pass scratch="):
        UnnamedTemporaryFile(tmp_path / "file", NAME)
    with (
        syscalls.override(FailingSystem(1, errno.EACCES)),
        pytest.raises(StorageError, match=r"^\[Errno 13\] Permission denied while creating a"),
    ):
        UnnamedTemporaryFile(tmp_path, NAME)


@pytest.mark.parametrize("call", ["open", "unlink", "fallocate", "pwrite"])
@pytest.mark.parametrize("base", [CountingSystem, Named])
def test_an_interrupt_leaves_nothing(tmp_path: Path, call: str, base: type[CountingSystem]) -> None:
    class Interrupted(base):  # type: ignore[valid-type, misc]
        def _make(
            self, number: int, name: str, make: Callable[..., Any], args: tuple[Any, ...]
        ) -> Any:
            if name == call != "unlink":
                raise KeyboardInterrupt
            result = super()._make(number, name, make, args)
            if name == call:
                raise KeyboardInterrupt
            return result

    before = descriptors()
    with syscalls.override(Interrupted()):
        if call == "unlink" and base is CountingSystem:
            use(tmp_path)  # which has no name to remove
        else:
            with pytest.raises(KeyboardInterrupt):
                use(tmp_path)
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_the_disk_that_a_destination_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run" / "100")
    assert scratch_directory(tmp_path / "run" / "m.safetensors") == str(tmp_path / "run")
    assert scratch_directory(tmp_path / "run") == str(tmp_path / "run")
    assert scratch_directory(f"{tmp_path}/run/") == str(tmp_path / "run")
    assert scratch_directory(tmp_path / "link") == str(tmp_path / "run")
    assert scratch_directory(tmp_path / "new" / "a" / "b") == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert scratch_directory("m.msgpack") == str(tmp_path)
    assert scratch_directory("/") == "/"


def test_blocks_are_written_at_any_place(tmp_path: Path) -> None:
    """Whole pages past the page cache, where the file system supports that."""
    data = bytes(range(256)) * 64
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    with UnnamedTemporaryFile(tmp_path, NAME) as file:
        file.reserve_blocks(3 * len(data))
        file.write_block(memoryview(memory), len(data))
        file.write_block(memoryview(data)[:100], 2 * len(data) + 5)
        file.finish()
        assert file.size_bytes == 3 * len(data)
        assert file.read(len(data), len(data)) == data
        assert file.read(2 * len(data), 105) == bytes(5) + data[:100]


def test_a_disk_that_fails_a_block_is_named(tmp_path: Path) -> None:
    class Failing(SystemCalls):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            raise OSError(errno.EIO, "no")

    with UnnamedTemporaryFile(tmp_path, NAME) as file:
        file.reserve_blocks(100)
        with syscalls.override(Failing()), pytest.raises(StorageError, match="while filling a"):
            file.write_block(memoryview(bytes(100)), 0)
