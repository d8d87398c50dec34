"""The copies of the steps of a manager to its mirror, made in the background one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from cordwood.copying.copy_step import Copier
from cordwood.errors import CordwoodError, StepError, UnsupportedFormatError
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.manager.add_metrics import add_metrics
from cordwood.manager.delete_steps import StepCleaner, delete_steps
from cordwood.manager.manager_problem import ManagerProblem
from cordwood.manager.mirror import Mirror
from cordwood.manager.pin_step import pinned
from cordwood.manager.problem_log import ProblemLog
from cordwood.manager.step import Step
from cordwood.manager.step_holder import StepHolder
from cordwood.manager.steps import Steps
from cordwood.message_text import size_text
from cordwood.policies.keep_policies import as_keep_policy
from cordwood.policies.mirror_plan import metrics_to_mirror, step_to_mirror
from cordwood.policies.save_policies import as_save_policy
from cordwood.storage.locations import Location, Url, parse_location
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.storage.paths import is_same_path, is_within
from cordwood.threads.background_task import BackgroundTask
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.stop_check import POLL_SECONDS, check_stop
from cordwood.threads.wait_logger import WaitLogger

_FAILURES = (OSError, CordwoodError)


class MirrorCopies:
    """The copies of one manager to its mirror.

    Only process 0 requests copies; the others read the mirror when a step is restored.

    Args:
        steps: the steps of the root.
        mirror: the mirror.
        problems: gets what fails.
        is_preempted: returns True once the job has received SIGTERM.
        timeout_seconds: the longest wait for the lock of the mirror.

    Attributes:
        holder: the mirror as a place to restore from.
        newest: the newest step that is known to be in the mirror, durably; None if none is.

    Raises ValueError if the mirror is within the root, or the other way round.
    """

    def __init__(
        self,
        steps: Steps,
        mirror: Mirror,
        problems: ProblemLog,
        *,
        is_preempted: Callable[[], bool],
        timeout_seconds: float,
    ) -> None:
        storage = open_step_storage(
            parse_location(mirror.root), storage_of(DEFAULT).RULES, timeout_seconds=timeout_seconds
        )
        _require_apart(steps.location, storage.location)
        self.newest: int | None = None
        self._is_durable = False  # True once this process has flushed or copied the newest step
        self._root = steps
        self._target = Steps(storage)
        self._every = as_save_policy(mirror.every, "every")
        self._cleaner = StepCleaner(self._target, as_keep_policy(mirror.keep))
        self._wait_seconds = mirror.wait_seconds
        self._timeout_seconds = timeout_seconds
        self._problems = problems
        self._is_preempted = is_preempted
        self._last_began = time.monotonic()
        self._copying: int | None = None  # the step whose copy began last
        self._committed: int | None = None  # the step of the last commit that requested a copy
        self._reported: int | None = None  # the step that `wait` has reported last
        self._left_out = ""  # what copies lack, as the log says it already
        self._task = BackgroundTask(self._copy_what_is_due)
        self.holder = StepHolder("the mirror", self._target, self._on_unreadable)
        if isinstance(storage.location, Url):
            from cordwood.storage.object_stores.request_loop import start_threads

            start_threads()  # now: a copy may begin while Python exits, when it starts no threads

    def request(self, committed: int | None = None) -> None:
        """Let the steps be copied that are due, in the background; never waits for a copy.

        Args:
            committed: the step that has just been committed; None: none.
        """
        if committed is not None:
            self._committed = committed
        try:
            run_in_worker(self._task.request)
        except (RuntimeError, MemoryError) as e:
            self._fail(committed, "no thread could be started to copy to it", e)

    def wait(self, seconds_left: Callable[[], float]) -> None:
        """Wait for running copies, and log what the mirror holds.

        Args:
            seconds_left: returns how long the caller may still wait; 0 or less to end the wait.
        """
        began = time.monotonic()

        def remaining_seconds() -> float:
            return min(seconds_left(), began + self._wait_seconds - time.monotonic())

        def copy_in_words() -> str:
            most = max(0.0, remaining_seconds())
            return f"the copy to the mirror {self._target.root}, for {most:.0f} s more at most"

        waiting = WaitLogger(copy_in_words)
        while not self._task.wait(max(0.0, min(POLL_SECONDS, remaining_seconds()))):
            check_stop()
            waiting.tick()
            if remaining_seconds() <= 0:
                waited = f"{time.monotonic() - began:.1f} s"
                error = TimeoutError(f"a copy is still running after a wait of {waited}")
                self._fail(self._copying, "it is not waited for any longer", error)
                return
        waiting.end()
        if self.newest != self._reported:
            self._reported = self.newest
            log.info(
                "%s: the newest step in the mirror %s is %s",
                self._root.root,
                self._target.root,
                self.newest,
            )

    def steps(self) -> set[int]:
        """Return the numbers of the whole steps in the mirror. Raises OSError, CordwoodError."""
        return {step.step for step in self._target.all() if step.whole}

    def stop(self) -> None:
        """Let a running copy end early; the next one of that step goes on from it."""
        run_in_worker(self._task.stop)

    def delete(self, start: int, stop: int | None) -> list[int]:
        """Delete steps of the mirror, as `delete_steps` does, once a running copy has ended."""
        self.stop()
        while not self._task.wait(POLL_SECONDS):
            check_stop()
        self.newest, self._is_durable, self._committed = None, False, None
        return delete_steps(self._target, start, stop)

    def _copy_what_is_due(self) -> None:
        """Copy the newest step that is due, and metrics of earlier ones, then delete old steps."""
        number: int | None = None
        what = "it cannot be read"
        try:
            newest = self._look()
            number = self._step_due(newest)
            if number is not None:
                what = f"step {number} could not be copied to it"
                self._cleaner.make_room(spared=number)
                self._last_began, self._copying = time.monotonic(), number
                if not self._copy(number):
                    return
                self.newest, self._is_durable = number, True
            what = "metrics could not be copied to it"
            has_new_metrics = self._copy_metrics()
            if number is not None or has_new_metrics:
                what = "old steps could not be deleted in it"
                self._cleaner.after_commit(time_now=time.time())
        except _FAILURES as e:
            self._fail(number, what, e)
        except Exception as e:  # noqa: BLE001  (of a policy; it is logged with its traceback)
            log.exception("%s: the mirror %s", self._root.root, self._target.root)
            self._fail(number, what, e)

    def _look(self) -> Step | None:
        """Return the newest step of the mirror, and make it durable: its copy may have been killed.

        Raises OSError, CordwoodError.
        """
        step = next(filter(_is_whole, self.holder.newest()), None)
        if step is None:
            self.newest, self._is_durable = None, False
            return None
        if step.step != self.newest or not self._is_durable:
            self._target.storage.flush(step.entry)
            self.newest, self._is_durable = step.step, True
        return step

    def _step_due(self, last: Step | None) -> int | None:
        """Return the number of the step to copy next; None if no step is due.

        Args:
            last: the newest step of the mirror.
        """
        committed, self._committed = self._committed, None
        newest = None if last is None else last.step
        if last is not None and committed == newest and self._is_of_another_save(last):
            return committed  # the copy is refused, which is a problem
        if committed is not None and newest is not None and committed < newest:
            raise StepError(
                f"its step {newest} is newer than step {committed}, which was saved now, so "
                f"nothing is copied, and restore() takes step {newest}: if the run went back, "
                f"manager.delete_after({committed}) deletes the later steps there too; if that is "
                "another run, pass another mirror"
            )
        steps = self._root.down_to(lambda each: newest is not None and each.step <= newest)
        return step_to_mirror(
            [each.step for each in steps if each.counts],
            self._every,
            last_step=newest,
            seconds_since_last=time.monotonic() - self._last_began,
            preempted=self._is_preempted(),
        )

    def _is_of_another_save(self, mirrored: Step) -> bool:
        """Return True if a step of the mirror and that of the root are of different saves."""
        step = self._root.at(mirrored.step)
        saved = None if step is None else step.saved
        return bool(saved and mirrored.saved and saved.time != mirrored.saved.time)

    def _copy(self, number: int) -> bool:
        """Copy a step; return False if it was deleted meanwhile. Raises OSError, CordwoodError."""
        step = self._root.at(number)
        if step is None or not step.counts:
            return False
        began = time.monotonic()
        try:
            with ExitStack() as stack:
                with suppress(UnsupportedFormatError):  # without locks a deletion ends the copy
                    stack.enter_context(pinned(self._root, number))
                copier = self._copy_files(step)
        except _FAILURES:
            if self._root.storage.stamp(step.entry) is not None:
                raise
            text = "%s: step %d was deleted while it was copied to the mirror %s"
            log.info(text, self._root.root, number, self._target.root)
            return False
        if copier.left_out != self._left_out:
            self._left_out = copier.left_out
            log.warning("%s: the mirror %s: %s", self._root.root, self._target.root, self._left_out)
        log.info(
            "copied step %d to the mirror: %s copied, %s were there, in %.3f s (%s)",
            number,
            size_text(copier.copied_bytes),
            size_text(copier.skipped_bytes),
            time.monotonic() - began,
            self._target.storage.location_of(step.entry),
        )
        return True

    def _copy_metrics(self) -> bool:
        """Copy metrics that changed after their steps were copied; return True if any did."""
        every = {step.step: step for step in self._root.all() if step.counts}
        mirrored = {
            step.step: step.saved
            for step in self._target.all()
            if step.counts and step.saved is not None
        }
        saved = [step.saved for step in every.values() if step.saved is not None]
        changes = metrics_to_mirror(saved, mirrored)
        for number, metrics in changes.items():
            add_metrics(
                self._target,
                number,
                metrics,
                overwrite=True,
                timeout_seconds=self._timeout_seconds,
            )
        return bool(changes)

    def _copy_files(self, step: Step) -> Copier:
        storage = self._target.storage
        destination = storage.location_of(step.entry)
        copier = Copier(verify=False, in_pool=isinstance(destination, Url))
        copier.examine(step.location, destination)
        copier.copy_step(step.entry, step.location, destination)
        return copier

    def _on_unreadable(self, error: Exception) -> None:
        self._fail(None, "it cannot be read, and is not restored from", error)

    def _fail(self, step: int | None, what: str, error: Exception) -> None:
        self._problems.add(ManagerProblem(step, f"the mirror {self._target.root}: {what}", error))


def _is_whole(step: Step) -> bool:
    return step.whole


def _require_apart(root: Location, mirror: Location) -> None:
    for outer, inner in ((str(root), str(mirror)), (str(mirror), str(root))):
        if is_same_path(outer, inner) or is_within(inner, outer):
            raise ValueError(
                f"mirror: {mirror} is not apart from the root {root}: expected two places, neither "
                "of them within the other"
            )
