"""Copies by worker processes: workers and drivers are killed, and nothing is lost or repeated.

`make soak` kills 100 processes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cordwood
from tests.bulk.kills import WORKERS, kill_copies
from tests.soak.page import SOAK, as_table, write_section

KILLS = 100 if SOAK else 3
FILES = 40


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.suffix != ".lock"}


def test_copies_survive_kills_of_workers_and_drivers(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tree = {str(number): np.full(1 << 17, number) for number in range(FILES)}
    cordwood.save(source, tree, max_shard_bytes=1 << 20)
    expected = contents(source)

    def check(copy: Path) -> None:
        assert contents(copy) == expected

    kills = kill_copies(source, tmp_path, KILLS, seed=5, check=check)
    killed = kills.workers + kills.drivers
    assert killed == KILLS
    # A kill of one process loses what all workers run: a pool without a process ends the others.
    assert kills.runs - kills.tasks <= WORKERS * killed
    assert kills.repeated == 0
    head = ["killed workers", "killed drivers", "copies", "tasks", "runs of tasks"]
    head += ["again, though it had ended", "copies that differ"]
    write_section("Bulk work", as_table(head, [[*kills, 0]]))
