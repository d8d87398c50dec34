"""Power cuts at random moments inside saves, on ext4, xfs and btrfs.

A process saves step after step on a disk image. At a random moment the image is cloned: the clone
has what the file system has given to the disk until then, and nothing else, as after a power cut.
It is mounted, and must hold a whole step: at least the last one whose save had returned, at most
the one being saved. `make soak` cuts 60 times on each file system; this needs root and an xfs for
the images, because a clone of a file (a reflink) is a copy of one moment.
"""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from cordwood import StepReader, load, verify
from cordwood.testing import assert_trees_equal
from tests.children import SRC
from tests.faults import why_no_power_cuts
from tests.faults.disks import find_tool, mounted
from tests.soak.endless_saves import FILES, KEEP, Saver, state_of
from tests.soak.page import SOAK, as_table, write_section
from tests.soak.roots import inside, strangers, whole_steps

CUTS = 60 if SOAK else 1  # on each file system
KINDS = ("directory", "file", "run", "zarr", "msgpack")
DISK_BYTES = {"ext4": 128 << 20, "xfs": 320 << 20, "btrfs": 256 << 20}
MAKE = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q"), "btrfs": ("mkfs.btrfs", "-q")}
FIRST = 1  # the step on the disk before the process starts
FICLONE = 0x40049409  # of linux/fs.h: share the blocks of another file, at one moment
ROWS: list[list[object]] = []
SECONDS = 0.6  # a cut comes at most so long after the first save has begun


class Cut(NamedTuple):
    """The steps at the moment of a power cut."""

    saved: int  # the last step whose save had returned before
    begun: int  # the last step whose save had begun until after it


@pytest.mark.parametrize("system", sorted(MAKE))
def test_a_power_cut_costs_nothing_that_was_saved(system: str, tmp_path: Path) -> None:
    if why := why_no_clones(system, tmp_path):
        pytest.skip(why)
    rng = random.Random(16)
    outcomes: Counter[str] = Counter()
    with host_of_images(tmp_path) as host:
        bases = {kind: make_base(system, host, kind) for kind in KINDS[:CUTS]}
        for number in range(CUTS):
            kind = KINDS[number % len(KINDS)]
            clone = host / "cut.img"
            cut = cut_power_while_saving(system, bases[kind], clone, rng.uniform(0, SECONDS))
            with mounted_image(system, clone, host / "after") as disk:
                path = place_of(kind, disk)
                newest = require_whole(path, kind, cut)
                require_next_save(path, kind, cut.begun + 1)
            if cut.saved == cut.begun:
                outcomes["between"] += 1
            else:
                outcomes["old" if newest == cut.saved else "new"] += 1
    report(system, outcomes)


def place_of(kind: str, disk: Path) -> Path:
    """Return the path of the checkpoint or the run on a mounted disk."""
    return disk / "saves" / FILES.get(kind, "state")


def make_base(system: str, host: Path, kind: str) -> Path:
    """Return the image of a disk that has step FIRST."""
    image = host / f"{kind}.img"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES[system])
    _run(*MAKE[system], str(image))
    with mounted_image(system, image, host / "disk") as disk:
        path = place_of(kind, disk)
        path.parent.mkdir()
        Saver(kind).save(path, FIRST)
        os.sync()
    return image


def cut_power_while_saving(system: str, base: Path, clone: Path, delay_seconds: float) -> Cut:
    """Save on a copy of a disk and clone it `delay_seconds` after the first save has begun."""
    image = base.with_name("disk.img")
    clone_file(base, image)
    with mounted_image(system, image, base.with_name("disk")) as disk:
        path = place_of(base.stem, disk)
        process = start_saves(path, base.stem, FIRST + 1)
        lines: list[str] = []
        reader = Thread(target=_collect, args=(process, lines))
        reader.start()
        try:
            while not lines and process.poll() is None:
                time.sleep(0.001)
            time.sleep(delay_seconds)
            saved = _last(lines, "saved")
            clone_file(image, clone)
            time.sleep(0.05)  # a line that was printed before the clone arrives
            begun = _last(lines, "begun")
            assert process.poll() is None, "the process that saves has ended"
        finally:
            process.kill()
            process.wait()
            reader.join()
    return Cut(saved, begun)


def start_saves(path: Path, kind: str, first: int) -> subprocess.Popen[str]:
    """Start a process that saves one step after another."""
    command = [sys.executable, "-m", "tests.soak.endless_saves", str(path), kind, str(first)]
    paths = os.pathsep.join([str(SRC), *sys.path])
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )


def require_whole(path: Path, kind: str, cut: Cut) -> int:
    """Require a whole step that the cut allows, and return it; a run keeps steps before it."""
    if kind == "run":
        newest = StepReader(path).latest() or 0
        steps = [step for step in range(newest - KEEP + 1, newest + 1) if step >= FIRST]
        assert {*steps} <= {*whole_steps(path)}
        places = {step: path / str(step) for step in steps}
    else:
        newest = int(load(path, to="numpy")["step"])
        places = {newest: path}
    assert cut.saved <= newest <= cut.begun, f"step {newest} after {cut}"
    for step, place in places.items():
        assert kind == "msgpack" or verify(place).unverified_bytes == 0
        assert_trees_equal(load(place, to="numpy"), state_of(step))
    return newest


def require_next_save(path: Path, kind: str, step: int) -> None:
    """Require that a save succeeds, and that no files are left over after it."""
    Saver(kind).save(path, step)
    assert os.listdir(path.parent) == [path.name]
    place = path / str(step) if kind == "run" else path
    assert_trees_equal(load(place, to="numpy"), state_of(step))
    if kind == "run":
        assert strangers(path) == []
    if kind in ("run", "directory"):
        assert inside(place) == []


def report(system: str, outcomes: Counter[str]) -> None:
    """Write the row of a file system into the page."""
    ROWS.append([system, CUTS, *(outcomes[name] for name in ("between", "old", "new")), 0, 0, 0])
    write_section(
        "Power cuts",
        "A process saves one step after another on a disk image: a directory, a safetensors file,\n"
        "a run with `keep=KeepLast(3)`, a directory of zarr, and a msgpack file in turn. At a\n"
        "random moment the image is cloned; the clone has what the file system has given to the\n"
        "disk so far, as after a power cut. It is mounted, loaded and verified. Lost: a step\n"
        "whose save had returned. Wrong: damaged or mixed. Leftovers: after the next save.\n\n"
        + as_table(
            [
                "disk",
                "cuts",
                "between saves",
                "inside a save, the old one loads",
                "inside a save, the new one loads",
                "lost",
                "wrong",
                "leftovers",
            ],
            ROWS,
        ),
    )


def why_no_clones(system: str, folder: Path) -> str | None:
    """Return the reason why this machine cannot clone images of a file system, or None."""
    if why := why_no_power_cuts(str(folder)):
        return why
    missing = [tool for tool in {MAKE[system][0], "mkfs.xfs"} if find_tool(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextmanager
def host_of_images(folder: Path) -> Iterator[Path]:
    """Mount an xfs, on which files can be cloned."""
    image = folder / "host.img"
    with image.open("wb") as file:
        file.truncate(4 << 30)
    _run("mkfs.xfs", "-q", "-m", "reflink=1", str(image))
    with mounted(str(image), str(folder / "host")) as place:
        yield Path(place)
    image.unlink()


@contextmanager
def mounted_image(system: str, image: Path, place: Path) -> Iterator[Path]:
    """Mount an image that may be a clone of another: its file system has the same id."""
    if system == "btrfs":
        _run("btrfs", "device", "scan", "--forget")
    options = ["nouuid"] if system == "xfs" else []
    with mounted(str(image), str(place), options=options):
        yield place


def clone_file(source: Path, copy: Path) -> None:
    """Copy a file at one moment."""
    copy.unlink(missing_ok=True)
    with source.open("rb") as old, copy.open("wb") as new:
        fcntl.ioctl(new, FICLONE, old.fileno())


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.append(line)


def _last(lines: list[str], word: str) -> int:
    """Return the last step that the process has printed after a word."""
    steps = [int(line.split()[1]) for line in lines if line.startswith(word)]
    return max(steps, default=FIRST)


def _run(name: str, *arguments: str) -> None:
    subprocess.run([find_tool(name) or name, *arguments], check=True, capture_output=True)
