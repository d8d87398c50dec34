"""Real processes with a root each: one is killed, roots are lost, and other numbers go on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from tests.processes.group import Group
from tests.processes.unshared import Resumed

ENDLESS, MORE = 10_000, 2  # steps
SECONDS = 10.0  # after which a process that does not come is given up


def test_any_number_of_processes_goes_on_after_a_kill_and_lost_roots(tmp_path: Path) -> None:
    roots, mirror = [tmp_path / f"root-{process}" for process in range(4)], tmp_path / "mirror"
    with Group(4) as group:
        group.run("managers.hasten", silence_seconds=5.0)
        paths = list(map(str, roots))
        group.start(
            "unshared.train",
            roots=paths,
            mirror=str(mirror),
            steps=ENDLESS,
            timeout_seconds=SECONDS,
        )
        begun = time.monotonic()
        while _newest(roots[3]) < 3:
            assert time.monotonic() - begun < 200
            time.sleep(0.02)
        group.kill(3)
        errors = [str(result.error) for result in group.results()[:3]]
        assert all("ProcessError" in error for error in errors), errors
        for process in range(3):  # which jax would keep for a while
            group.kill(process)
    shutil.rmtree(roots[3])

    first = _go_on(roots, mirror)  # the packs of the lost root come from replicas
    assert first.restored >= 2  # step 3 may have no replicas yet
    assert first.problems == []
    second = _go_on(roots[:3], mirror)  # one root less, as if its host were gone
    assert second.restored == first.steps[-1]
    shutil.rmtree(roots[0])  # two at once: no place but the mirror has all files
    shutil.rmtree(roots[1])
    third = _go_on(roots[:3], mirror)
    assert third.restored == second.steps[-1]
    fourth = _go_on(roots[:2], mirror)
    assert fourth.restored == third.steps[-1]
    for root in roots[:3]:
        shutil.rmtree(root)
    last = _go_on(roots[:2], mirror)
    assert last.restored == fourth.steps[-1]


def _go_on(roots: Sequence[Path], mirror: Path) -> Resumed:
    """Start a job with a process for each root, which restores and saves more steps."""
    with Group(len(roots)) as group:
        paths = list(map(str, roots))
        first, *others = group.run("unshared.train", roots=paths, mirror=str(mirror), steps=MORE)
    for each in others:
        assert (each.restored, each.steps) == (first.restored, first.steps)
    assert first.steps[-1] == first.restored + MORE
    assert isinstance(first, Resumed)
    return first


def _newest(root: Path) -> int:
    """Return the newest step; a name with a dot is of a step that is written or removed."""
    steps = (path.parent.name for path in root.glob("*/cordwood.json"))
    return max((int(name) for name in steps if name.isdigit()), default=0)
