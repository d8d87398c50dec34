"""StepReader: everything that a job does with steps except saving: list, restore, wait, pin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

from cordwood.errors import MismatchError
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import step_number
from cordwood.formats.table import DEFAULT
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import require_progress_option
from cordwood.manager.argument_hints import no_attribute, refuse_arguments
from cordwood.manager.items.item_arguments import require_mapping
from cordwood.manager.items.stateful import is_stateful, set_state
from cordwood.manager.load_step import LoadedStep
from cordwood.manager.missing_steps import finished_step, text_without_steps
from cordwood.manager.pin_step import pinned
from cordwood.manager.restore_request import RestoreOptions, RestoreRequest
from cordwood.manager.restore_step import restore_newest, restore_step
from cordwood.manager.restored import Restored
from cordwood.manager.step_holder import StepHolder
from cordwood.manager.step_watcher import StepWatcher
from cordwood.manager.steps import Steps
from cordwood.message_text import printable
from cordwood.policies.best_step import best_step
from cordwood.policies.keep_policies import KeepPolicy
from cordwood.policies.saved_step import metric_problem
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.locations import parse_location
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.storage.step_storage import StepStorage
from cordwood.threads.log import log

T = TypeVar("T")
Items: TypeAlias = Mapping[str, Any] | None  # trees, and `Stateful` objects
_NEWEST = object()
_OPTIONS = RestoreOptions.__annotations__.keys()
_RESTORE = ["step", "like", "items", "required", *_OPTIONS]  # parameters of `restore`
_LOAD_SECONDS = 6 * 3600  # how much longer one process may load than another


class StepReader:
    """The steps below a root, for jobs that only read; `CheckpointManager` also saves them.

    With several processes, each one lists the steps by itself (`steps`, `latest`, `metrics`). All
    processes call `restore`, `wait_for_new_step` and `new_steps` together, and get the same step.

    Args:
        root: a directory or URL, which need not exist yet.
        timeout_seconds: how long to wait for other processes that are late but alive.

    Raises UnsupportedFormatError if the root is a URL of an unknown store, or of a web server.

    >>> reader = StepReader("steps")
    >>> for step in reader.new_steps(timeout_seconds=0):
    ...     with reader.pin(step):
    ...         loss = evaluate(reader.restore(step).tree)
    """

    def __init__(
        self, root: str | os.PathLike[str], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        storage = open_step_storage(
            parse_location(root), storage_of(DEFAULT).RULES, timeout_seconds=timeout_seconds
        )
        self._read_from(storage, timeout_seconds)

    def _read_from(self, storage: StepStorage, timeout_seconds: float) -> None:
        """Read the steps of a storage; part of `__init__`."""
        self._steps = Steps(storage)
        self._group = ProcessGroup(self._steps.root, timeout_seconds)
        self._watch = StepWatcher(self._steps, self._group)
        self._progress: ProgressOption = None
        self._holders: Sequence[StepHolder] = ()  # where steps that the root lacks are looked for

    def __repr__(self) -> str:
        return f"StepReader({self.root!r})"

    @property
    def root(self) -> str:
        """The directory or URL that holds the steps."""
        return self._steps.root

    def steps(self) -> list[int]:
        """Return the numbers of the steps that can be restored, increasing.

        With several processes each one reads the root by itself. While process 0 deletes steps, in
        the background after a save, they may see different steps.
        """
        return [step.step for step in self._steps.all() if step.whole]

    def latest(self) -> int | None:
        """Return the number of the newest step; None if there is none."""
        return self._steps.latest()

    def metrics(self, step: SupportsIndex) -> dict[str, float]:
        """Return the metrics of a step, without loading its tree; {} if it has none.

        Metrics that Orbax's CheckpointManager saved are returned too.

        Raises:
            FileNotFoundError: there is no such step.
            CorruptionError: the directory holds another step.
        """
        entry = finished_step(self._steps, step_number(step))
        entry.require_known()
        return entry.metrics

    def best(self, metric: str, *, mode: Literal["min", "max"] | None = None) -> int | None:
        """Return the step where a metric is best, of equal ones the newer; None if none has it.

        Args:
            metric: its name; the log warns if the steps have other metrics only. If there are no
                steps, it says what the root holds (INFO), as for `restore`.
            mode: "min" or "max"; None: "min".
        """
        return self._best(None, metric, mode)

    def _best(
        self,
        policy: KeepPolicy | None,
        metric: str | None,
        mode: Literal["min", "max"] | None,
    ) -> int | None:
        every = self._steps.all()
        saved = [step.saved for step in every if step.saved is not None]
        best = best_step(saved, policy, metric, mode)
        if not every:
            text = text_without_steps(self._steps, self._steps.others())
            log.info("there is no best step in %s: %s", self.root, text)
        elif best is None and metric is not None:
            problem = metric_problem(saved, metric)
            if problem:
                log.warning("best: %s", printable(problem))
        return best

    @overload
    def restore(
        self,
        *,
        like: T,
        items: Items = None,
        required: Literal[True],
        **options: Unpack[RestoreOptions],
    ) -> Restored[T]: ...

    @overload
    def restore(
        self, *, items: Items = None, required: Literal[True], **options: Unpack[RestoreOptions]
    ) -> Restored[Any]: ...

    @overload
    def restore(
        self,
        *,
        like: T,
        items: Items = None,
        required: bool = False,
        **options: Unpack[RestoreOptions],
    ) -> Restored[T] | None: ...

    @overload
    def restore(
        self, *, items: Items = None, required: bool = False, **options: Unpack[RestoreOptions]
    ) -> Restored[Any] | None: ...

    @overload
    def restore(
        self,
        step: SupportsIndex,
        *,
        like: T,
        items: Items = None,
        required: bool = False,
        **options: Unpack[RestoreOptions],
    ) -> Restored[T]: ...

    @overload
    def restore(
        self,
        step: SupportsIndex,
        *,
        items: Items = None,
        required: bool = False,
        **options: Unpack[RestoreOptions],
    ) -> Restored[Any]: ...

    def restore(
        self,
        step: Any = _NEWEST,
        *,
        like: Any = None,
        items: Items = None,
        required: bool = False,
        **options: Unpack[RestoreOptions],
    ) -> Restored[Any] | None:
        """Load a step; every byte that is read is checked.

        Without a number, load the newest whole step. Newer steps whose save did not finish, or that
        are damaged, are passed over with a RuntimeWarning that names them. A step that does not fit
        `like` is not passed over.

        If there is no step, the result is None, for a run that starts from the beginning. If the
        root then holds other checkpoints, a RuntimeWarning names them; otherwise the log (the
        logger `cordwood`, INFO) says what the root holds.

        Args:
            step: the number of the step to load, and no other; None is an error, because `best()`
                may return it.
            like: as in `cordwood.load`.
            items: more to restore, by name. A tree, as `like` is one: it is returned in
                `Restored.items`. An object with `set_state` or `load_state_dict`: that method is
                called with the state that this process saved; with another number of processes, see
                `cordwood.results.Resplittable`. None: the item is returned as it was saved. In
                steps of Orbax, JSON and random keys are returned for None too, and states that
                Grain saved are set. With missing="keep", an item that the step lacks is returned
                as it was given. mesh, rules, strict, cast, missing and extra apply to items too.
            required: raise FileNotFoundError instead of returning None, for a job that must not
                start from the beginning. With a number it changes nothing: that step is always
                required.
            options: mesh, rules, shardings, strict, cast, select, rename, transpose, recipe,
                missing, extra, progress: as in `cordwood.load`. migrations: as there, for the tree
                of the step, not for its items: steps from before a change of the tree are loaded by
                them, and later steps as they are. prefix: which tree to load from a step of
                another tool with several trees; in a manager's step, the item of that name. The
                prefix by which a job restored its tree before it saved a step stands for the tree
                of that step. For any other name that no item has, a step with one tree returns
                that tree, with a RuntimeWarning.

        Returns:
            The step, its tree, metrics, extras and items; None if no save has finished yet.

        Raises:
            FileNotFoundError: there is no such step, and the message names the existing steps; or,
                with `required`, there is no step at all, and it says what the root holds.
            IncompleteCheckpointError: its save did not finish.
            MismatchError: it does not fit `like`, or has no such items.
            PrefixError: a step with several trees has none of that prefix.
            CorruptionError: it is damaged; without a number: all steps are.
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
        progress = options.pop("progress", self._progress)
        require_progress_option(progress)
        request = RestoreRequest(like, {} if items is None else items, options, progress)
        self._before_restoring()
        loaded: LoadedStep | None
        try:
            with self._group.rendezvous(
                "restore a step of", timeout_seconds=_LOAD_SECONDS
            ) as rendezvous:
                require_mapping(request.items)
                if number is not None:
                    loaded = restore_step(self._steps, self._holders, rendezvous, number, request)
                else:
                    loaded = restore_newest(
                        self._steps, self._holders, rendezvous, request, required=required
                    )
        except MismatchError as e:  # the message is complete; hide internal frames
            raise e.with_traceback(None) from e.__cause__
        if loaded is None:
            self._after_restoring(None, options.get("prefix"))
            return None
        restored = loaded.restored
        self._watch.restored(restored.step)
        self._after_restoring(restored.step, loaded.prefix)
        stateful = {name: item for name, item in request.items.items() if is_stateful(item)}
        for name, item in stateful.items():
            if name in restored.items:  # else it is kept: missing="keep"
                set_state(item, restored.items[name])
        values = {name: value for name, value in restored.items.items() if name not in stateful}
        return restored._replace(items=values)

    @contextmanager
    def pin(self, step: SupportsIndex) -> Iterator[str]:
        """Keep managers from deleting a step in the block, which gets its path.

        The pin ends with the process, however the process ends.

        Raises:
            FileNotFoundError: there is no such step.
            PermissionError: a pin is a file in the directory of the step, made under a lock in the
                root, so it needs permission to write in both. A copy of a step needs no pin.
            UnsupportedFormatError: the root is in an object store, or in a file system without
                locks, where a pin has no effect.
        """
        with pinned(self._steps, step_number(step)) as path:
            yield path

    def wait_for_new_step(
        self, timeout_seconds: float | None = None, *, poll_seconds: float = 1.0
    ) -> int | None:
        """Wait for a step that was not seen before, and return the newest.

        Seen are the steps that existed at the last return, and all steps up to the one that
        `restore` has loaded. A step that is saved again, after a run went back, counts as new.

        Args:
            timeout_seconds: how long to wait; None: without limit.
            poll_seconds: the time between two looks.

        Returns its number; None if there was none in that time. An object store that fails for a
        moment is asked again; if it still fails when the time is over, and for 5 s, that is raised.
        """
        return self._watch.wait(
            newest=True, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds
        )

    def new_steps(
        self, timeout_seconds: float | None = None, *, poll_seconds: float = 1.0
    ) -> Iterator[int]:
        """Yield each new step that still exists, the oldest first, until none comes in time.

        It begins with the newest step, or with all steps after the one that `restore` has loaded.
        """
        while (
            new_step := self._watch.wait(
                newest=False, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds
            )
        ) is not None:
            yield new_step

    if not TYPE_CHECKING:  # else type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(type(self).__name__, name), name=name, obj=self)

    def _before_restoring(self) -> None:
        """Do what must be done before a step is restored; for subclasses."""

    def _after_restoring(self, number: int | None, prefix: str | None) -> None:
        """Do what must be done after all processes have restored a step; for subclasses.

        Args:
            number: the step; None if there was none to restore.
            prefix: the requested prefix, if it named the tree of the run; or None.
        """
