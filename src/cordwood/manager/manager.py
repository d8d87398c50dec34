"""CheckpointManager: the steps of a run, saved in the background, kept and deleted by policies."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, Self, SupportsFloat, SupportsIndex, TypeVar

from cordwood.errors import ProcessError, StepError
from cordwood.formats.orbax_option import with_orbax
from cordwood.formats.step_names import step_number
from cordwood.formats.step_record import ORBAX_ITEM
from cordwood.formats.table import DEFAULT
from cordwood.io.memory.staging_memory import checked_options
from cordwood.io.page_cache import require_page_cache_option
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import require_progress_option
from cordwood.manager.add_metrics import add_metrics
from cordwood.manager.argument_hints import with_hints
from cordwood.manager.delete_steps import delete_steps, plan_deletions
from cordwood.manager.manager_problem import ManagerProblem
from cordwood.manager.metrics_argument import as_metrics
from cordwood.manager.mirror import Mirror
from cordwood.manager.mirror_copies import MirrorCopies
from cordwood.manager.missing_steps import missing_step_error
from cordwood.manager.problem_log import ProblemLog
from cordwood.manager.save_decider import SaveDecider
from cordwood.manager.save_queue import SaveQueue
from cordwood.manager.save_report import SaveReport
from cordwood.manager.save_step import NOT_SAVED, StepSaver, StepToSave
from cordwood.manager.step_reader import Items, StepReader
from cordwood.manager.steps import Steps
from cordwood.manager.unshared.own_root import require_own_root
from cordwood.manager.unshared.replica_copies import REPLICA_WAIT_SECONDS
from cordwood.manager.unshared.replica_options import checked_replicas
from cordwood.manager.unshared.unshared_run import UnsharedRun
from cordwood.plan.recovery.step_places import StepPlaces, place_without_files
from cordwood.policies.keep_policies import KeepWhat, as_keep_policy
from cordwood.policies.retention_plan import RetentionPlan
from cordwood.policies.save_policies import SaveWhen, as_save_policy
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.saving.background_saves import (
    PendingSave,
)
from cordwood.storage.locations import Url
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker

R = TypeVar("R")
ERROR_WAIT_SECONDS = 60.0  # after an error the end of a block waits no longer for copies


class CheckpointManager(StepReader):
    """The checkpoints of a run, one directory per step: `root/<step>`.

    Use it in a `with` block, or call `close()` at the end. Each step is a complete checkpoint like
    any other: `cordwood.load(f"{root}/100")` reads it.

    A step counts once its save is committed. After each commit, and at no other time, steps that
    `keep` does not keep are deleted, in the background. The newest step is always kept, and so are
    steps that are damaged, or that no manager has saved.

    Several managers may work on one root. The processes of `jax.distributed` save together, as
    `cordwood.save` does: each calls `save`, `should_save` and `restore` for the same steps, in the
    same order. Process 0 deletes, and makes the decisions that depend on more than step numbers.

    Args:
        root: a directory, which the first save creates, or a URL as `cordwood.save` takes.
        save: when `save` saves: a number of steps, or policies joined by `|` and `&`, such as
            `EverySteps(100) | EverySeconds(900)`. None: at every call.
        keep: which steps to keep: a number of the newest, or policies joined by `|` and `&`, such
            as `KeepLast(3) | KeepEvery(1000) | KeepBest(1, "loss")`. None: all.
        background: save as `save_async` does. False: `save` returns when everything is done.
        on_save: called with a SaveReport after each commit, on each process, in the thread that
            saved. It may use this manager, but no calls that several processes make together. The
            next save does not wait for it; the save after that does.
        rewrite_every: arrays that are unchanged, to the last bit, are not written again: the files
            of a step are hard links to those of the step before, which are read and checked first.
            Each step is complete by itself all the same. After this many steps everything is
            written again, so that a bad sector does not damage all steps. 1: write everything
            always. File systems without hard links have no links. In an object store the steps
            refer to the data objects of one pool, which are compared by their digests alone, and
            nothing is written again after any number of steps.
        preemption_seconds: how long the job may run after SIGTERM. The next `save` after the signal
            saves whatever the policy says, if there is time, and waits for the commit: end the loop
            then. `preempted` is true as soon as the signal has come. None: do not handle SIGTERM.
        page_cache: True if the files of steps may stay in the page cache of this host, as in
            `cordwood.save_async`: for an evaluation here that loads each step soon.
        orbax: True for steps that Orbax's `CheckpointManager` reads too, with metrics, extras and
            items: a small index in each step says where in cordwood's files the arrays are. The
            tree is the item `default`; a name gives it another one, such as "state" for Orbax's
            `v1.training.Checkpointer`. It is for runs on a disk. False: for cordwood alone.
        staging_bytes: the most host memory for copies of arrays on accelerators, as in
            `cordwood.save_async`.
        device_copies: True if the arrays may be copied on their devices where `staging_bytes` has
            no room for all of them, as in `cordwood.save_async`.
        shared: True if all processes see the same root. False if each has a root of its own, such
            as a disk of its machine, where it keeps what it writes and the index of the whole step.
            Such roots are directories. A step counts once every process has committed its part; it
            can be restored by any number of processes as long as every file of it is in some root
            that they pass, or in the mirror. The steps are known once `restore` or `save` was
            called; only one manager at a time uses such roots.
        replicas: with `shared=False`: how many other processes hold a copy of each file. After
            a commit each process fetches in the background what it is to hold; no save waits for
            that. `wait` and the end of the block do, for at most a minute.
        failure_domain: returns the failure domain of a process by its number, such as its rack;
            the copies of a file are in different ones. None: each host is one. It must return
            the same on all processes.
        replica_bytes: the most bytes of other processes' files in the root; None: no limit. What
            is over it is not replicated, which is a problem (see `problems`).
        mirror: a second place, to which process 0 copies committed steps in the background, and
            from which `restore` takes what the root lacks. Every process passes it. None: none.
        on_problem: called with a `cordwood.results.ManagerProblem` when something beside the saves
            fails, such as a copy to the mirror; mostly in the thread that copies. No save fails by
            it. It may neither wait for this manager nor delete steps by it.
        timeout_seconds: how long to wait for other processes that are late but alive, and for the
            lock of another save of a step.
        progress: True shows a bar in a terminal or a notebook while a step is saved, which may be
            in the background, and while `restore` reads one; or a function, as `cordwood.save`
            and `cordwood.load` take, which is called in the thread that saves. None: neither.

    Raises UnsupportedFormatError if the root is a URL of an unknown store, or of a web server.

    >>> import numpy as np
    >>> state = {"w": np.zeros(3, np.float32)}
    >>> with CheckpointManager("run", save=10, keep=2) as manager:
    ...     restored = manager.restore(like=state)
    ...     start = 0 if restored is None else restored.step + 1
    ...     for step in range(start, start + 40):
    ...         state["w"] += 1
    ...         _ = manager.save(step, state, metrics={"loss": 1 / (step + 1)})
    >>> len(manager.steps())
    2
    """

    @with_hints("CheckpointManager")
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
        page_cache: bool = False,
        orbax: bool | str = False,
        staging_bytes: int | None = None,
        device_copies: bool = False,
        shared: bool = True,
        replicas: int = 0,
        failure_domain: Callable[[int], Hashable] | None = None,
        replica_bytes: int | None = None,
        mirror: Mirror | None = None,
        on_problem: Callable[[ManagerProblem], None] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        progress: ProgressOption = None,
    ) -> None:
        require_progress_option(progress)
        require_page_cache_option(page_cache)
        staging = checked_options(staging_bytes, device_copies)
        super().__init__(root, timeout_seconds=timeout_seconds)
        self._problems = ProblemLog(self.root, on_problem)
        self._unshared: UnsharedRun | None = None
        options = checked_replicas(replicas, failure_domain, replica_bytes, shared=shared)
        if not shared:
            storage = require_own_root(self._steps.storage, orbax=orbax)
            self._unshared = UnsharedRun(storage, self._problems, options)
            self._read_from(self._unshared.storage, timeout_seconds)
            self._unshared.use_group(self._group)
        if isinstance(self._steps.location, Url):
            from cordwood.storage.object_stores.request_loop import start_threads

            start_threads()  # now: a save may come while Python exits, when it starts no threads
        with_orbax(None, orbax, DEFAULT, self._steps.location, item=ORBAX_ITEM)  # checks it
        self._progress = progress
        self._timeout_seconds = timeout_seconds
        self._keep_policy = as_keep_policy(keep)
        self._closed = False
        self._copies: MirrorCopies | None = None
        if mirror is not None:
            self._copies = MirrorCopies(
                self._steps,
                mirror,
                self._problems,
                is_preempted=lambda: self._decider.notice.received_at is not None,
                timeout_seconds=timeout_seconds,
            )
            self._holders = (self._copies.holder,)
            if self._unshared is not None:
                self._unshared.use_mirror(self._copies.holder)
        self._mirror_seconds = 0.0 if mirror is None else mirror.wait_seconds
        self._queue = SaveQueue(
            self._steps,
            self._group,
            self._keep_policy,
            on_save,
            self._copies,
            self._unshared,
            rewrite_every=rewrite_every,
            page_cache=page_cache,
            orbax=orbax,
            staging=staging,
            timeout_seconds=timeout_seconds,
            progress=progress,
        )
        self._decider = SaveDecider(
            as_save_policy(save), preemption_seconds, self._group, self._queue, self._steps
        )
        self._saver = StepSaver(
            self._steps, self._group, self._queue, self._decider, background=background
        )

    @property
    def preempted(self) -> bool:
        """True as soon as SIGTERM has come, also in the middle of an evaluation.

        The step that is at hand may not be saved yet: `save_if_preempted` saves it. With several
        processes it becomes true in the same call of `save` or `save_if_preempted` on every
        process. A program that has seen it ends by itself: `close` does not end it.
        """
        if self._group.count == 1 and self._decider.notice.received_at is not None:
            self._decider.seen = True
            return True
        return self._decider.preempted

    @property
    def mirrored(self) -> int | None:
        """The newest step that is complete in the mirror, as far as this process knows.

        None if there is none, without a mirror, and on other processes than process 0.
        """
        return None if self._copies is None else self._copies.newest

    @property
    def replicated(self) -> int | None:
        """The newest step of which this process holds all replicas that it is to hold.

        None if there is none that was saved since it began, and without `replicas=`.
        """
        replicas = None if self._unshared is None else self._unshared.replicas
        return None if replicas is None else replicas.newest

    def places(self) -> list[StepPlaces]:
        """Return where each step lies, by increasing number: in which roots, and in the mirror.

        It answers if the loss of a host would lose a step. With shared=False the processes look
        into all roots together, so every one calls this.

        >>> import numpy as np
        >>> from cordwood import Mirror
        >>> with CheckpointManager("near", mirror=Mirror("far", every=20)) as manager:
        ...     for step in (10, 20, 30):
        ...         _ = manager.save(step, {"w": np.zeros(3)})
        ...         manager.wait()
        ...     for each in manager.places():
        ...         print(each)
        step 10: in the root
        step 20: in the root; in the mirror
        step 30: in the root
        """
        unshared, is_open = self._unshared, not self._closed
        self._alone(self._queue.wait_quietly)
        if unshared is not None:
            self._alone(lambda: unshared.meet(is_open=is_open))
        mirrored = set[int]() if self._copies is None else self._copies.steps()
        places = {} if unshared is None else unshared.places()
        in_root = {*places} if unshared is not None else {*self.steps()}
        for number in in_root.union(mirrored).difference(places):
            is_here, is_mirrored = number in in_root, number in mirrored
            places[number] = place_without_files(number, in_root=is_here, mirrored=is_mirrored)
        return [places[number] for number in sorted(places)]

    @property
    def problems(self) -> list[ManagerProblem]:
        """The failures beside the saves, such as of copies to the mirror: the newest 100."""
        return self._problems.list()

    @with_hints("save")
    def save(
        self,
        step: SupportsIndex,
        tree: Any,
        *,
        metrics: Mapping[str, SupportsFloat] | None = None,
        extras: Any = None,
        items: Items = None,
        prefix: str | None = None,
        force: bool = False,
        overwrite: bool = False,
    ) -> PendingSave | None:
        """Save a step with the tree as it is now, if the policy asks for it.

        Only one save runs at a time: this call waits for the save before.

        Args:
            step: its number, greater than that of any existing step, or with `overwrite` equal.
            tree: as `cordwood.save` takes it; it may be changed, donated or deleted afterwards.
            metrics: numbers by name, for `KeepBest` and `best`.
            extras: any values that JSON holds, which `restore` returns.
            items: more to save with the step, by name: trees (an EMA, for example), which
                `cordwood.load(path, prefix=name)` reads alone; and objects with `get_state` and
                `set_state`, or `state_dict` and `load_state_dict` (a data iterator, for example):
                the state of each process is taken now. A state is bytes, values that JSON holds,
                or dicts, lists and tuples of these and of arrays.
            prefix: a name by which `restore(prefix=...)` finds the tree too, as that of a tree in
                a step of another tool; None: the one by which this manager has restored a step.
            force: save whatever the policy says.
            overwrite: save whatever the policy says, and replace the newest step if it has that
                number and was saved by cordwood. It is complete until the new one is.

        Returns:
            The save, which runs in the background. If this manager has just saved that step, and
            the step still exists, that save: then this call saves nothing, also with `force`, and
            the log says so (INFO); `overwrite` replaces the step. None if the policy does
            not ask for this step, or if this manager has just restored it and it still exists.

        Raises:
            StepError: there is a step of that number, or a later one; or this manager has just
                saved that step with other metrics or extras, or is closed.
            PendingSaveError: the save before failed in the background; this one has not begun.
                (With several processes it has begun: others may know of that failure already.)
            TypeError: metrics, extras or states have a wrong type.
            Others: as `cordwood.save_async` does.
        """
        called = time.monotonic()
        if self._closed:
            raise StepError(
                f"{self.root}: the manager is closed and saves no more: save inside its `with` "
                "block, or make another CheckpointManager"
            )
        number = step_number(step)
        if overwrite and self._unshared is not None:
            raise StepError(
                f"{self.root}: with shared=False no step is replaced, because its parts would not "
                f"change at one moment: call manager.delete({number}) first"
            )
        force = force or overwrite
        received_before = self._decider.notice.received_at is not None
        pending = None
        if not force and self._decider.skips(number):
            log.debug(NOT_SAVED, self.root, number)
        else:
            request = StepToSave(
                number, tree, metrics, extras, items, prefix, force, overwrite, called
            )
            pending = self._alone(lambda: self._met(lambda: self._saver.save(request)))
            if pending is not None:
                pending._let_begin()
        if self._group.count == 1 and not received_before and self._decider.notice.received_at:
            # It came meanwhile: `preempted` is true when this returns, and the caller may end.
            return self.save(
                step,
                tree,
                metrics=metrics,
                extras=extras,
                items=items,
                prefix=prefix,
                force=force,
            )
        return pending

    def save_if_preempted(
        self,
        step: SupportsIndex,
        tree: Any,
        *,
        metrics: Mapping[str, SupportsFloat] | None = None,
        extras: Any = None,
        items: Items = None,
    ) -> bool:
        """Save a step and wait for it, if SIGTERM has come; return True if the job is to end.

        For loops that may be long between two calls of `save`, such as an evaluation. It costs
        nothing while no signal has come. With several processes every one calls it for the same
        steps, as `save`, and it returns the same on all.

        Args:
            step: its number. If this manager has just saved that step, that save counts.
            tree: as `save` takes it.
            metrics: as `save` takes them.
            extras: as `save` takes them.
            items: as `save` takes them.

        Returns:
            True if SIGTERM has come. Then the step is saved; or, where `preemption_seconds` leaves
            no time for another save, the save that was running has ended. A save that was made
            before, because of the signal, counts.

        Raises:
            ValueError: this manager has no `preemption_seconds`, so it cannot know.
            Others: as `save`.

        >>> import numpy as np
        >>> with CheckpointManager("evaluated", save=100, preemption_seconds=30) as manager:
        ...     for batch in range(3):  # an evaluation
        ...         if manager.save_if_preempted(7, {"w": np.zeros(3)}):
        ...             break
        >>> manager.preempted
        False
        """
        number = step_number(step)
        if not self._met(lambda: self._decider.hears_of_preemption(number)):
            return False
        self.save(step, tree, metrics=metrics, extras=extras, items=items)
        return True

    def _alone(self, call: Callable[[], R]) -> R:
        """Call a function in a worker, while no other call changes this manager.

        A signal handler may call the manager in the middle of another call of it: it waits for that
        call, which goes on in a thread.
        """
        return run_in_worker(lambda: self._queue.alone(call))

    def _met(self, call: Callable[[], R]) -> R:
        """Call a function once the processes have met, where each has a root of its own."""
        unshared, is_open = self._unshared, not self._closed
        if unshared is not None and unshared.meets_first(is_open=is_open):
            run_in_worker(lambda: unshared.meet(is_open=is_open))
        return call()

    def should_save(self, step: SupportsIndex) -> bool:
        """Return True if the policy would save that step now."""
        number = step_number(step)
        return self._met(lambda: self._decider.ask(number))[1] is not None

    def best(
        self, metric: str | None = None, *, mode: Literal["min", "max"] | None = None
    ) -> int | None:
        """Return the step where a metric is best, of equal ones the newer; None if none has it.

        Args:
            metric: its name; the log warns if the steps have other metrics only. If there are no
                steps, it says what the root holds (INFO). None: the metric of the `KeepBest` in
                `keep`.
            mode: "min" or "max"; None: the mode of the `KeepBest` of this metric, or "min".
        """
        return self._best(self._keep_policy, metric, mode)

    def plan(self) -> RetentionPlan:
        """Return a plan of the steps that a commit now would keep and delete; print it."""
        steps = self._steps.all()
        return plan_deletions(self._steps.storage, steps, self._keep_policy, time_now=time.time())

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until the last save is committed and, on process 0, old steps are deleted.

        With a mirror, process 0 then waits for the running copy, for no longer than the
        `wait_seconds` of the mirror, and logs what the mirror holds. A copy that fails or is late
        raises nothing: see `problems`.

        Raises:
            TimeoutError: the save is still running after that time, and continues.
            Exception: the exception of the save, if it failed; then no step was deleted.
        """
        end = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._queue.wait(timeout_seconds)
        self._wait_for_copies(end)

    def _wait_for_copies(self, end: float = math.inf) -> None:
        """Wait for the copy to the mirror until a monotonic time, and no longer than allowed."""
        if self._queue.post_commit.is_in_this_thread:
            return
        if self._unshared is not None and self._unshared.replicas is not None:
            self._unshared.replicas.wait(lambda: self._seconds_left(end))
        if self._copies is not None:
            self._copies.wait(lambda: self._seconds_left(end))

    def _seconds_left(self, end: float) -> float:
        """Return how long a copy to the mirror may still be waited for."""
        seconds = end - time.monotonic()
        if self._decider.notice.received_at is not None:
            seconds = min(seconds, self._decider.seconds_left())
        return seconds

    def delete(self, step: SupportsIndex) -> None:
        """Delete a step, whatever policy keeps it; with several processes every one calls this.

        Only what cordwood wrote is deleted: a step of another tool stays, and so does a directory
        with files that cordwood did not write, also if its name is that number. `cordwood rm`
        removes a step of any tool. With a mirror the step is deleted there, too, and there first:
        else `restore` would take it from the mirror.

        Raises:
            FileNotFoundError: there is no such step.
            StepError: another process has pinned it, or saves it; or something of that number was
                not written by cordwood. The message names it.
        """
        number = step_number(step)
        if not self._delete(number, number + 1, f"delete step {number} of"):
            raise missing_step_error(self._steps, number)

    def add_metrics(
        self,
        step: SupportsIndex,
        metrics: Mapping[str, SupportsFloat],
        *,
        overwrite: bool = False,
    ) -> None:
        """Add metrics to a step that is committed, as an evaluation does that ends later.

        They count as those given to `save`: for `KeepBest` at the next commit, for `best`, and in
        `cordwood steps`. When this returns they are durable; at no moment is the step incomplete,
        and no data is written again. Several processes and jobs may add metrics to one step. With
        several processes in this job every one calls this, with the same metrics.

        Args:
            step: its number.
            metrics: numbers by name; metrics of other names stay.
            overwrite: True to replace other values of these names.

        Raises:
            FileNotFoundError: there is no such step.
            StepError: no manager saved it, or it has another value of that name.

        >>> import numpy as np
        >>> from cordwood import KeepBest
        >>> with CheckpointManager("evaluated", keep=KeepBest(1, "accuracy")) as manager:
        ...     _ = manager.save(10, {"w": np.zeros(3)})
        ...     manager.wait()
        ...     manager.add_metrics(10, {"accuracy": 0.9})
        ...     manager.best("accuracy")
        10
        """
        number, numbers = step_number(step), as_metrics(metrics)

        def add(steps: Steps) -> None:
            add_metrics(
                steps,
                number,
                numbers,
                overwrite=overwrite,
                timeout_seconds=self._timeout_seconds,
            )
            if self._copies is not None and self._group.index == 0:
                self._copies.request()

        def add_together() -> None:
            self._queue.post_commit.wait(None)
            what = f"add metrics to step {number} of"
            if self._unshared is None:
                self._group.agree(what, lambda: add(self._steps))
                return
            with self._group.rendezvous(what) as rendezvous:
                self._unshared.storage.require(number)
                part = self._unshared.storage.part_of(number)
                if part is not None:
                    add(part)
                size = self._unshared.storage.index_size(number)
                sizes = rendezvous.exchange(size, list)
                self._unshared.storage.change_index(number, sizes)
                rendezvous.exchange(None, lambda _: None)  # all have read it, from those that serve

        self._alone(lambda: self._met(add_together))

    def delete_after(self, step: SupportsIndex) -> list[int]:
        """Delete all steps after one, to go back to it, and return their numbers.

        With several processes every one calls this. Policies do not matter here. On a disk the
        newest step is deleted first, so a power cut leaves all steps up to some step. With a mirror
        they are deleted there, too, and there first.

        Raises StepError if another process has pinned one of them, or saves it, or if something
        there that has a later number was not written by cordwood, such as the root of another run.
        The message names what stays; all others are deleted.

        >>> import numpy as np
        >>> with CheckpointManager("rewind") as manager:
        ...     for step in (10, 20, 30):
        ...         _ = manager.save(step, {"w": np.zeros(3)})
        ...     manager.delete_after(10)
        [20, 30]
        """
        number = step_number(step)
        return self._delete(number + 1, None, f"delete the steps after {number} of")

    def _delete(self, start: int, stop: int | None, what: str) -> list[int]:
        def delete() -> list[int]:
            self._queue.wait_quietly()
            self._queue.post_commit.wait(None)  # it lets steps be copied, and pins them so
            if self._saver.restored is not None and self._saver.restored >= start:
                self._saver.restored = None
            try:
                numbers = self._group.agree(what, lambda: self._delete_in_all_places(start, stop))
                if self._unshared is not None and self._group.index > 0:
                    delete_steps(self._steps, start, stop)
                return numbers
            finally:
                self._decider.invalidate()  # an error may come after some were deleted

        return self._alone(lambda: self._met(delete))

    def _delete_in_all_places(self, start: int, stop: int | None) -> list[int]:
        """Delete steps, on process 0, in the mirror first: no step of it may outlive the root's."""
        if self._copies is None:
            return delete_steps(self._steps, start, stop)
        try:
            mirrored = self._copies.delete(start, stop)
            return sorted({*mirrored, *delete_steps(self._steps, start, stop)})
        finally:
            if not self._closed:  # the deletion ended a copy, perhaps of a later step
                self._copies.request()

    def _before_restoring(self) -> None:
        if not self._queue.calls.is_forked:  # the saves of another process are not waited for
            self._alone(self._queue.wait_quietly)
            unshared, is_open = self._unshared, not self._closed
            if unshared is not None:
                self._alone(lambda: unshared.meet(is_open=is_open))
        if self._group.count == 1:
            self._decider.invalidate()

    def _after_restoring(self, number: int | None, prefix: str | None) -> None:
        """Make the step durable: its save may have been killed just before it returned.

        A loop that goes on from a step does not save it again.
        """
        self._decider.invalidate()  # steps may turn out to be damaged
        if prefix is not None:
            self._saver.prefix = prefix
        if number is None:
            return
        self._saver.restored = number
        step = self._steps.at(number)
        flushes = self._group.index == 0 or self._unshared is not None
        if flushes and step is not None and step.record is not None:
            try:
                self._steps.storage.flush(step.entry)
            except OSError as e:
                log.warning("%s: the restored step could not be flushed: %s", step.path, e)
        if self._copies is not None and self._group.index == 0 and not self._closed:
            self._copies.request()

    def close(self) -> None:
        """Wait as `wait` does, and restore the earlier handler of SIGTERM.

        A `with` block calls this at its end; after an error in the block it waits for at most a
        minute for copies to the mirror and to other processes. After that `save` is an error, until
        a `with` block opens the manager again; steps can still be listed and deleted, and restored,
        but not by several processes with shared=False. If SIGTERM came and no `save` has acted on
        it, the process ends by it now, as it would without a manager.
        """
        if self._queue.calls.is_forked:  # what runs belongs to the process that made it
            self._closed = True
            return
        try:
            try:
                self._queue.wait()  # a signal handler may save meanwhile
            finally:
                self._closed = True
            self._queue.wait()
        except Exception:
            self._wait_for_copies()
            raise
        else:
            self._wait_for_copies()
        finally:
            self._stop_copies()
            self._stop_serving()
            self._decider.notice.stop()
        if self._decider.notice.received_at is None or self._decider.preempted:
            return
        self._decider.preempted = True
        if self._decider.seen:
            text = "%s: SIGTERM came, and no save has acted on it: the newest step is %s"
            log.warning(text, self.root, self._steps.latest())
        else:
            self._decider.notice.resend()

    def __enter__(self) -> Self:
        if self._closed:
            self._closed = False
            self._decider.listen()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or self._queue.calls.is_forked:
            self.close()
            return
        self._closed = True
        last = self._queue.last
        if last is not None and not last.pending.done:
            log.warning(
                "%s: %s ends the block; waiting for the save of step %d, which is still running",
                self.root,
                type(error).__name__,
                last.step,
            )
        try:
            self._queue.wait()
        except Exception as e:  # noqa: BLE001  (added to the error that leaves the block)
            error.add_note(f"and a save in the background failed: {type(e).__name__}: {e}")
        finally:
            end = time.monotonic() + ERROR_WAIT_SECONDS
            if isinstance(error, Exception):
                self._wait_for_copies(end)
            self._stop_copies()
            self._stop_serving(error, end)
            self._decider.notice.stop()

    def _stop_serving(self, error: BaseException | None = None, end: float = math.inf) -> None:
        """Stop the server of the root, once others have copied from it what they are to hold.

        After an error, which the others may not have met, replicas are not waited for, and after
        that of another process nothing is.

        Args:
            error: the error that ends the block.
            end: a monotonic time, after which nothing is waited for.
        """
        unshared = self._unshared
        if unshared is None:
            return
        seconds = self._mirror_seconds
        if unshared.replicas is not None:
            unshared.replicas.stop()
            seconds = seconds if error is not None else max(seconds, REPLICA_WAIT_SECONDS)
        if error is not None and isinstance(error.__cause__ or error, ProcessError):
            seconds = 0.0
        last = min(end, time.monotonic() + seconds)
        run_in_worker(lambda: unshared.part(lambda: self._seconds_left(last)))
        run_in_worker(unshared.close)

    def _stop_copies(self) -> None:
        """Let a copy end that nobody waits for any longer; the next run goes on from it."""
        if self._copies is not None:
            self._copies.stop()

    def __repr__(self) -> str:
        return (
            f"CheckpointManager({self.root!r}, save={self._decider.policy!r}, "
            f"keep={self._keep_policy!r})"
        )
