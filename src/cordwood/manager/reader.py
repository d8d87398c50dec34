"""What any job does with steps but saving them: lists, restores, waits for and pins them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

from cordwood.engine.meeting import TIMEOUT_SECONDS
from cordwood.engine.step_places import steps_at
from cordwood.formats.packs.rules import RULES
from cordwood.manager.company import Company
from cordwood.manager.listing import Listing, Step
from cordwood.manager.restoring import (
    Loaded,
    LoadOptions,
    Restored,
    Wish,
    no_such_step,
    restore_newest,
    restore_step,
)
from cordwood.manager.stateful import Stateful, set_states
from cordwood.manager.step_names import as_step
from cordwood.manager.watching import Watch

__all__ = ["Items", "StepReader"]

T = TypeVar("T")
Items: TypeAlias = Mapping[str, Stateful] | None
_NEWEST = object()
_LOAD_SECONDS = 6 * 3600  # that one process may load longer than another


class StepReader:
    """The steps below a root, for jobs that only read; `CheckpointManager` saves them too.

    Of several processes each lists the steps for itself (`steps`, `latest`, `metrics`); all call
    `restore`, `wait_for_new_step` and `new_steps` together, and get the same.

    Args:
        root: a directory or URL, which need not exist yet.
        timeout_seconds: how long to wait for other processes that are late, but alive.

    Raises UnsupportedFormatError: the root is a URL of no store that is known.

    >>> reader = StepReader("/tmp/example-steps")
    >>> for step in reader.new_steps(timeout_seconds=0):
    ...     with reader.pin(step):
    ...         loss = evaluate(reader.restore(step).tree)
    """

    def __init__(
        self, root: str | os.PathLike[str], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._place = steps_at(root, RULES.index_name)
        self._listing = Listing(self._place)
        self._company = Company(self._place.name, timeout_seconds)
        self._watch = Watch(self._listing, self._company)
        self._restored: int | None = None

    @property
    def root(self) -> str:
        """Where the steps lie."""
        return self._place.name

    def steps(self) -> list[int]:
        """The numbers of the steps that can be restored, increasing."""
        return [step.step for step in self._listing.steps() if step.whole]

    def latest(self) -> int | None:
        """The newest step; None where there is none."""
        return self._listing.latest()

    def metrics(self, step: SupportsIndex) -> dict[str, float]:
        """The metrics of a step, without its tree; {} where no manager has saved it.

        Raises FileNotFoundError.
        """
        number = as_step(step)
        found = self._finished(number)
        found.require_known()
        return {} if found.record is None else dict(found.record.metrics)

    @overload
    def restore(
        self, *, like: T, items: Items = None, **options: Unpack[LoadOptions]
    ) -> Restored[T] | None: ...

    @overload
    def restore(
        self, *, items: Items = None, **options: Unpack[LoadOptions]
    ) -> Restored[Any] | None: ...

    @overload
    def restore(
        self, step: SupportsIndex, *, like: T, items: Items = None, **options: Unpack[LoadOptions]
    ) -> Restored[T]: ...

    @overload
    def restore(
        self, step: SupportsIndex, *, items: Items = None, **options: Unpack[LoadOptions]
    ) -> Restored[Any]: ...

    def restore(
        self,
        step: Any = _NEWEST,
        *,
        like: Any = None,
        items: Items = None,
        **options: Unpack[LoadOptions],
    ) -> Restored[Any] | None:
        """Load a step; every byte that is read is checked.

        Without a number: the newest that is whole. Newer ones whose save did not finish, or that
        are damaged, are passed over with a RuntimeWarning that names them. One that does not fit
        `like` is not passed over.

        Args:
            step: which one, and no other; None is an error, as `best()` returns it.
            like: as in `cordwood.load`.
            items: what else has a state, by name: `set_state` is called with what each process
                had saved.
            options: mesh, rules, shardings, strict, cast, select, rename, missing, extra: as in
                `cordwood.load`.

        Returns:
            The step, its tree, metrics and extras; None where no save has finished yet.

        Raises:
            FileNotFoundError: there is no such step; names those that are there.
            IncompleteCheckpointError: its save did not finish.
            MismatchError: it does not fit `like`, or has no such items.
            CorruptionError: it is damaged; without a number: all are.
            ProcessError: processes ask for different steps.
            ValueError: there are no steps, and the root is a checkpoint itself.
            NotADirectoryError: the root is a file.
            Others: as `cordwood.load` does.
        """
        if step is None:
            raise TypeError(
                "step: expected an integer, found None: latest() and best() return it where there "
                "is no such step; leave it out to restore the newest"
            )
        number = None if step is _NEWEST else as_step(step)
        wish = Wish(like, tuple(items or ()), options)
        self._before_restoring()
        with self._company.meeting("restore a step of", timeout_seconds=_LOAD_SECONDS) as meeting:
            found: Loaded | None
            if number is not None:
                found = restore_step(self._listing, meeting, number, wish, root=self.root)
            else:
                found = restore_newest(self._listing, meeting, wish, root=self.root)
        if found is None:
            return None
        self._restored = found.step
        self._watch.restored(found.step)
        if items:
            set_states(
                items,
                found.record.items if found.record is not None else {},
                process=self._company.index,
                count=self._company.count,
                path=found.path,
            )
        if found.record is None:
            return Restored(found.step, found.tree, {}, None)
        return Restored(found.step, found.tree, dict(found.record.metrics), found.record.extras)

    @contextmanager
    def pin(self, step: SupportsIndex) -> Iterator[str]:
        """Have no manager delete a step in the block; its path.

        The pin ends with the process, however that ends.

        Raises:
            FileNotFoundError: there is no such step.
            PermissionError: a pin is a file in the step's directory, made under the root's lock:
                whoever pins must be allowed to write in both. A copy of a step needs no pin.
            UnsupportedFormatError: the root is in an object store, which has no locks.
        """
        found = self._finished(as_step(step))
        with ExitStack() as stack:
            try:
                if found.format is None:  # a file is another tool's: no manager deletes it
                    stack.enter_context(self._place.pin(found.entry))
                self._finished(found.step)
            except FileNotFoundError as e:  # it has just been deleted
                raise no_such_step(found.step, self._listing.steps(), root=self.root) from e
            except OSError as e:
                if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                raise PermissionError(
                    errno.EACCES,
                    f"step {found.step} cannot be pinned: a pin is a file in its directory, made "
                    "under a lock in the root, so it takes leave to write in both; or read a copy",
                    found.path,
                ) from e
            yield found.path

    def wait_for_new_step(
        self, timeout_seconds: float | None = None, *, poll_seconds: float = 1.0
    ) -> int | None:
        """The newest step, once there is one that this has not seen.

        Seen are the steps that were there when it returned one last, and those up to what
        `restore` has loaded. A step that is saved anew, after a run went back, is another one.

        Args:
            timeout_seconds: how long to wait; None: for ever.
            poll_seconds: how often to look.

        Returns its number; None where there was none in that time.
        """
        return self._watch.wait(
            newest=True, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds
        )

    def new_steps(
        self, timeout_seconds: float | None = None, *, poll_seconds: float = 1.0
    ) -> Iterator[int]:
        """Each new step that is still there, the oldest first, until none comes in that time.

        It begins with the newest, or with all after what `restore` has loaded.
        """
        while (
            found := self._watch.wait(
                newest=False, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds
            )
        ) is not None:
            yield found

    def _finished(self, number: int) -> Step:
        """A step; raises FileNotFoundError where there is none, or it did not finish."""
        step = self._listing.at(number)
        if step is not None and step.finished:
            return step
        raise no_such_step(number, self._listing.steps(), root=self.root)

    def _before_restoring(self) -> None:
        """For what must have ended by then."""
