"""A training run that saves every step, killed again and again: nothing is lost, wrong or left.

`make soak` kills it 200 times: half at a random moment from outside, half at a random system call
from inside. A fifth of the runs keep their state in jax arrays.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from tests.processes.group import forked
from tests.soak.journal import read_journal
from tests.soak.ledger import Ledger
from tests.soak.loop import HOW, work
from tests.soak.page import SOAK, write_section
from tests.soak.reports import kills_table, totals_table

LIVES = 200 if SOAK else 12
JAX_EACH, JAX_FROM = (
    (50, 40) if SOAK else (12, 9)
)  # of JAX_EACH lives, those from number JAX_FROM use jax
SECONDS = 300.0  # no life takes longer
CALLS = 400  # system calls, about ten steps


def test_nothing_is_lost_wrong_or_left(tmp_path: Path) -> None:
    rng = random.Random(11)
    ledger = Ledger(tmp_path / "run")
    kills = []
    for number in range(LIVES):
        uses_jax, inside = number % JAX_EACH >= JAX_FROM, rng.random() < 0.5
        ledger.kinds += number > 0 and number % JAX_EACH in (0, JAX_FROM)
        live(tmp_path, rng, uses_jax=uses_jax, inside=inside)
        kind = "jax" if uses_jax else "numpy", "a call" if inside else "a moment"
        kills.append((kind, ledger.check([read_journal(tmp_path / "journal")])))
    assert ledger.newest > LIVES / 2
    write_section(
        "A training run",
        f"{LIVES} processes, one after another. Each resumed where the one before was killed, and "
        "saved every step in the\nbackground, with `keep=KeepLast(3) | KeepEvery(20), "
        "rewrite_every=100`. Three quarters of the state are frozen.\nThey were killed at a random "
        "moment from outside, or at a random system call from inside:\n\n"
        + kills_table(["state in", "at"], kills)
        + f"\n{totals_table(ledger)}",
    )


def live(folder: Path, rng: random.Random, *, uses_jax: bool, inside: bool) -> None:
    """Start a new process, which resumes, and kill it."""
    (folder / "journal").unlink(missing_ok=True)
    kill = (int(rng.uniform(1, CALLS)), rng.choice(HOW)) if inside else None
    process = forked(
        work, str(folder / "run"), str(folder / "journal"), use_jax=uses_jax, kill=kill
    )
    if not inside:
        time.sleep(rng.uniform(0, 1.5 if uses_jax else 0.7))
        process.kill()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"it hangs:\n{(folder / 'journal.stacks').read_text()}")
    assert process.exitcode == -signal.SIGKILL, process.exitcode
