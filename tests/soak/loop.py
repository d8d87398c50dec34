"""The worker: a training loop that saves every step in the background, until it is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

from cordwood import CheckpointManager, KeepEvery, KeepLast
from cordwood.results import SaveReport
from cordwood.storage import syscalls
from tests.faults.systems import CountingSystem
from tests.soak.journal import Journal, telling
from tests.soak.roots import strangers
from tests.soak.training import State, advance, loss_of, state_at

KEEP_LAST, KEEP_EVERY, REWRITE_EVERY = 3, 20, 100
HOW = ("before", "after", "torn")
WAITS_ONE_IN = 3  # steps: after one in three, the worker waits for the save


class KillingSystem(CountingSystem):
    """System calls that kill the process at number `at`: before, after or halfway, as in HOW."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self._at = at
        self._how = how

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if number != self._at:
            return call(*args)
        try:
            if self._how == "torn" and name == "pwrite":
                fd, data, offset = args
                half = len(data) // 2
                call(fd, data[: half - half % 4096 if half > 4096 else half], offset)
            elif self._how == "after":
                call(*args)
        finally:  # O_DIRECT may refuse half
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # for the signal, if it was delivered to another thread
        raise AssertionError


def work(root: str, journal: str, *, use_jax: bool, kill: tuple[int, str] | None) -> None:
    """Train without an end, as a process without others.

    Args:
        root: the directory of the steps.
        journal: the path of the journal.
        use_jax: keep the state in jax arrays.
        kill: the number of the system call to be killed at, and one of HOW; None: the process is
            killed from outside.
    """
    place: Callable[[State], State] = dict
    if use_jax:
        os.environ["JAX_PLATFORMS"] = "cpu"
        place = on_jax
    calls = syscalls.SystemCalls() if kill is None else KillingSystem(*kill)
    with telling(journal) as lines, syscalls.override(calls):
        train(root, lines, place=place, advance=advance)


def train(
    root: str,
    journal: Journal,
    *,
    place: Callable[[State], State],
    advance: Callable[[State], State],
    steps: int | None = None,
    **options: Any,
) -> int:
    """Resume, save every step, and return the last step after `steps` more; None: never end."""

    def committed(report: SaveReport) -> None:
        journal.write("committed", report.step)

    keep = KeepLast(KEEP_LAST) | KeepEvery(KEEP_EVERY)
    with CheckpointManager(
        root, keep=keep, rewrite_every=REWRITE_EVERY, on_save=committed, **options
    ) as manager:
        state = place(state_at(0))
        step = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about unfinished steps
            restored = manager.restore(like=state)
        if restored is not None:
            step, state = restored.step, restored.tree
        journal.write("restored", step)
        rng = random.Random(step)
        end = None if steps is None else step + steps
        while step != end:
            step, state = step + 1, advance(state)
            loss = loss_of(state["weights"])
            journal.write("loss", step, loss.hex())
            journal.write("begun", step)
            manager.save(step, state, metrics={"loss": loss}, extras={"step": step})
            if rng.random() < 1 / WAITS_ONE_IN:
                manager.wait()
                journal.write("settled", step, len(strangers(root)))
        manager.wait()
        journal.write("settled", step, len(strangers(root)))
    return step


def on_jax(state: State) -> State:
    """Put the arrays of a state on the first device of this process."""
    import jax

    return {**jax.tree.map(jax.numpy.array, state), "step": state["step"]}
