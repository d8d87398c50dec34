"""CheckpointManager: the steps of a run, saved in the background, kept and deleted by policies."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, SupportsFloat, SupportsIndex

from cordwood.engine.meeting import TIMEOUT_SECONDS
from cordwood.engine.pending import PendingSave
from cordwood.engine.preemption import Notice
from cordwood.errors import PendingSaveError, StepError
from cordwood.manager.cleaning import plan_for
from cordwood.manager.keep_policies import KeepWhat, best_policy, keep_policy, with_value
from cordwood.manager.reader import Items, StepReader
from cordwood.manager.records import Record, as_json, as_metrics
from cordwood.manager.reports import SaveReport
from cordwood.manager.restoring import no_such_step
from cordwood.manager.retention import RetentionPlan
from cordwood.manager.save_policies import Moment, SaveWhen, asks_for_notice, save_policy
from cordwood.manager.saver import Saver
from cordwood.manager.stateful import join_states, states_of
from cordwood.manager.step_names import as_step

__all__ = ["CheckpointManager"]

_log = logging.getLogger("cordwood")


class Beside(NamedTuple):
    """What is saved with a tree."""

    metrics: dict[str, float]
    extras: Any
    items: Items


class CheckpointManager(StepReader):
    """The checkpoints of a run, a directory for each step: `root/<step>`.

    Use it in a `with` block, or call `close()` at the end. Each step is a checkpoint like any
    other, whole by itself: `cordwood.load(f"{root}/100")` reads it.

    A step counts once its save is committed. After each commit, and at no other time, steps that
    `keep` does not keep are deleted, in the background. The newest is always kept; so are steps
    that are damaged, or that no manager has saved.

    Several managers may work on one root. The processes of `jax.distributed` save together, as
    `cordwood.save` does: each calls `save`, `should_save` and `restore` for the same steps, in the
    same order. Process 0 decides what no step number decides, and deletes.

    Args:
        root: a directory, which is made by the first save, or a URL as `cordwood.save` takes.
        save: when `save` is to save: a number of steps, or policies joined by `|` and `&`, as
            `EverySteps(100) | EverySeconds(900)`. None: whenever it is called.
        keep: which steps to keep: a number of the newest, or policies joined by `|` and `&`, as
            `KeepLast(3) | KeepEvery(1000) | KeepBest(1, "loss")`. None: all.
        background: save as `save_async` does. False: `save` returns when all is done.
        on_save: called with a SaveReport after each commit, on each process, in the thread that
            saved.
        rewrite_every: arrays that have not changed, to the last bit, are not written again: a
            step's files are hard links to those of the step before, which are read and checked
            for that. Each step is whole by itself all the same. After so many steps everything
            is written anew, so that one place on the disk does not hold a part of all of them.
            1: always. Object stores, and file systems without hard links, have no links.
        preemption_seconds: take note of SIGTERM: the next `save` then saves whatever the policy
            says, so far as that can be done in so many seconds from the signal, waits for it, and
            `preempted` is true: end the loop. None: SIGTERM is left alone.
        timeout_seconds: how long to wait for other processes that are late, but alive.

    Raises UnsupportedFormatError: the root is a URL of no store that is known.

    >>> import numpy as np
    >>> state = {"w": np.zeros(3, np.float32)}
    >>> with CheckpointManager("/tmp/example-run", save=10, keep=2) as manager:
    ...     restored = manager.restore(like=state)
    ...     start = 0 if restored is None else restored.step + 1
    ...     for step in range(start, start + 40):
    ...         state["w"] += 1
    ...         _ = manager.save(step, state, metrics={"loss": 1 / (step + 1)})
    >>> len(manager.steps())
    2
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        save: SaveWhen = None,
        keep: KeepWhat = None,
        background: bool = True,
        on_save: Callable[[SaveReport], None] | None = None,
        rewrite_every: int = 32,
        preemption_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(root, timeout_seconds=timeout_seconds)
        self._save_policy = save_policy(save)
        self._keep_policy = keep_policy(keep)
        self._background = background
        self._saver = Saver(
            self._place,
            self._listing,
            self._company,
            self._keep_policy,
            on_save,
            rewrite_every=_count(rewrite_every),
            timeout_seconds=timeout_seconds,
        )
        self._newest: int | None = None  # of the steps that were there
        self._looked = False
        self._last_began = time.monotonic()
        if preemption_seconds is None and asks_for_notice(self._save_policy):
            raise ValueError(
                "save: OnPreemption() needs preemption_seconds=, how long the job has from SIGTERM"
            )
        if preemption_seconds is not None and not preemption_seconds > 0:
            raise ValueError(
                f"preemption_seconds: expected more than 0, found {preemption_seconds!r}"
            )
        self._preemption_seconds = preemption_seconds
        self._preempted = False
        self._notice = Notice()
        if preemption_seconds is not None:
            self._notice.listen()

    @property
    def preempted(self) -> bool:
        """Whether the job was told to end, and a `save` has done for that what can be done.

        It becomes true in the same call of `save` on every process; where no `save` has come
        since, once this manager is closed.
        """
        return self._preempted

    def save(
        self,
        step: SupportsIndex,
        tree: Any,
        *,
        metrics: Mapping[str, SupportsFloat] | None = None,
        extras: Any = None,
        items: Items = None,
        force: bool = False,
    ) -> PendingSave | None:
        """Save a step, if the policy says so, with the tree as it is now.

        One save goes on at a time: this waits for the one before.

        Args:
            step: its number, greater than that of any step that is there.
            tree: as `cordwood.save` takes it; it may be changed, donated or deleted afterwards.
            metrics: numbers by name, for `KeepBest` and `best`.
            extras: whatever JSON holds, to be given back by `restore`.
            items: what else has a state, by name: `get_state()` is called now, on every process.
            force: save whatever the policy says.

        Returns:
            None where the policy says no. Otherwise the save, which goes on in the background;
            where this manager has just saved that step, and it is there, that save. None, too,
            for the step that it has just restored: that is there.

        Raises:
            StepError: there is a step of that number, or a later one; or this manager has just
                saved that step with other metrics or extras.
            PendingSaveError: the save before failed in the background; this one has not begun.
            TypeError: metrics, extras or states are not what they must be.
            Others: as `cordwood.save_async` does.
        """
        called = time.monotonic()
        number = as_step(step)
        if self._company.count == 1 and self._notice.since is None and self._saver.failed:
            self._saver.finish()
        told, why = self._ask(number)
        why = "it was forced" if force else why
        failure = None
        if why is not None:
            try:
                self._finish_before(number)
            except PendingSaveError as e:
                if not told:
                    raise
                failure = e
                _log.error("%s; step %d is saved all the same: the job is to end", e, number)
            beside = Beside(as_metrics(metrics), as_json(extras, "extras"), items)
            if not self._save(number, tree, why, called, beside, told=told):
                why = None
        if told:
            self._finish_in_time()
            if failure is not None:
                raise failure
        elif not self._background:
            self.wait()
        return None if why is None else self._saver.pending

    def should_save(self, step: SupportsIndex) -> bool:
        """Whether the policy would save that step now."""
        return self._ask(as_step(step))[1] is not None

    def best(
        self, metric: str | None = None, *, mode: Literal["min", "max"] | None = None
    ) -> int | None:
        """The step where a metric is best; None where no step has it. Of equal ones the newer.

        Args:
            metric: its name. None: that of the `KeepBest` in `keep`.
            mode: "min" or "max"; None: that of the `KeepBest` of this metric, or "min".
        """
        policy = best_policy(self._keep_policy, metric)
        if metric is None and policy is None:
            raise ValueError("best: name a metric, or keep steps by one: keep=KeepBest(...)")
        if mode not in ("min", "max", None):
            raise ValueError(f"best: mode: expected 'min' or 'max', found {mode!r}")
        if policy is not None:
            metric, mode = policy.metric, mode or policy.mode
        assert metric is not None
        saved = [step.saved for step in self._listing.steps() if step.counts]
        found = with_value(saved, metric, mode or "min")
        return found[0].step if found else None

    def plan(self) -> RetentionPlan:
        """Which steps would be kept and deleted if a save ended now, and why; print it."""
        steps = self._listing.steps()
        return plan_for(self._place, steps, self._keep_policy, now=time.time())

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Return once what was begun is committed; on process 0, what is to go is deleted then.

        Raises:
            TimeoutError: it is still going on after that time, and goes on.
            Exception: whatever the save failed with; no step was deleted for it.
        """
        try:
            self._saver.wait(timeout_seconds)
        finally:
            self._looked = self._looked and self._saver.step is not None

    def delete(self, step: SupportsIndex) -> None:
        """Delete a step, whatever policy keeps it; of several processes every one calls this.

        All entries of that number go: `5` and `checkpoint_5` are both step 5.

        Raises:
            FileNotFoundError: there is no such step.
            StepError: somebody has pinned it, or saves it.
        """
        number = as_step(step)
        self._saver.settle()
        self._looked = False
        if self._restored == number:
            self._restored = None

        def remove(_: list[bytes]) -> bytes:
            found = self._listing.entries(start=number, stop=number + 1)
            entries = [each.entry for each in found]
            if not entries:
                raise no_such_step(number, self._listing.steps(), root=self.root)
            if self._place.remove(entries) != entries:
                raise StepError(f"{self.root}: step {number} is in use, and was not deleted")
            return b""

        self._company.agree(f"delete step {number} of", b"", remove)

    def _finish_before(self, number: int) -> None:
        """Wait for the save before, unless it is of that very step."""
        if self._saver.step == number:
            return
        try:
            self._saver.finish()
        except PendingSaveError:
            self._looked = False
            raise

    def _save(
        self,
        number: int,
        tree: Any,
        why: str,
        called: float,
        beside: Beside,
        *,
        told: bool,
    ) -> bool:
        """Begin a save, unless the step is there; False where this manager has only restored it."""
        if self._saver.step == number and self._is_there(number):
            self._require_same(beside)
            return True
        if self._saver.step is None and self._restored == number and self._is_there(number):
            _log.info("%s: step %d was restored, and is not saved again", self.root, number)
            return False
        metrics, extras, items = beside
        states: Mapping[str, Any] = {}
        if items:
            what = f"save the items of step {number} of"
            states = json.loads(self._company.agree(what, states_of(items), join_states))
        record = Record(number, time.time(), metrics, extras, states)
        self._saver.begin(record, tree, why=why, called=called, tell_failures=not told)
        self._last_began = time.monotonic()
        return True

    def _require_same(self, beside: Beside) -> None:
        """Raise StepError if a step that was saved is given other metrics or extras now."""
        saved = self._saver.record
        assert saved is not None
        if beside.metrics and str(beside.metrics) != str(dict(saved.metrics)):  # NaN is NaN
            what, new, old = "metrics", str(beside.metrics), str(dict(saved.metrics))
        elif beside.extras is not None and beside.extras != saved.extras:
            what, new, old = "extras", str(beside.extras), str(saved.extras)
        else:
            return
        raise StepError(
            f"{self.root}: step {saved.step} has just been saved with the {what} {old:.200}, and "
            f"cannot be given {new:.200} now: give them to the first save of a step"
        )

    def _is_there(self, number: int) -> bool:
        """Whether the save that was begun last is what it was: nobody has deleted the step."""

        def look(_: list[bytes]) -> bytes:
            known = self._saver.saving or self._saver.failed or self._is_whole(number)
            return b"there" if known else b""

        return bool(self._company.agree(f"look for step {number} of", b"", look))

    def _is_whole(self, number: int) -> bool:
        step = self._listing.at(number)
        return step is not None and step.whole

    def _before_restoring(self) -> None:
        self._saver.settle()
        self._looked = False  # steps may turn out to be damaged

    def _ask(self, number: int) -> tuple[bool, str | None]:
        """Whether the job has been told to end, and why to save; the same on all processes."""
        if not self._looked:
            found = self._company.agree("look for the steps of", b"", lambda _: self._latest())
            self._newest, self._looked = int(found) if found else None, True
        if self._save_policy.by_step and self._preemption_seconds is None:
            return False, self._save_policy.why(self._moment(number, told=False))

        def ask(told: bool) -> str | None:
            if told and self._preempted:
                return None
            why = self._save_policy.why(self._moment(number, told=told))
            if not told:
                return why
            if self._saver.saving and self._seconds_left() < 2 * self._saver.last_seconds:
                return None  # the one that goes on is all there is time for
            return why or "the job has been told to end"

        return self._company.decide(number, ask, told=self._notice.since is not None)

    def _latest(self) -> bytes:
        latest = self.latest()
        return b"" if latest is None else str(latest).encode()

    def _moment(self, number: int, *, told: bool) -> Moment:
        return Moment(
            number,
            self._newest if self._saver.step is None else self._saver.step,
            time.monotonic() - self._last_began,
            saving=self._saver.saving,
            preempted=told,
        )

    def _seconds_left(self) -> float:
        """Until the job ends, as far as this process knows."""
        assert self._preemption_seconds is not None
        since = self._notice.since
        gone = 0.0 if since is None else time.monotonic() - since
        return max(0.0, self._preemption_seconds - gone)

    def _finish_in_time(self) -> None:
        """Wait for what goes on, as long as a job may that has been told to end."""
        self._preempted = True
        going_on = self._saver.pending
        try:
            self.wait(self._seconds_left())
        except TimeoutError as e:
            if going_on is None or going_on.failed:  # with an error that is called so
                raise
            _log.warning("the job has been told to end, and %s", e)

    def close(self) -> None:
        """Wait as `wait` does, and leave SIGTERM to whoever had it before; a `with` block calls it.

        Where SIGTERM has come and no `save` has heeded it, the process ends by it now, as it
        would have without a manager.
        """
        try:
            self.wait()
        finally:
            self._notice.stop()
        if self._notice.since is not None and not self._preempted:
            self._preempted = True
            self._notice.pass_on()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.wait()
        except Exception as e:  # noqa: BLE001  (told by the error that leaves the block)
            error.add_note(f"and a save in the background failed: {type(e).__name__}: {e}")
        finally:
            self._notice.stop()

    def __repr__(self) -> str:
        return (
            f"CheckpointManager({self.root!r}, save={self._save_policy!r}, "
            f"keep={self._keep_policy!r})"
        )


def _count(steps: int) -> int:
    if type(steps) is not int or steps < 1:
        raise ValueError(f"rewrite_every: expected an int of at least 1, found {steps!r:.80}")
    return steps
