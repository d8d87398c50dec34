"""What any job does with steps but saving them: lists, restores, waits for and pins them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

from cordwood.errors import MismatchError
from cordwood.formats.packs.file_names import RULES
from cordwood.manager.argument_hints import no_attribute, refuse_arguments
from cordwood.manager.load_step import LoadedStep, LoadOptions, RestoreRequest
from cordwood.manager.restore_step import Restored, missing_step_error, restore_newest, restore_step
from cordwood.manager.step_items import is_stateful, require_mapping, set_state
from cordwood.manager.step_listing import Step, StepListing
from cordwood.manager.step_names import step_number
from cordwood.manager.watch_steps import StepWatcher
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.step_storage import open_step_storage

T = TypeVar("T")
Items: TypeAlias = Mapping[str, Any] | None  # trees, and what is Stateful
_NEWEST = object()
_OPTIONS = LoadOptions.__annotations__.keys()
_RESTORE = ["step", "like", "items", "required", *_OPTIONS]  # what `restore` takes
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
        self._place = open_step_storage(root, RULES.index_name, timeout_seconds=timeout_seconds)
        self._listing = StepListing(self._place)
        self._group = ProcessGroup(self._place.name, timeout_seconds)
        self._watch = StepWatcher(self._listing, self._group)
        self._restored: int | None = None
        self._prefix: str | None = None  # by which the tree of the run was restored

    @property
    def root(self) -> str:
        """The directory or URL that the steps lie in."""
        return self._place.name

    def steps(self) -> list[int]:
        """Return the numbers of the steps that can be restored, increasing.

        Of several processes each looks by itself: while process 0 deletes, in the background
        after a save, they may see different steps.
        """
        return [step.step for step in self._listing.steps() if step.whole]

    def latest(self) -> int | None:
        """Return the number of the newest step; None where there is none."""
        return self._listing.latest()

    def metrics(self, step: SupportsIndex) -> dict[str, float]:
        """Return the metrics of a step, without its tree; {} where it has none.

        Those that Orbax's CheckpointManager saved count too.

        Raises:
            FileNotFoundError: there is no such step.
            CorruptionError: the directory holds another step.
        """
        number = step_number(step)
        found = self._finished(number)
        found.require_known()
        return found.metrics

    @overload
    def restore(
        self,
        *,
        like: T,
        items: Items = None,
        required: Literal[True],
        **options: Unpack[LoadOptions],
    ) -> Restored[T]: ...

    @overload
    def restore(
        self, *, items: Items = None, required: Literal[True], **options: Unpack[LoadOptions]
    ) -> Restored[Any]: ...

    @overload
    def restore(
        self,
        *,
        like: T,
        items: Items = None,
        required: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Restored[T] | None: ...

    @overload
    def restore(
        self, *, items: Items = None, required: bool = False, **options: Unpack[LoadOptions]
    ) -> Restored[Any] | None: ...

    @overload
    def restore(
        self,
        step: SupportsIndex,
        *,
        like: T,
        items: Items = None,
        required: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Restored[T]: ...

    @overload
    def restore(
        self,
        step: SupportsIndex,
        *,
        items: Items = None,
        required: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Restored[Any]: ...

    def restore(
        self,
        step: Any = _NEWEST,
        *,
        like: Any = None,
        items: Items = None,
        required: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Restored[Any] | None:
        """Load a step; every byte that is read is checked.

        Without a number: the newest that is whole. Newer ones whose save did not finish, or that
        are damaged, are passed over with a RuntimeWarning that names them. One that does not fit
        `like` is not passed over.

        Where there is no step, the result is None, for a run that starts anew. If the root holds
        other checkpoints then, a RuntimeWarning names them; otherwise the log (the logger
        `cordwood`, INFO) says what is there.

        Args:
            step: which one, and no other; None is an error, as `best()` returns it.
            like: as in `cordwood.load`.
            items: what else to restore, by name. A tree, as `like` is one: it comes back in
                `Restored.items`. Something with `set_state` or `load_state_dict`: that is called
                with what this process had saved. None: whatever it is, as it was saved. Of
                Orbax's steps, JSON and random keys come with None too, and the states that Grain
                saved are set. With missing="keep", an item that the step lacks stays as it is
                given. mesh, rules, strict, cast, missing and extra hold for items too.
            required: raise FileNotFoundError instead of returning None, for a job that must not
                start anew. With a number it changes nothing: that step is always required.
            options: mesh, rules, shardings, strict, cast, select, rename, transpose, missing,
                extra: as in `cordwood.load`. prefix: which tree of a step that another tool saved
                with several; of a manager's own steps, the item of that name. The prefix that a
                job restored its tree by before it saved a step means the tree of that step; for
                any other name that no item has, a step with one tree gives that, with a
                RuntimeWarning.

        Returns:
            The step, its tree, metrics, extras and items; None where no save has finished yet.

        Raises:
            FileNotFoundError: there is no such step, and the message names those that are there;
                or there is none at all, with `required`, and it says what the root holds.
            IncompleteCheckpointError: its save did not finish.
            MismatchError: it does not fit `like`, or has no such items.
            PrefixError: a step with several trees has none of that prefix.
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
        refuse_arguments("restore", options.keys() - _OPTIONS, _RESTORE)
        number = None if step is _NEWEST else step_number(step)
        wish = RestoreRequest(
            like, {} if items is None else items, options, self._group.index, self._group.count
        )
        self._before_restoring()
        found: LoadedStep | None
        try:
            with self._group.rendezvous(
                "restore a step of", timeout_seconds=_LOAD_SECONDS
            ) as rendezvous:
                require_mapping(wish.items)
                if number is not None:
                    found = restore_step(self._listing, rendezvous, number, wish, root=self.root)
                else:
                    found = restore_newest(
                        self._listing, rendezvous, wish, root=self.root, required=required
                    )
        except MismatchError as e:  # the message says all; hide internal frames
            raise e.with_traceback(None) from e.__cause__
        self._after_restoring()
        prefix = options.get("prefix") if found is None else found.prefix
        self._prefix = self._prefix if prefix is None else prefix
        if found is None:
            return None
        self._restored = found.step
        self._watch.restored(found.step)
        stateful = {name: item for name, item in wish.items.items() if is_stateful(item)}
        for name, item in stateful.items():
            if name in found.items:  # else it is kept: missing="keep"
                set_state(item, found.items[name])
        rest = {name: value for name, value in found.items.items() if name not in stateful}
        return Restored(found.step, found.tree, found.metrics, found.extras, rest)

    @contextmanager
    def pin(self, step: SupportsIndex) -> Iterator[str]:
        """Have no manager delete a step in the block; its path.

        The pin ends with the process, however that ends.

        Raises:
            FileNotFoundError: there is no such step.
            PermissionError: a pin is a file in the step's directory, made under the root's lock:
                whoever pins must be allowed to write in both. A copy of a step needs no pin.
            UnsupportedFormatError: the root is in an object store, or in a file system without
                locks, so nothing would hold the step.
        """
        found = self._finished(step_number(step))
        with ExitStack() as stack:
            try:
                if found.format is None:  # a file is another tool's: no manager deletes it
                    stack.enter_context(self._place.pin(found.entry))
                self._finished(found.step)
            except FileNotFoundError as e:  # it has just been deleted
                raise missing_step_error(found.step, self._listing.steps(), root=self.root) from e
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
        """Wait for a step that this has not seen, and return the newest.

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
        """Yield each new step that is still there, the oldest first, until none comes in that time.

        It begins with the newest, or with all after what `restore` has loaded.
        """
        while (
            found := self._watch.wait(
                newest=False, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds
            )
        ) is not None:
            yield found

    def _finished(self, number: int) -> Step:
        """Return a step. Raises FileNotFoundError where there is none, or it did not finish."""
        step = self._listing.at(number)
        if step is not None and step.finished:
            return step
        raise missing_step_error(number, self._listing.steps(), root=self.root)

    if not TYPE_CHECKING:  # a type checker must not think that there is any attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(type(self).__name__, name), name=name, obj=self)

    def _before_restoring(self) -> None:
        """For what must have ended by then."""

    def _after_restoring(self) -> None:
        """Take note that a step was restored, or that none was found, by all processes."""
