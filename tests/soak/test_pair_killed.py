"""A training run of two processes of which one is killed, again and again.

`make soak` does it 30 times: either process, at a random moment or at a random system call.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.processes.group import Group, Result
from tests.soak.journal import read_journal
from tests.soak.ledger import Ledger
from tests.soak.loop import HOW
from tests.soak.page import SOAK, write_section
from tests.soak.reports import kills_table, totals_table
from tests.threads import until

LIVES = 30 if SOAK else 2
SILENCE_SECONDS, TIMEOUT_SECONDS = 5.0, 20.0
SECONDS = 300.0  # until the first save
CALLS = 200  # system calls of one process


def test_nothing_is_lost_wrong_or_left(tmp_path: Path) -> None:
    rng = random.Random(12)
    ledger = Ledger(tmp_path / "run")
    kills = []
    for _ in range(LIVES):
        victim, inside = rng.randrange(2), rng.random() < 0.5
        live(tmp_path, rng, victim, inside=inside)
        kind = str(victim), "a call" if inside else "a moment"
        journals = [read_journal(tmp_path / f"journal-{process}") for process in range(2)]
        kills.append((kind, ledger.check(journals)))
    assert ledger.newest > LIVES
    write_section(
        "A run of two processes",
        f"{LIVES} jobs of two processes of `jax.distributed`, one after another, which save as "
        "above. One process was killed.\nThe other one then ended with a `ProcessError`, or "
        "because process 0 had died:\n\n"
        + kills_table(["process", "at"], kills)
        + f"\n{totals_table(ledger)}",
    )


def live(folder: Path, rng: random.Random, victim: int, *, inside: bool) -> None:
    """Start a new job, which resumes, and kill one of its processes."""
    for process in range(2):
        (folder / f"journal-{process}").unlink(missing_ok=True)
    kill = (int(rng.uniform(1, CALLS)), rng.choice(HOW)) if inside else None
    with Group(2) as group:
        group.run("managers.hasten", silence_seconds=SILENCE_SECONDS)
        group.start(
            "managers.train_until_killed",
            path=str(folder / "run"),
            journal=str(folder / "journal"),
            victim=victim,
            kill=kill,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        if not inside:
            until(
                lambda: any(line.what == "begun" for line in read_journal(folder / "journal-0")),
                seconds=SECONDS,
            )
            time.sleep(rng.uniform(0, 0.7))
            group.kill(victim)
        results = group.results()
    assert results[victim].dead
    survivor = results[1 - victim]
    assert survivor.dead if victim == 0 and survivor.dead else names(victim, survivor), survivor


def names(victim: int, survivor: Result) -> bool:
    """Return True if the error of the survivor names the missing process."""
    return f"process {victim} " in (survivor.error or "")
