"""Four real processes with a root each: one is killed, and roots are lost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.processes.group import Group


def _newest(root: Path) -> int:
    steps = [int(path.parent.name) for path in root.glob("*/cordwood.json")]
    return max(steps, default=0)


def test_any_number_of_processes_goes_on_after_a_kill_and_lost_roots(tmp_path: Path) -> None:
    roots = [tmp_path / f"p{process}" for process in range(4)]
    mirror = tmp_path / "mirror"
    with Group(4) as group:
        group.run("managers.hasten", silence_seconds=5.0)
        group.start("unshared.train", roots=list(map(str, roots)), steps=10_000, mirror=str(mirror))
        begun = time.monotonic()
        while _newest(roots[3]) < 3 or not list(mirror.glob("*/cordwood.json")):
            assert time.monotonic() - begun < 200
            time.sleep(0.02)
        group.kill(3)
        group.results()
    for process in (1, 2, 3):  # replicas, as copied packs
        for pack in roots[process].glob("*/data-*"):
            folder = roots[0] / pack.parent.name
            if folder.is_dir():
                shutil.copy(pack, folder)
    shutil.rmtree(roots[3])
    restored = set()
    for count in (4, 3, 2):
        with Group(count) as group:
            restored |= set(group.run("unshared.restore", roots=list(map(str, roots))))
            if count == 2:  # all are lost
                for root in roots[:3]:
                    shutil.rmtree(root)
                paths = list(map(str, roots))
                mirrored = group.run("unshared.restore", roots=paths, mirror=str(mirror))
                assert len(set(mirrored)) == 1
                assert mirrored[0] >= 1
    (step,) = restored
    assert step >= 2
