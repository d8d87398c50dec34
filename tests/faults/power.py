"""Power cuts: the contents of a disk at the moment when save returns.

The disk is an ext4 image on a loop device. Its backing file is copied; the copy lacks exactly the
data that the file system has not yet written to the disk, and that a power cut would lose.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from tests.faults.children import run_child, start_child
from tests.faults.disks import make_disk, mounted
from tests.faults.scenario import Outcome, Scenario, judge


class _Cut(NamedTuple):
    """A save on a disk of its own, and where the copies of the disk are, by their delays."""

    scenario: Scenario
    image: str
    copies: dict[float, str]
    returned_at: float


def cut_power(
    scenarios: Sequence[Scenario],
    folder: str,
    *,
    delays_seconds: Sequence[float] = (0.0, 8.0),
    disk_bytes: int = 64 << 20,
) -> list[Outcome]:
    """Save over the old tree, copy the disk after each delay, mount the copies and load.

    The delays count from the return of save; the first is short, and the scenarios, each with a
    disk of its own, wait for the others together. In each outcome `returned` is True: the new tree
    must load.
    """
    first, *later = delays_seconds
    cuts: list[_Cut] = []
    with ExitStack() as stack:
        paths: list[str] = []
        for number, scenario in enumerate(scenarios):
            image = os.path.join(folder, f"disk-{number}.img")
            make_disk(image, disk_bytes)
            disk = stack.enter_context(mounted(image, image.removesuffix(".img")))
            paths.append(os.path.join(disk, scenario.name))
            run_child("save", scenario, {"path": paths[-1], "which": "old"})
        os.sync()  # not later: it would write the new trees, too
        for number, (scenario, path) in enumerate(zip(scenarios, paths, strict=True)):
            image = os.path.join(folder, f"disk-{number}.img")
            child = start_child("save", scenario, {"path": path, "which": "new", "linger": True})
            assert child.stdout is not None
            answer = child.stdout.readline()
            cuts.append(_Cut(scenario, image, {}, time.monotonic()))
            _copy_after(cuts[-1], first)
            _, err = child.communicate()
            if not answer:
                raise RuntimeError(f"the save failed:\n{err}")
        for delay in later:
            for cut in cuts:
                _copy_after(cut, delay)
    outcomes: list[Outcome] = []
    for cut in cuts:
        for delay, copy in cut.copies.items():
            with mounted(copy, os.path.join(folder, "copy")) as disk:
                fault = f"power cut {delay:g} s after save returned"
                outcomes.append(judge(cut.scenario, disk, fault=fault, returned=True))
            os.unlink(copy)
        os.unlink(cut.image)
    return outcomes


def _copy_after(cut: _Cut, delay: float) -> None:
    """Copy the disk of a cut so many seconds after its save has returned."""
    time.sleep(max(0.0, cut.returned_at + delay - time.monotonic()))
    cut.copies[delay] = f"{cut.image}-{delay:g}s"
    shutil.copyfile(cut.image, cut.copies[delay])
