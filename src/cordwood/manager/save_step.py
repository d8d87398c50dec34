"""The saving of a step by a manager, from the decision to the save that has begun."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsFloat

from cordwood.encoding.plain_json import as_json
from cordwood.errors import PendingSaveError, StepError
from cordwood.formats.step_record import Record
from cordwood.manager.items.items_to_save import collect_states, join_items, states_tree
from cordwood.manager.metrics_argument import as_metrics
from cordwood.manager.save_decider import SaveDecider
from cordwood.manager.save_queue import SaveQueue
from cordwood.manager.steps import Steps
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import Rendezvous
from cordwood.saving.background_saves import (
    SAVE_STARTED_ANYWAY,
    PendingSave,
    raise_unreported_failures,
)
from cordwood.threads.log import log

NOT_SAVED = "%s: step %d is not saved: the policy does not ask for it"


class StepToSave(NamedTuple):
    """The arguments of a call of `CheckpointManager.save`, and when it began."""

    number: int
    tree: Any
    metrics: Mapping[str, SupportsFloat] | None
    extras: Any
    items: Mapping[str, Any] | None
    prefix: str | None
    force: bool
    overwrite: bool
    called: float  # by the monotonic clock


class StepSaver:
    """Saves the steps of one manager.

    Args:
        steps: the steps of the root.
        group: the processes of the job.
        queue: the saves of the manager.
        decider: decides which steps are saved.
        background: False to wait for each save.

    Attributes:
        restored: the step that the manager has restored last, unless it has deleted it; or None.
        prefix: the prefix by which the tree of the run was restored; None: none.
    """

    def __init__(
        self,
        steps: Steps,
        group: ProcessGroup,
        queue: SaveQueue,
        decider: SaveDecider,
        *,
        background: bool,
    ) -> None:
        self.restored: int | None = None
        self.prefix: str | None = None
        self._steps = steps
        self._group = group
        self._queue = queue
        self._decider = decider
        self._background = background

    def save(self, step: StepToSave) -> PendingSave | None:
        """Save a step if the policy asks for it; as `CheckpointManager.save`."""
        queue, number = self._queue, step.number
        if self._group.count == 1 and not self._decider.notice.received_at and queue.failed:
            queue.finish(go_on=False)
        pending, failure = None, None
        with queue.attempt(number) as (rendezvous, for_items):
            preempted, why = self._decider.ask(number)
            why = "it was forced" if step.force else why
            if why is None:
                log.debug(NOT_SAVED, self._steps.root, number)
            else:
                failure = self._finish_before(step, preempted=preempted)
                beside = as_metrics(step.metrics), as_json(step.extras, "extras")
                record = Record(number, time.time(), *beside, {})
                pending = self._begin(
                    step, record, rendezvous, for_items, why=why, preempted=preempted
                )
        if preempted:
            self.finish_in_time()
        elif not self._background:
            queue.wait()
        if failure is not None:
            raise failure
        if self._group.count > 1 and pending is not None and not preempted:
            raise_unreported_failures(save_started=True)
        return pending

    def finish_in_time(self) -> None:
        """Wait for the running save, for as long as a preempted job may run."""
        self._decider.preempted = True
        last = self._queue.last
        try:
            self._queue.wait(self._decider.seconds_left())
        except TimeoutError as e:
            if last is None or last.pending.failed:  # the save itself failed with a TimeoutError
                raise
            log.warning("the job has been told to end, and %s", e)

    def _finish_before(self, step: StepToSave, *, preempted: bool) -> PendingSaveError | None:
        """Wait for the save before, and return its failure if the next one begins all the same."""
        several = self._group.count > 1
        try:
            if several or step.overwrite or self._queue.step != step.number:
                self._queue.finish(go_on=preempted or several)
        except PendingSaveError as e:
            if not preempted and not several:
                raise
            message = str(e).removesuffix(SAVE_STARTED_ANYWAY)
            reason = ": the job is to end" if preempted else ""
            log.error("%sstep %d is saved all the same%s", message, step.number, reason)
            return e
        return None

    def _begin(
        self,
        step: StepToSave,
        record: Record,
        rendezvous: Rendezvous,
        for_items: Rendezvous,
        *,
        why: str,
        preempted: bool,
    ) -> PendingSave | None:
        """Begin a save unless the step exists; return None if the manager has only restored it."""
        queue, number, root = self._queue, step.number, self._steps.root
        last = queue.last
        if not step.overwrite and last is not None and last.step == number and self._exists(number):
            assert last.record is not None
            _require_same(last.record, record, root=root)
            text = "%s: step %d was already passed to save; this call saves nothing"
            log.info(text, root, number)
            return last.pending
        is_restored = not step.overwrite and last is None and self.restored == number
        if is_restored and self._exists(number):
            log.info("%s: step %d was restored, and is not saved again", root, number)
            return None
        trees: Mapping[str, Any] = {}
        if step.items:
            with for_items:
                message, values = collect_states(step.items, process_count=for_items.count)
                answer = for_items.exchange(message, join_items)
            saved_items, trees = states_tree(answer, values)
            record = record._replace(items=saved_items)
        if not preempted:
            queue.post_commit.limit_backlog()
            if rendezvous.count == 1:
                raise_unreported_failures()
        return queue.begin(
            record,
            step.tree,
            trees,
            rendezvous,
            why=why,
            called=step.called,
            overwrite=step.overwrite,
            prefix=self.prefix if step.prefix is None else step.prefix,
        )

    def _exists(self, number: int) -> bool:
        """Return True unless the step that was saved last has been deleted."""

        def look() -> bool:
            if self._queue.saving or self._queue.failed:
                return True
            step = self._steps.at(number)
            return step is not None and step.whole

        return self._group.agree(f"look for step {number} of", look)


def _require_same(saved: Record, new: Record, *, root: str) -> None:
    """Raise StepError if a saved step is saved again with other metrics or extras.

    A second call without metrics or extras is not an error.
    """
    if new.metrics and str(new.metrics) != str(saved.metrics):  # where NaN is NaN
        what, before, after = "metrics", str(saved.metrics), str(new.metrics)
    elif new.extras is not None and new.extras != saved.extras:
        what, before, after = "extras", str(saved.extras), str(new.extras)
    else:
        return
    raise StepError(
        f"{root}: step {saved.step} has just been saved with the {what} {before:.200}, and cannot "
        f"be given {after:.200} now: give them to the first save of a step"
    )
