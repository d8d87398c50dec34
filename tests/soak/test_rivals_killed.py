"""Two independent managers that save into one root, both killed again and again.

`make soak` does it 150 times. A manager whose step is not newer than the other's gets an error, and
continues with a later step.
"""

from __future__ import annotations

import random
import signal
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cordwood import CheckpointManager, CordwoodError, KeepLast, load, verify
from cordwood.errors import PendingSaveError
from cordwood.results import SaveReport
from cordwood.testing import assert_trees_equal
from tests.processes.group import forked
from tests.soak.journal import Line, read_journal, telling
from tests.soak.page import SOAK, as_table, write_section
from tests.soak.roots import strangers, whole_steps
from tests.soak.training import state_at
from tests.threads import until

LIVES = 150 if SOAK else 6
KEEP = KeepLast(4)
RIVALS = 2
_OVERTAKEN = "is not newer than step"


def compete(root: str, journal: str, parity: int) -> None:
    """Save the next even or odd step after the newest existing one, without an end."""
    rng = random.Random(parity)

    def committed(report: SaveReport) -> None:
        lines.write("committed", report.step)

    with (
        telling(journal) as lines,
        CheckpointManager(root, keep=KEEP, rewrite_every=10, on_save=committed) as manager,
    ):
        under_way = 0  # the step that is saved in the background
        while True:
            after = max(under_way, *manager.steps(), 0) + 1
            step = after + (after - parity) % 2
            lines.write("begun", step)
            try:
                manager.save(step, state_at(step))
                under_way = step
                if rng.random() < 0.4:
                    manager.wait()
            except CordwoodError as e:  # a PendingSaveError quotes the error
                if _OVERTAKEN not in str(e):
                    raise
                overtaken = under_way if isinstance(e, PendingSaveError) else step
                lines.write("overtaken", overtaken)
                if overtaken != step:
                    lines.write("dropped", step)


def test_neither_harms_what_the_other_has_saved(tmp_path: Path) -> None:
    rng = random.Random(13)
    root = tmp_path / "run"
    events: Counter[str] = Counter()
    most_left = 0
    for number in range(LIVES):
        live(tmp_path, rng, awaited_event="committed" if number % 2 else "begun")
        present = whole_steps(root)
        for journal in journals(tmp_path):
            lines = read_journal(journal)
            events.update([line.what for line in lines])
            require_kept(lines, present)
        for step in present:
            assert verify(root / str(step)).unverified_bytes == 0
            assert_trees_equal(load(root / str(step), to="numpy"), state_at(step))
        most_left = max(most_left, len(strangers(root)))
    with CheckpointManager(root, keep=KEEP) as manager:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a step that did not finish
            resumed = manager.restore(like=state_at(0))
        assert resumed is not None
        assert resumed.step == present[-1]
        manager.save(resumed.step + 1, resumed.tree)
    assert len(whole_steps(root)) == min(KEEP.count, len(present) + 1)
    assert strangers(root) == []
    write_section(
        "Two managers of one root",
        f"{LIVES} times two processes, each with its own manager and `keep=KeepLast(4)`. One "
        "saves the even steps, the other the odd\nones, each after the newest existing step. Both "
        "were killed at random moments. A save that is overtaken raises an error:\n\n"
        + as_table(
            ["newest step", "begun", "committed", "overtaken", "lost", "wrong", "leftovers"],
            [
                [present[-1]]
                + [events[what] for what in ("begun", "committed", "overtaken")]
                + [0, 0, f"at most {most_left}, 0 after the next save"]
            ],
        ),
    )


def require_kept(lines: Sequence[Line], present: Sequence[int]) -> None:
    """Require each reported step, unless newer ones replaced it, and an end of every save."""
    ended = set()
    for what, step, detail in lines:
        assert what != "error", detail
        if what == "committed":
            newer = sum(each > step for each in present)
            assert step in present or newer >= KEEP.count, f"lost: {step}"
        if what != "begun":
            ended.add(step)
    begun = [line.step for line in lines if line.what == "begun"]
    assert set(begun[:-2]) <= ended, "a save ended without an entry in the journal"


def journals(folder: Path) -> list[Path]:
    return [folder / f"journal-{rival}" for rival in range(RIVALS)]


def live(folder: Path, rng: random.Random, *, awaited_event: str) -> None:
    """Start both managers, wait for an event in both journals, and kill one after the other."""
    for journal in journals(folder):
        journal.unlink(missing_ok=True)
    processes = [
        forked(compete, str(folder / "run"), str(journal), parity)
        for parity, journal in enumerate(journals(folder))
    ]

    def have_begun() -> bool:
        assert all(process.is_alive() for process in processes), journal_texts(folder)
        return all(
            any(line.what == awaited_event for line in read_journal(each))
            for each in journals(folder)
        )

    try:
        until(have_begun, seconds=300)
        rng.shuffle(processes)
        for process in processes:
            time.sleep(rng.uniform(0, 0.6))
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL, journal_texts(folder)
    finally:
        for process in processes:
            process.kill()


def journal_texts(folder: Path) -> str:
    """Return both journals, for an error message."""
    return "\n".join(journal.read_text() for journal in journals(folder) if journal.exists())
