"""cordwood and Orbax take turns on one run; both are killed again and again.

`make soak` does it for 100 steps. Each restores the newest step, whoever saved it, saves a few
more, and deletes old ones by its retention: all but the last KEEP steps and every PERIOD-th.
"""

from __future__ import annotations

import random
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cordwood import CheckpointManager, KeepEvery, KeepLast, load, verify
from cordwood.results import SaveReport
from cordwood.testing import assert_trees_equal
from tests.processes.group import forked
from tests.soak.journal import Line, read_journal, telling
from tests.soak.page import SOAK, as_table, write_section
from tests.soak.training import state_at
from tests.threads import until

STEPS = 100 if SOAK else 10
KEEP, PERIOD = 4, 10
MOST_STEPS = 4  # of one life


def live_by_cordwood(root: str, journal: str, steps: int) -> None:
    """Restore the newest step and save the next ones."""

    def committed(report: SaveReport) -> None:
        lines.write("committed", report.step)

    keep = KeepLast(KEEP) | KeepEvery(PERIOD)
    with (
        telling(journal) as lines,
        CheckpointManager(root, orbax=True, keep=keep, on_save=committed) as manager,
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a step that did not finish
            restored = manager.restore(like=state_at(0))
        newest = restored.step if restored else 0
        lines.write("restored", newest)
        if restored:
            assert_trees_equal(restored.tree, state_at(newest))
        for step in range(newest + 1, newest + 1 + steps):
            lines.write("begun", step)
            manager.save(step, state_at(step))


def live_by_orbax(root: str, journal: str, steps: int) -> None:
    """Do the same with Orbax's manager."""
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
        max_to_keep=KEEP, keep_period=PERIOD, cleanup_tmp_directories=True
    )
    with telling(journal) as lines, ocp.CheckpointManager(root, options=options) as manager:
        newest = manager.latest_step() or 0
        if newest:
            restore = ocp.args.StandardRestore(state_at(0))
            assert_trees_equal(manager.restore(newest, args=restore), state_at(newest))
        lines.write("restored", newest)
        for step in range(newest + 1, newest + 1 + steps):
            lines.write("begun", step)
            manager.save(step, args=ocp.args.StandardSave(state_at(step)))
            manager.wait_until_finished()
            lines.write("committed", step)


LIVES: dict[str, Callable[[str, str, int], None]] = {
    "cordwood": live_by_cordwood,
    "Orbax": live_by_orbax,
}


def test_neither_loses_a_step_that_the_other_counts(tmp_path: Path) -> None:
    rng = random.Random(5)
    root = tmp_path / "run"
    root.mkdir()
    events: Counter[str] = Counter()
    newest = 0
    while newest < STEPS:
        for tool in LIVES:
            orbax_steps = [each.name for each in root.iterdir() if is_of_orbax(each)]
            lines, killed = live(tmp_path, tool, rng)
            if tool == "cordwood":
                assert all((root / name).exists() for name in orbax_steps)
            events.update([f"{tool} {line.what}" for line in lines])
            events[f"{tool} killed"] += killed
            newest = check(root, lines, newest, tool)
    for tool in LIVES:  # nobody kills it, and Orbax removes all that is too old
        lines, _ = live(tmp_path, tool, rng, kill=False)
        newest = check(root, lines, newest, tool)
    assert whole_steps(root) == sorted(kept_of(newest))
    assert sorted(each.name for each in root.iterdir()) == sorted(map(str, kept_of(newest)))
    write_section(
        "Turns of cordwood and Orbax",
        f"One run of {newest} steps. cordwood with `orbax=True` and Orbax restore the newest step "
        f"in turns, save up to {MOST_STEPS} more,\nand delete all but the last {KEEP} and every "
        f"{PERIOD}th; both were killed at random moments.\n\n"
        + as_table(
            ["tool", "lives", "killed", "begun", "committed", "lost", "wrong"],
            [
                [tool]
                + [events[f"{tool} {what}"] for what in ("restored", "killed", "begun")]
                + [events[f"{tool} committed"], 0, 0]
                for tool in LIVES
            ],
        ),
    )


def live(
    folder: Path, tool: str, rng: random.Random, *, kill: bool | None = None
) -> tuple[list[Line], bool]:
    """Let a tool live, and perhaps kill it in one of its saves; return its journal."""
    journal = folder / "journal"
    journal.unlink(missing_ok=True)
    steps = rng.randint(1, MOST_STEPS)
    kill = rng.random() < 0.7 if kill is None else kill
    saves, delay = rng.randint(1, steps), rng.uniform(0, 0.15)
    process = forked(LIVES[tool], str(folder / "run"), str(journal), steps)

    def has_come_far() -> bool:
        begun = [line for line in read_journal(journal) if line.what == "begun"]
        return not process.is_alive() or (kill and len(begun) >= saves)

    try:
        until(has_come_far, seconds=300)
        if kill:
            time.sleep(delay)
            process.kill()
        process.join()
    finally:
        process.kill()
    lines = read_journal(journal)
    assert process.exitcode in (0, -signal.SIGKILL), (tool, lines)
    return lines, process.exitcode != 0


def check(root: Path, lines: list[Line], newest: int, tool: str) -> int:
    """Require what a life of a tool has to leave; return the newest step."""
    present = whole_steps(root)
    committed = [line.step for line in lines if line.what == "committed"]
    begun = [line.step for line in lines if line.what == "begun"]
    restored = [line.step for line in lines if line.what == "restored"]
    assert restored in ([], [newest]), f"{tool} restored {restored}, not {newest}"
    newest = max(present, default=0)
    assert max(committed, default=0) <= newest <= max(begun, default=newest), (tool, lines, present)
    lost = kept_of(newest) - set(present)
    assert not lost, f"lost in a life of {tool}: {lost}; {lines}"
    return newest


def whole_steps(root: Path) -> list[int]:
    """Return the steps of both tools that have the right values."""
    steps = []
    for path in root.iterdir():
        if path.name.isdigit() and ((path / "cordwood.json").exists() or is_of_orbax(path)):
            tree = load(path, to="numpy")
            assert_trees_equal(
                {name: np.asarray(tree[name]) for name in ("weights", "step")},
                {name: np.asarray(state_at(int(path.name))[name]) for name in ("weights", "step")},
            )
            steps.append(int(path.name))
            if not is_of_orbax(path):
                assert verify(path).unverified_bytes == 0
    return sorted(steps)


def is_of_orbax(path: Path) -> bool:
    return not (path / "cordwood.json").exists() and (path / "_CHECKPOINT_METADATA").exists()


def kept_of(newest: int) -> set[int]:
    """Return the steps that both keep of the steps 1 to `newest`."""
    last = range(max(1, newest - KEEP + 1), newest + 1)
    return {*last, *range(PERIOD, newest + 1, PERIOD)}
