"""SIGKILL of one process at a random moment of a save: the checkpoint before it always loads.

`make soak` kills 50, and writes what became of them on its page.
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import NamedTuple

import cordwood
from tests.processes.group import Group, Result
from tests.soak.page import SOAK, as_table, write_section

KILLS = 50 if SOAK else 4
SILENCE_SECONDS = 5.0
TIMEOUT_SECONDS = 15.0
ROWS = 512  # 17 MB: a save takes about a fifth of a second


class Kill(NamedTuple):
    """One process killed, and what followed."""

    processes: int
    victim: int
    background: bool
    save_seconds: float  # of a save of that group that was left alone
    killed_after_seconds: float
    held: str  # the old checkpoint or the new
    message: str  # what the others say
    reported_after_seconds: float


def test_a_process_is_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    rng = random.Random(7)
    path = tmp_path / "x"
    held = 0  # the step that the checkpoint holds
    kills = []
    for number in range(KILLS):
        with Group(2 + 2 * (number % 2)) as group:
            if held:
                result = group.run("spread_trees.load", path=str(path), steps=[held], rows=ROWS)
                assert result == [held] * group.count
            kill = kill_one(group, path, held + 1, rng)
        assert cordwood.verify(path).unverified_bytes == 0
        current = cordwood.load(path, to="numpy")["local"]["step"]
        assert current == held + (2 if kill.held == "new" else 1)
        held = current
        kills.append(kill)
    assert not list(path.glob(".cordwood.json*")) or cordwood.gc(path)
    assert cordwood.load(path, to="numpy")["local"]["step"] == held
    write_section("Single saves", text_of(kills))


def kill_one(group: Group, path: Path, step: int, rng: random.Random) -> Kill:
    """Save a step, and kill a process in the middle of the next one."""
    group.run("directories.hasten", silence_seconds=SILENCE_SECONDS, probe_seconds=60.0)
    begun = time.monotonic()
    group.run("spread_trees.save", path=str(path), step=step, rows=ROWS)
    save_seconds = time.monotonic() - begun
    victim, background = rng.randrange(group.count), rng.random() < 0.5
    wait = rng.uniform(0, 1.1 * save_seconds)
    group.start(
        "spread_trees.save",
        path=str(path),
        step=step + 1,
        rows=ROWS,
        background=background,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    time.sleep(wait)
    group.kill(victim)
    begun = time.monotonic()
    results = group.results()
    took = time.monotonic() - begun
    held = cordwood.load(path, to="numpy")["local"]["step"]
    assert held in (step, step + 1)
    entries = {said(result) for index, result in enumerate(results) if index != victim}
    for text in entries:
        if text == "saved":
            assert held == step + 1
        elif victim:
            # A survivor whose patience ends later misses those that gave up before it, too.
            assert re.match(rf"ProcessError: process(es)? [\d, and]*\b{victim}\b", text), text
    assert took < 100  # the silence and the timeout, on a machine that does much else
    return Kill(
        group.count,
        victim,
        background,
        save_seconds,
        wait,
        "new" if held > step else "old",
        "; ".join(sorted(text[:50].removeprefix("ProcessError: ") for text in entries)),
        took,
    )


def said(result: Result) -> str:
    """Return the error of a survivor; where process 0 died, jax may have ended it."""
    return "ended by jax" if result.dead else result.error or "saved"


def text_of(kills: list[Kill]) -> str:
    rows = []
    for killed in ("process 0", "another"):
        for background in (False, True):
            some = [
                kill
                for kill in kills
                if (kill.victim == 0, kill.background) == (killed == "process 0", background)
            ]
            new = sum(kill.held == "new" for kill in some)
            longest = max((kill.reported_after_seconds for kill in some), default=0.0)
            rows.append(
                [
                    killed,
                    "yes" if background else "no",
                    len(some),
                    len(some) - new,
                    new,
                    0,
                    f"{longest:.1f} s",
                ]
            )
    head = ["killed", "in the background", "kills", "the old one", "the new one", "neither"]
    return (
        f"{len(kills)} jobs of 2 or 4 processes. Each job loads the checkpoint of the job before, "
        "saves 17 MB, and loses a process\nwhile it saves them again. The table shows which "
        "checkpoint was there afterwards, complete and verified, and when the\nother processes had "
        f"ended. Here a process counts as dead after {SILENCE_SECONDS:g} s of silence, and the "
        f"others wait for {TIMEOUT_SECONDS:g} s:\n\n"
        + as_table([*head, "the others end within"], rows)
    )
