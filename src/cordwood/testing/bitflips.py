"""Flip bits of a file or directory, one at a time, and see what a load makes of it.

    report = flip_bits("m.safetensors", cordwood.load, count=2000)
    assert report.all_caught, report

A flip is harmless where the load gives the same tree all the same, detected where it raises
an error of cordwood's, silent where it gives another tree, and a crash where it raises
anything else.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.errors import CordwoodError
from cordwood.testing.equality import assert_trees_equal


class BitFlip(NamedTuple):
    """Which bit."""

    offset: int  # in bytes, from the start of the file
    bit: int  # 0 (least significant) to 7
    file: str = ""  # of a directory: its path within


class Flipped(NamedTuple):
    """One flip and what came of it."""

    flip: BitFlip
    message: str  # of the error, or how the tree differs; "" if harmless


class FlipReport(NamedTuple):
    """All flips, by what came of them."""

    detected: tuple[Flipped, ...]
    harmless: tuple[Flipped, ...]
    silent: tuple[Flipped, ...]
    crashed: tuple[Flipped, ...]

    @property
    def all_caught(self) -> bool:
        """Whether every flip was detected or harmless."""
        return not self.silent and not self.crashed

    def __str__(self) -> str:
        lines = [", ".join(f"{len(flips)} {name}" for name, flips in self._asdict().items())]
        for name in ("silent", "crashed"):
            for (offset, bit, file), message in getattr(self, name)[:10]:
                where = f"{file}: byte {offset}" if file else f"byte {offset}"
                lines.append(f"  {name}: {where}, bit {bit}: {message:.300}")
        return "\n".join(lines)


def random_flips(size_bytes: int, count: int, *, seed: int = 0) -> list[BitFlip]:
    """`count` different bits of a file (all, in order, if it has no more).

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
    """Load a copy with each of some bits flipped; what lies at `path` is left alone.

    Args:
        path: a file or a directory, undamaged: what it loads is what every flip is measured by.
        load: called with a path of the same name; what it returns must not map files.
        flips: the bits; None: `count` random ones, chosen by `seed`, of all files of a directory.
        assert_equal: called with the tree of a damaged file and the right one; raises
            AssertionError where they differ.
    """
    source = Path(path)
    want = load(source)
    if flips is None:
        flips = _flips_within(source, count, seed)
    found: dict[str, list[Flipped]] = {name: [] for name in FlipReport._fields}
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
                outcome, message = _outcome(copy, load, want, assert_equal)
                _put(file, flip.offset, byte)
            found[outcome].append(Flipped(flip, message))
    return FlipReport(**{name: tuple(flips) for name, flips in found.items()})


def _flips_within(source: Path, count: int, seed: int) -> list[BitFlip]:
    """Random flips of a file, or of the files of a directory taken as one."""
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


def _outcome(
    path: Path, load: Callable[[Path], Any], want: Any, assert_equal: Callable[[Any, Any], None]
) -> tuple[str, str]:
    try:
        got = load(path)
    except CordwoodError as e:
        return "detected", str(e)
    except Exception as e:  # noqa: BLE001  (whatever it is, it is to be reported)
        return "crashed", f"{type(e).__name__}: {e}"
    try:
        assert_equal(got, want)
    except AssertionError as e:
        return "silent", str(e)
    return "harmless", ""
