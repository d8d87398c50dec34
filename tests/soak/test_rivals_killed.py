"""Two managers that save into one root and know nothing of each other, both killed again and again.

`make soak` does it 150 times. Who is overtaken is told so, and goes on with a later step.
"""

from __future__ import annotations

import faulthandler
import random
import time
import warnings
from pathlib import Path

from cordwood import CheckpointManager, KeepLast, SaveReport, load, verify
from cordwood.errors import CordwoodError, StepError
from cordwood.testing import assert_trees_equal
from tests.processes.group import forked
from tests.soak.journal import read_journal, writing
from tests.soak.page import SOAK, as_table, write_section
from tests.soak.roots import strangers, whole_steps
from tests.soak.training import state_at

LIVES = 150 if SOAK else 6
KEEP = KeepLast(4)
RIVALS = 2
SECONDS = 300.0  # no process takes longer to come to its first save, or to end


def compete(root: str, journal: str, parity: int) -> None:
    """Save the next even step, or odd one, after the newest that is there; without an end."""
    rng = random.Random(parity)

    def committed(report: SaveReport) -> None:
        lines.write("committed", report.step)

    with writing(journal) as lines, open(f"{journal}.stacks", "w") as stacks:
        faulthandler.dump_traceback_later(SECONDS, file=stacks)
        try:
            with CheckpointManager(root, keep=KEEP, rewrite_every=10, on_save=committed) as manager:
                while True:
                    after = max(manager.steps(), default=0) + 1
                    step = after + (after - parity) % 2
                    lines.write("begun", step)
                    try:
                        manager.save(step, state_at(step))
                        if rng.random() < 0.4:
                            manager.wait()
                    except CordwoodError as e:
                        if not isinstance(e, StepError) and not isinstance(e.__cause__, StepError):
                            raise
                        lines.write("overtaken", step)
        except BaseException as e:
            lines.write("error", 0, f"{type(e).__name__}: {e}")
            raise


def test_neither_harms_what_the_other_has_saved(tmp_path: Path) -> None:
    rng = random.Random(13)
    root = tmp_path / "run"
    told = overtaken = most_left = 0
    for _ in range(LIVES):
        live(tmp_path, rng)
        present = whole_steps(root)
        for rival in range(RIVALS):
            for what, step, detail in read_journal(tmp_path / f"journal-{rival}"):
                assert what != "error", detail
                assert what != "committed" or step <= present[-1], f"lost: {step}"
                told += what == "committed"
                overtaken += what == "overtaken"
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
    assert len(whole_steps(root)) == KEEP.count
    assert strangers(root) == []
    write_section(
        "Two managers of one root",
        f"{LIVES} times two processes, each with a manager of its own and `keep=KeepLast(4)`: one "
        "saves the even steps, one the odd\nones, each after the newest that is there. Both were "
        "killed at random moments. Who is overtaken is told so by an error:\n\n"
        + as_table(
            ["steps", "told", "overtaken", "lost", "wrong", "leftovers", "after the next save"],
            [[present[-1], told, overtaken, 0, 0, f"at most {most_left}", 0]],
        ),
    )


def live(folder: Path, rng: random.Random) -> None:
    """Start both anew, and kill one after the other once both have begun to save."""
    journals = [folder / f"journal-{rival}" for rival in range(RIVALS)]
    for journal in journals:
        journal.unlink(missing_ok=True)
    processes = [
        forked(compete, str(folder / "run"), str(journal), parity)
        for parity, journal in enumerate(journals)
    ]
    deadline = time.monotonic() + SECONDS
    while not all(any(line.what == "begun" for line in read_journal(each)) for each in journals):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rng.shuffle(processes)
    for process in processes:
        time.sleep(rng.uniform(0, 0.6))
        process.kill()
        process.join(SECONDS)
        assert process.exitcode is not None
