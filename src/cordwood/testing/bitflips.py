"""Flip bits of a file or directory, one at a time, and classify what a load does.

    report = flip_bits("m.safetensors", cordwood.load, count=2000)
    assert report.all_caught, report

A flip is harmless if the load still returns the same tree, detected if it raises an error of
cordwood, silent if it returns a different tree, and crashed if it raises anything else.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.errors import CordwoodError
from cordwood.storage.locations import parse_local_path
from cordwood.testing.equality import assert_trees_equal


class BitFlip(NamedTuple):
    """The position of one bit."""

    offset: int  # in bytes, from the start of the file
    bit: int  # 0 (least significant) to 7
    file: str = ""  # path of the file within a directory; "" if the checkpoint is a file


class Flipped(NamedTuple):
    """One flip and its result."""

    flip: BitFlip
    message: str  # the error's text, or how the tree differs; "" if harmless


class FlipReport(NamedTuple):
    """All flips, by result."""

    detected: tuple[Flipped, ...]
    harmless: tuple[Flipped, ...]
    silent: tuple[Flipped, ...]
    crashed: tuple[Flipped, ...]

    @property
    def all_caught(self) -> bool:
        """True if every flip was detected or harmless."""
        return not self.silent and not self.crashed

    def __str__(self) -> str:
        lines = [", ".join(f"{len(flips)} {name}" for name, flips in self._asdict().items())]
        for name in ("silent", "crashed"):
            for (offset, bit, file), message in getattr(self, name)[:10]:
                where = f"{file}: byte {offset}" if file else f"byte {offset}"
                lines.append(f"  {name}: {where}, bit {bit}: {message:.300}")
        return "\n".join(lines)


def random_flips(size_bytes: int, count: int, *, seed: int = 0) -> list[BitFlip]:
    """Return `count` different bits of a file: all, in order, if it has no more.

    >>> random_flips(1 << 20, 2, seed=1)
    [BitFlip(offset=281782, bit=1, file=''), BitFlip(offset=132344, bit=4, file='')]
    """
    bits = range(size_bytes * 8)
    picked = bits if count >= len(bits) else random.Random(seed).sample(bits, count)  # noqa: S311
    return [BitFlip(bit // 8, bit % 8) for bit in picked]


def flip_bits(
    path: str | os.PathLike[str],
    load: Callable[[Path], Any],
    *,
    flips: Iterable[BitFlip] | None = None,
    count: int = 2000,
    seed: int = 0,
    assert_equal: Callable[[Any, Any], None] = assert_trees_equal,
) -> FlipReport:
    """Load a copy of a checkpoint once for each flipped bit; `path` itself is not changed.

    Args:
        path: an undamaged file or directory. Its tree is the one that every load should return.
        load: called with the path of the copy, which has the same name; the returned tree must not
            contain memory maps of files.
        flips: the bits to flip; None: `count` random bits, of all files of a directory.
        count: the number of random bits.
        seed: the seed of the random bits.
        assert_equal: called with the tree of the damaged copy and the right one; raises
            AssertionError if they differ.
    """
    source = Path(parse_local_path(path, purpose="of a checkpoint"))
    want = load(source)
    if flips is None:
        flips = _flips_within(source, count, seed)
    results: dict[str, list[Flipped]] = {name: [] for name in FlipReport._fields}
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        copy = Path(folder) / source.name
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
        for flip in flips:
            with open(copy / flip.file if flip.file else copy, "r+b", buffering=0) as file:
                file.seek(flip.offset)
                (byte,) = file.read(1)
                _put(file, flip.offset, byte ^ 1 << flip.bit)
                _backdate(file)
                outcome, message = _outcome(copy, load, want, assert_equal)
                _put(file, flip.offset, byte)
            results[outcome].append(Flipped(flip, message))
    return FlipReport(**{name: tuple(flips) for name, flips in results.items()})


def _flips_within(source: Path, count: int, seed: int) -> list[BitFlip]:
    """Return random flips of a file, or of all files of a directory as if they were one."""
    if not source.is_dir():
        return random_flips(source.stat().st_size, count, seed=seed)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    ends = list(accumulate([path.stat().st_size for path in files]))
    flips = []
    for offset, bit, _ in random_flips(ends[-1], count, seed=seed):
        number = bisect_right(ends, offset)
        start = ends[number - 1] if number else 0
        flips.append(BitFlip(offset - start, bit, str(files[number].relative_to(source))))
    return flips


def _put(file: Any, offset: int, byte: int) -> None:
    file.seek(offset)
    file.write(bytes([byte]))


def _backdate(file: Any) -> None:
    """Say that a file was written a while ago: a load of a new one waits for the clock to tick."""
    past_ns = time.time_ns() - 2 * 10**9
    os.utime(file.fileno(), ns=(past_ns, past_ns))


def _outcome(
    path: Path, load: Callable[[Path], Any], want: Any, assert_equal: Callable[[Any, Any], None]
) -> tuple[str, str]:
    try:
        got = load(path)
    except CordwoodError as e:
        return "detected", str(e)
    except Exception as e:  # noqa: BLE001  (every error is reported)
        return "crashed", f"{type(e).__name__}: {e}"
    try:
        assert_equal(got, want)
    except AssertionError as e:
        return "silent", str(e)
    return "harmless", ""
