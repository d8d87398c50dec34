"""Power cuts: the contents of a disk at the moment when save returns.

The disk is an ext4 image on a loop device. Its backing file is copied; the copy lacks exactly the
data that the file system has not yet written to the disk, and that a power cut would lose.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

from tests.faults.children import run_child, start_child
from tests.faults.disks import make_disk, mounted
from tests.faults.scenario import Outcome, Scenario, judge


def cut_power(
    scenario: Scenario,
    folder: str,
    *,
    delays_seconds: Sequence[float] = (0.0, 8.0),
    disk_bytes: int = 64 << 20,
) -> list[Outcome]:
    """Save over the old tree, copy the disk after each delay, mount the copies and load.

    The delays count from the return of save. In each outcome `returned` is True: the new tree must
    load.
    """
    image = os.path.join(folder, "disk.img")
    make_disk(image, disk_bytes)
    copies = [os.path.join(folder, f"cut-{delay:g}s.img") for delay in delays_seconds]
    with mounted(image, os.path.join(folder, "disk")) as disk:
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
        with mounted(copy, os.path.join(folder, "copy")) as disk:
            fault = f"power cut {delay:g} s after save returned"
            outcomes.append(judge(scenario, disk, fault=fault, returned=True))
        os.unlink(copy)
    os.unlink(image)
    return outcomes
