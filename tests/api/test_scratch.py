"""Compressed sources, decompressed on a disk: errors as in memory, and nothing is left."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    NotACheckpointError,
    StorageError,
)
from cordwood.io import progress
from cordwood.results import Progress
from cordwood.storage import syscalls
from cordwood.storage.scratch.scratch_file import UnnamedTemporaryFile
from tests.alarms import interruptions
from tests.children import run_python
from tests.descriptors import open_descriptors
from tests.faults import Scenario, fail_calls, kill_calls, why_no_power_cuts
from tests.faults.disks import mounted_memory
from tests.faults.systems import CountingSystem
from tests.outcomes import check

SUFFIXES = [".msgpack.zst", ".msgpack.gz"]
each_suffix = pytest.mark.parametrize("suffix", SUFFIXES)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[UnnamedTemporaryFile]:
    """Return a list of the files without a name that the test makes."""
    result: list[UnnamedTemporaryFile] = []

    class Noted(UnnamedTemporaryFile):
        def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
            result.append(self)
            self.folder = os.fspath(folder)
            super().__init__(folder, name)

    monkeypatch.setattr("cordwood.storage.scratch.scratch_file.UnnamedTemporaryFile", Noted)
    return result


@each_suffix
@pytest.mark.parametrize("target", ["out/b.safetensors", "out/packs", "out/new/packs"])
def test_scratch_is_beside_the_target_unless_it_is_named(
    tmp_path: Path, made: list[Any], suffix: str, target: str
) -> None:
    source, out, other = tmp_path / f"a{suffix}", tmp_path / "out", tmp_path / "other"
    out.mkdir()
    other.mkdir()
    cordwood.save(source, {"w": np.arange(1000)})
    cordwood.convert(source, tmp_path / target)
    assert [file.folder for file in made] == [str(out)]
    assert [file.name for file in made] == [str(source)]
    cordwood.convert(source, tmp_path / target, scratch=other, overwrite=True)
    cordwood.convert(source, f"file://{tmp_path / target}", overwrite=True)
    cordwood.convert(source, "memory://scratch/packs", overwrite=True)  # which has no disk
    stored = tmp_path / target  # now
    folder = stored if stored.is_dir() else stored.parent
    assert [Path(file.folder) for file in made[1:]] == [other, folder, tmp_path]
    assert not any(file.opened for file in made)
    with cordwood.open(source) as checkpoint:  # in memory
        cordwood.convert(checkpoint, tmp_path / target, overwrite=True)
        with pytest.raises(
            ValueError, match=re.escape(f"{source} is open: pass prefix=, max_bytes= and")
        ):
            cordwood.convert(checkpoint, tmp_path / target, scratch=other, overwrite=True)
    cordwood.convert(tmp_path / target, tmp_path / "c.safetensors")  # no stream at all
    assert len(made) == 4
    assert names_in(other) == []
    assert names_in(out) == [Path(target).parts[1]]


@each_suffix
def test_an_open_file_keeps_its_contents_in_scratch(
    tmp_path: Path, made: list[Any], suffix: str
) -> None:
    source, scratch = tmp_path / f"a{suffix}", tmp_path / "scratch"
    scratch.mkdir()
    tree: dict[str, Any] = {
        "w": np.arange(3000.0).reshape(30, 100),
        "b": np.ones(5, np.int8),
        "n": 3,
    }
    cordwood.save(source, tree)
    with cordwood.open(source, scratch=scratch) as checkpoint:
        np.testing.assert_array_equal(checkpoint["w"][3:5, 7], tree["w"][3:5, 7])
        assert cordwood.diff(checkpoint.load(), tree).equal
        tree_of_views: Any = checkpoint.load(mmap=True)
        assert cordwood.convert(checkpoint, tmp_path / "b.safetensors").leaves == 3
        assert len(made) == 1
        assert names_in(scratch) == []
    np.testing.assert_array_equal(
        tree_of_views["w"], tree["w"]
    )  # the mapping outlives the checkpoint


@each_suffix
@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_a_tree_of_a_directory_by_its_prefix(tmp_path: Path, suffix: str, layout: Any) -> None:
    cordwood.save(tmp_path / "run", {"w": np.ones(3)}, prefix="params", format=layout)
    cordwood.save(tmp_path / "run", {"mu": np.ones(3)}, prefix="opt", format=layout)
    path = tmp_path / f"a{suffix}"
    cordwood.convert(tmp_path / "run", path, prefix="opt")
    assert set(cordwood.load(path)) == {"mu"}
    with pytest.raises(ValueError, match="prefix= is for directories"):
        cordwood.convert(path, tmp_path / "b.safetensors", prefix="opt")


def damaged(data: bytes) -> dict[str, tuple[bytes, type[Exception], str]]:
    return {
        "cut": (data[: len(data) // 2], FormatError, "has no end; copy or save it again"),
        "checksum": (data[:-6] + bytes(6), CorruptionError, "that begins at byte 0 is damaged"),
        "tail": (data + b"junk", CorruptionError, "stream, found 6a756e6b"),
        "empty": (b"", FormatError, "expected a tree in .*, found an empty file"),
    }


@each_suffix
@pytest.mark.parametrize("what", list(damaged(b"")))
def test_the_error_of_damage_names_the_source(tmp_path: Path, suffix: str, what: str) -> None:
    source, path, out = (
        tmp_path / f"a{suffix}",
        tmp_path / "out" / "b.safetensors",
        tmp_path / "out",
    )
    cordwood.save(path, {"old": 1})
    cordwood.save(source, {"w": np.random.default_rng(0).bytes(100_000)})
    data, error, message = damaged(source.read_bytes())[what]
    source.write_bytes(data)
    before = open_descriptors()
    with pytest.raises(error, match=f"^{re.escape(str(source))}: .*{message}"):
        cordwood.convert(source, path, overwrite=True)
    assert cordwood.load(path) == {"old": 1}
    assert names_in(out) == ["b.safetensors"]
    assert len(os.listdir("/proc/self/fd")) == before


@each_suffix
def test_a_stream_of_something_else(tmp_path: Path, suffix: str) -> None:
    from cordwood.formats.flax_msgpack.compress import compress

    source = tmp_path / f"a{suffix}"
    data = cordwood.to_bytes({"w": np.ones(100)})
    source.write_bytes(b"".join(compress([data[:-1]], suffix.rpartition(".")[2])))
    with pytest.raises(FormatError, match=f"^{re.escape(str(source))}: byte "):
        cordwood.convert(source, tmp_path / "b")
    assert names_in(tmp_path) == [source.name]


@each_suffix
def test_scratch_obeys_the_limit_of_decompressed_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    source = tmp_path / f"a{suffix}"
    cordwood.save(source, {"w": np.zeros(4 << 20, np.uint8)})
    module = "cordwood.formats.flax_msgpack.decompress"
    monkeypatch.setattr(f"{module}.MIN_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(f"{module}.MAX_RATIO", 1)
    counting = CountingSystem()
    with (
        syscalls.override(counting),
        pytest.raises(LimitError, match=rf"a{suffix}: decompresses to .* pass max_bytes"),
    ):
        cordwood.convert(source, tmp_path / "b")
    # A frame of zstd tells its size: no room was claimed.
    assert set(counting.made) == ({"open"} if suffix.endswith("zst") else {"open", "pwrite"})
    assert counting.made.count("pwrite") <= 1
    assert names_in(tmp_path) == [source.name]
    with pytest.raises(LimitError):
        cordwood.open(source, scratch=tmp_path, max_bytes=1000)
    with cordwood.open(source, scratch=tmp_path, max_bytes=5 << 20) as checkpoint:
        assert cordwood.convert(checkpoint, tmp_path / "b").leaves == 1


def test_what_is_at_the_destination_is_looked_at_first(tmp_path: Path, made: list[Any]) -> None:
    source, path = tmp_path / "a.msgpack.zst", tmp_path / "b.safetensors"
    cordwood.save(source, {"w": np.ones(3)})
    path.write_text("a letter")
    with pytest.raises(NotACheckpointError, match="not a safetensors checkpoint"):
        cordwood.convert(source, path)
    with pytest.raises(ValueError, match="would be converted into itself"):
        cordwood.convert(source, source)
    assert made == []


@each_suffix
def test_a_conversion_reports_progress_while_it_decompresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(progress, "_EVERY_SECONDS", 0.0)
    source = tmp_path / f"a{suffix}"
    cordwood.save(source, {f"w{i}": np.full(1 << 18, i, np.float32) for i in range(8)})
    messages: list[Progress] = []
    cordwood.convert(source, tmp_path / "b.safetensors", progress=messages.append)
    done = [each.done_bytes for each in messages]
    assert len(done) > 8
    assert done == sorted(done)
    assert (done[0], done[-1], messages[-1].total_bytes) == (0, 8 << 20, 8 << 20)


TREES = """
import numpy as np
import cordwood

def tree_of(start, elements):
    return {{"w": np.arange(start, start + elements, dtype=np.float32), "step": np.asarray(start)}}

old, new = tree_of(0, 1000), tree_of(5, 3000)
sources = {{}}
for tree in (old, new):
    sources[int(tree["step"])] = f"{sources}/{{tree['step']}}{suffix}"
    cordwood.save(sources[int(tree["step"])], tree)
"""
CONVERT = "import cordwood; cordwood.convert(sources[int(tree['step'])], path, overwrite=True)"
LOAD = "import cordwood; found = cordwood.load(path)"


def scenario(folder: Path, suffix: str, name: str = "m.safetensors") -> Scenario:
    """Return a scenario that converts a compressed source over an older file."""
    return Scenario(name, TREES.format(sources=folder, suffix=suffix), CONVERT, LOAD)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@each_suffix
def test_a_failed_system_call_names_the_scratch_file(
    tmp_path: Path, suffix: str, code: int
) -> None:
    outcomes = list(fail_calls(scenario(tmp_path, suffix), str(tmp_path), code))
    check(outcomes, at_least=11)
    scratch = [outcome.error for outcome in outcomes if "temporary file in" in str(outcome.error)]
    assert len(scratch) >= 2  # open, pwrite; and where the size is stored, fallocate
    for error in scratch:
        assert isinstance(error, StorageError)
        assert (error.errno, error.filename) == (code, str(tmp_path / f"5{suffix}"))
        assert f"{os.strerror(code)} while " in str(error)
        assert "for what it decompresses to" in str(error)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "torn"])
@each_suffix
def test_the_process_ends_at_any_call(tmp_path: Path, suffix: str, torn: bool) -> None:
    outcomes = list(kill_calls(scenario(tmp_path, suffix), str(tmp_path), torn=torn))
    check(outcomes, at_least=11)
    assert {outcome.found for outcome in outcomes} == {"old", "new"}


KILLED = """
import os, signal, sys
import cordwood
from cordwood.storage import syscalls

class Killed(syscalls.SystemCalls):
    def pwrite(self, fd, data, offset):
        count = super().pwrite(fd, data, offset)
        if os.fstat(fd).st_nlink == 0 and offset >= 4 << 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

with syscalls.override(Killed()):
    cordwood.convert(sys.argv[1], sys.argv[2])
"""


@each_suffix
def test_nothing_is_left_of_a_killed_conversion(tmp_path: Path, suffix: str) -> None:
    source, out = tmp_path / f"a{suffix}", tmp_path / "out"
    cordwood.save(source, {"w": np.zeros(16 << 20, np.uint8)})
    out.mkdir()
    with pytest.raises(AssertionError, match=f"exit status -{signal.SIGKILL.value}"):
        run_python(KILLED, str(source), str(out / "b.safetensors"))
    assert names_in(out) == []
    assert names_in(tmp_path) == [source.name, "out"]


@pytest.mark.filterwarnings(  # Python loses an interrupt that comes in `__del__`
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
@each_suffix
def test_interrupts_at_any_moment_leave_nothing(tmp_path: Path, suffix: str) -> None:
    source, out = tmp_path / f"a{suffix}", tmp_path / "out"
    cordwood.save(source, {"w": np.zeros(2 << 20, np.uint8)})
    out.mkdir()

    def open_it() -> None:
        cordwood.open(source, scratch=out).close()

    open_it()
    before = open_descriptors()
    cuts = 0
    for cut in interruptions(open_it, times=200):
        cuts += cut
        assert names_in(out) == []
        assert len(os.listdir("/proc/self/fd")) == before
    assert cuts > 20


@each_suffix
def test_a_full_disk_of_scratch_says_how_much_room_is_needed(tmp_path: Path, suffix: str) -> None:
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    source, tree = tmp_path / f"a{suffix}", {"w": np.zeros(16 << 20, np.uint8)}
    cordwood.save(source, tree)
    size_bytes = len(cordwood.to_bytes(tree))
    with mounted_memory(8 << 20, str(tmp_path / "small")) as place:
        before = os.statvfs(place).f_bfree
        with pytest.raises(StorageError) as caught:
            cordwood.convert(source, f"{place}/b.safetensors")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(source))
        result = re.search(
            rf"filling a temporary file in {place} for what it decompresses to, at least (\d+) "
            r"bytes; make room there, or pass scratch= \(--scratch\), another directory on a "
            "disk that has it",
            str(caught.value),
        )
        assert result is not None, caught.value
        if suffix == ".msgpack.zst":  # which stores the size
            assert int(result[1]) == size_bytes
        assert 7 << 20 < int(result[1]) <= size_bytes
        assert os.listdir(place) == []
        assert os.statvfs(place).f_bfree == before
        cordwood.convert(source, f"{place}/b.msgpack.zst", scratch=tmp_path)
        assert cordwood.diff(f"{place}/b.msgpack.zst", tree).equal


def test_the_command_takes_a_scratch_directory(tmp_path: Path) -> None:
    source = tmp_path / "a.msgpack.gz"
    cordwood.save(source, {"w": np.ones(3)})

    def convert(*options: str) -> subprocess.CompletedProcess[str]:
        arguments = [str(source), str(tmp_path / "b.safetensors"), *options]
        command = [sys.executable, "-m", "cordwood", "convert", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    failed = convert("--scratch", str(tmp_path / "no"))
    assert failed.returncode == 3
    message = f"creating a temporary file in {tmp_path / 'no'} for what it decompresses to; pass"
    assert message in failed.stderr
    assert convert("--scratch", str(tmp_path)).returncode == 0
    assert convert("--force").returncode == 0
    assert names_in(tmp_path) == ["a.msgpack.gz", "b.safetensors"]
