"""Cut the power: what a disk holds when save returns, as a machine would find it on waking.

The disk is an ext4 image, loop-mounted. What the file system has not written to it by the
moment its backing file is copied is what a power cut would lose.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cordwood.testing.faults.children import run_child, start_child
from cordwood.testing.faults.scenario import Outcome, Scenario, judge

__all__ = ["cut_power", "why_no_power_cuts"]

_TOOLS = ("mkfs.ext4", "mount", "umount")


def why_no_power_cuts(folder: str) -> str | None:
    """Why `cut_power` cannot run here, or None."""
    if os.geteuid() != 0:
        return "mounting a disk image takes root"
    missing = [tool for tool in _TOOLS if _tool(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    image = os.path.join(folder, "try.img")
    try:
        _make_disk(image, 8 << 20)
        with _mounted(image, os.path.join(folder, "try")):
            return None
    except subprocess.CalledProcessError as e:
        return f"{e.cmd[0]} failed: {e.stderr.decode().strip()}"
    finally:
        os.unlink(image)


def cut_power(
    scenario: Scenario,
    folder: str,
    *,
    delays_seconds: Sequence[float] = (0.0, 8.0),
    disk_bytes: int = 64 << 20,
) -> list[Outcome]:
    """Save over the old tree, copy the disk so long after save returned, mount the copies, load.

    Each outcome counts as returned: the new tree must be there.
    """
    image = os.path.join(folder, "disk.img")
    _make_disk(image, disk_bytes)
    copies = [os.path.join(folder, f"cut-{delay:g}s.img") for delay in delays_seconds]
    with _mounted(image, os.path.join(folder, "disk")) as disk:
        path = os.path.join(disk, scenario.name)
        run_child("save", scenario, {"path": path, "which": "old"})
        os.sync()
        child = start_child("save", scenario, {"path": path, "which": "new", "linger": True})
        assert child.stdout is not None
        answer = child.stdout.readline()
        returned_at = time.monotonic()
        for delay, copy in zip(delays_seconds, copies, strict=True):
            time.sleep(max(0.0, returned_at + delay - time.monotonic()))
            shutil.copyfile(image, copy)
        _, err = child.communicate()
        if not answer:
            raise RuntimeError(f"the save failed:\n{err}")
    outcomes: list[Outcome] = []
    for delay, copy in zip(delays_seconds, copies, strict=True):
        with _mounted(copy, os.path.join(folder, "copy")) as disk:
            fault = f"power cut {delay:g} s after save returned"
            outcomes.append(judge(scenario, disk, fault=fault, returned=True))
        os.unlink(copy)
    os.unlink(image)
    return outcomes


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(name: str, *args: str) -> None:
    subprocess.run([_tool(name) or name, *args], check=True, capture_output=True)


def _make_disk(image: str, size_bytes: int) -> None:
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", image)


@contextmanager
def _mounted(image: str, place: str) -> Iterator[str]:
    os.makedirs(place, exist_ok=True)
    _run("mount", "-o", "loop", image, place)
    try:
        yield place
    finally:
        _run("umount", place)
