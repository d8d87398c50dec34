"""Restoring of a step: the requested one, or the newest whole one; its tree, and items beside it.

All processes of a job load the same step: process 0 chooses it, and each one reports its result.
One file, because what is chosen, loaded and reported depends on each other.
"""

from __future__ import annotations

import errno
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from cordwood.api.load import load_at
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    PrefixError,
    ProcessError,
)
from cordwood.formats.detect_format import indexed_format, place_at
from cordwood.formats.stored_step import PREFIX_KEY, Record, listed, step_in_name
from cordwood.io.open_files import is_disk_error
from cordwood.io.progress import Progress, ProgressOption, Report
from cordwood.io.progress_bar import progress_display
from cordwood.loading.checkpoint import open_at
from cordwood.loading.load_request import LoadOptions, TreeOptions
from cordwood.manager.step_items import (
    ITEM,
    describe,
    foreign_extras,
    foreign_items,
    is_stateful,
    load_foreign_item,
    load_item,
    require_items,
)
from cordwood.manager.steps import OtherCheckpoint, Step, Steps
from cordwood.message_text import printable, shortened, size_text
from cordwood.notebook.html_parts import (
    fields_html,
    fold_html,
    page_html,
    tree_lines,
    tree_preview_html,
)
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.rendezvous_texts import process_names
from cordwood.public_names import document_fields
from cordwood.storage.locations import LocalPath, Location, parse_location
from cordwood.storage.paths import kind_at
from cordwood.threads.log import log

T = TypeVar("T")
# Options that apply to trees among the items too; the others name leaves of the tree of the step.
_FOR_ITEMS = ("mesh", "rules", "strict", "cast", "missing", "extra")
_MAX_SHOWN = 10
_MAX_EXTRAS = 200  # characters in a repr
_TO_THE_CALLER = 4  # frames from a warning to the caller of `CheckpointManager.restore`
_NEWEST = "(the newest)"
_DAMAGED, _MISSING = "!", "?"  # the first character of the report of a process that failed


@document_fields
class Restored(NamedTuple, Generic[T]):
    """A restored step. Its repr shows shapes and dtypes, but no elements.

    Attributes:
        step: its number.
        tree: the tree, as `cordwood.load` returns it.
        metrics: the metrics that were given to `save`, by name; {} if there are none.
        extras: the JSON value that was given to `save`; None if there is none. For a step of
            Orbax: its JSON items, by their names.
        items: by name, the trees and other values that were requested with `items=`. Objects with
            a state are not included: their state was set.
    """

    step: int
    tree: T
    metrics: dict[str, float]
    extras: Any
    items: Mapping[str, Any] = MappingProxyType({})

    def __repr__(self) -> str:
        extras = shortened(repr(self.extras), _MAX_EXTRAS)
        count, *lines = tree_lines(self.tree)
        head = f"Restored(step={self.step}, metrics={self.metrics}, extras={extras}, tree: {count}"
        for name, item in self.items.items():
            count, *inner = tree_lines(item)
            lines += [f"  items[{name!r}]: {count}", *[f"  {line}" for line in inner]]
        return "\n".join([head, *lines]) + ")"

    def _repr_html_(self) -> str:
        metrics = [(name, f"{value:.6g}") for name, value in self.metrics.items()]
        extras = "" if self.extras is None else shortened(repr(self.extras), _MAX_EXTRAS)
        body = [fields_html([*metrics[:_MAX_SHOWN], ("extras", extras)])]
        for name, tree in [("tree", self.tree), *self.items.items()]:
            note, html = tree_preview_html(tree)
            body.append(fold_html(name, note, [html], is_open=name == "tree"))
        return page_html(fold_html(f"step {self.step}", "restored", body))


class RestoreOptions(TreeOptions, total=False):
    """Options of `restore`: those of a tree, and which tree."""

    prefix: str | None


class RestoreRequest(NamedTuple):
    """The request to restore a step, before the step is chosen."""

    like: Any
    items: Mapping[str, Any]  # by name: a tree like the expected one, a stateful object, or None
    options: RestoreOptions
    progress: ProgressOption


class ChosenStep(NamedTuple):
    """A step that all processes load; between processes it is a list of JSON values."""

    step: int
    path: str
    format: str | None
    metrics: dict[str, float]
    record: Record | None

    @classmethod
    def of(cls, step: Step) -> ChosenStep:
        # The caller may change the extras and states that it gets; the step stays in `Steps`.
        return cls(step.step, step.path, step.format, step.metrics, deepcopy(step.record))

    @classmethod
    def received(cls, values: Sequence[Any]) -> ChosenStep:
        """Return the step of an answer of process 0."""
        step, path, format, metrics, record = values
        return cls(step, path, format, metrics, None if record is None else Record(*record))


class _Choice(NamedTuple):
    """The choice of process 0 where no step was asked for; its parts are JSON values, or steps."""

    chosen: ChosenStep | None  # the newest whole step
    damaged: Sequence[tuple[int, str, str]]  # newer steps: number, path and problem
    unfinished: Sequence[tuple[int, str]]
    others: bool = False  # True if there is no step, and there are other checkpoints
    nothing: str = ""  # what there is instead of a step


class LoadedStep(NamedTuple):
    """A loaded step. Its items hold the states of stateful objects, which are to be set."""

    restored: Restored[Any]
    prefix: str | None  # the requested prefix, if it named the tree of the run; or None


def restore_step(
    steps: Steps, rendezvous: Rendezvous, number: int, request: RestoreRequest
) -> LoadedStep:
    """Load the step of a number, as one of the processes of a rendezvous.

    Raises as `CheckpointManager.restore` does.
    """

    def find(requests: list[str]) -> ChosenStep:
        _require_same(requests, steps.root)
        step = steps.at(number)
        if step is None or not step.finished:
            raise missing_step_error(steps, number)
        step.require_known()
        return ChosenStep.of(step)

    chosen = ChosenStep.received(rendezvous.exchange(str(number), find))
    with _explaining(steps, chosen):
        loaded = load_step(chosen, request, rendezvous)
    rendezvous.exchange(None, lambda _: None)  # all processes have loaded it
    return loaded


def restore_newest(
    steps: Steps,
    rendezvous: Rendezvous,
    request: RestoreRequest,
    *,
    required: bool,
) -> LoadedStep | None:
    """Load the newest whole step, as one of the processes of a rendezvous.

    Warns of steps that are passed over and, if there is no step, of checkpoints that are not steps.
    Returns None if no save has finished; with `required` that is an error. Raises as
    `CheckpointManager.restore` does.
    """
    root = steps.root
    damaged: dict[int, str] = {}

    def choose(requests: list[str]) -> _Choice:
        _require_same(requests, root)
        return _choose(steps, damaged)

    while True:
        choice = _Choice(*rendezvous.exchange(_NEWEST, choose))
        for step, path, problem in choice.damaged:
            damaged[step] = problem
            _warn(f"{path}: step {step} is passed over: {problem}")
        if choice.chosen is None:
            break
        chosen, loaded, report = ChosenStep.received(choice.chosen), None, ""
        with _explaining(steps, chosen):
            try:
                loaded = load_step(chosen, request, rendezvous)
            except FileNotFoundError as e:
                report = _MISSING + str(e)
            except (CorruptionError, FormatError) as e:
                report = _DAMAGED + str(e)
        answer = rendezvous.exchange(report, partial(_judge, steps, chosen))
        if not answer:
            break
        if rendezvous.index:
            steps.mark_damaged(chosen.step, answer)
    for number, path in choice.unfinished:
        _warn(f"{path}: the save of step {number} did not finish; it is passed over")
    if choice.chosen is not None:
        return loaded
    if damaged:
        lines = [f"  {number}: {damaged[number]}" for number in sorted(damaged)]
        raise CorruptionError(f"{root}: no step can be restored:\n" + "\n".join(lines))
    if required:
        raise FileNotFoundError(
            errno.ENOENT,
            f"there is no step to restore in {root}, but required=True was passed: "
            f"{choice.nothing}",
            root,
        )
    if choice.others:
        _warn(f"{root}: nothing is restored, and {choice.nothing}")
    else:
        level = logging.DEBUG if rendezvous.index else logging.INFO
        log.log(level, "nothing to restore in %s: %s", root, choice.nothing)
    return None


def _require_same(requests: Sequence[str], root: str) -> None:
    for process, step in enumerate(requests):
        if step != requests[0]:
            raise ProcessError(
                f"process {process} came to restore step {step} of {root}, process 0 step "
                f"{requests[0]}: every process must restore the same step; steps() and "
                "best() may differ for a moment, while process 0 deletes: let it choose, and send "
                "its choice to the others (jax.experimental.multihost_utils.broadcast_one_to_all)"
            )


def _choose(steps: Steps, damaged: Mapping[int, str]) -> _Choice:
    """Return, on process 0, the newest whole step, and the newer steps that are passed over."""
    passed_over: list[tuple[int, str, str]] = []
    unfinished: list[tuple[int, str]] = []
    newest = steps.down_to(lambda step: step.whole)
    for each in newest:
        if each.whole:
            each.require_known()
            return _Choice(ChosenStep.of(each), passed_over, unfinished)
        if each.damaged and each.step not in damaged:
            why = "; ".join(filter(None, (each.problem, each.in_the_way)))
            passed_over.append((each.step, each.path, why))
        if steps.died(each) or (each.tool and not each.finished):
            unfinished.append((each.step, each.path))
    if not newest:
        _require_root(steps.location)
    others = steps.others()
    if steps.latest() is not None:  # its save has just been committed
        return _choose(steps, damaged)
    return _Choice(None, passed_over, unfinished, bool(others), text_without_steps(steps, others))


def _require_root(root: Location) -> None:
    """Raise an error if a root cannot hold steps, or is a checkpoint itself.

    To start from the beginning would be wrong then.
    """
    what = kind_at(root) if isinstance(root, LocalPath) else "a folder"
    if what in ("a file", "something else"):
        raise NotADirectoryError(
            errno.ENOTDIR, f"expected the directory that steps lie in, found {what}", str(root)
        )
    format = None
    if what == "a folder":
        with suppress(FileNotFoundError):  # nothing lies below a URL
            format = indexed_format(place_at(root))
    if format is not None:
        raise ValueError(
            f"{root} is a checkpoint itself ({format.description}): expected the directory that "
            f"steps lie in, perhaps {root.parent}"
        )


def text_without_steps(steps: Steps, others: Sequence[OtherCheckpoint]) -> str:
    """Return the text about what a root without steps holds instead of them, with advice."""
    check = "check the path, or save a step first"
    if others:
        text = _other_checkpoints_text(others, steps.location)
    elif names := steps.names():
        text = f"it holds {listed(names)}, and no checkpoint; {check}"
    elif isinstance(steps.location, LocalPath) and kind_at(steps.location) == "nothing":
        text = f"there is no such directory; {check}"
    else:
        text = f"it is empty; {check}"
    return printable(text, keep="")


def _other_checkpoints_text(others: Sequence[OtherCheckpoint], root: Location) -> str:
    """Return the text about checkpoints that are not named as steps, with advice."""
    names = listed([each.name for each in others])
    last = others[-1]
    path = str(root.child(last.name))
    what = f"{last.name} is {last.description}; " if last.description else ""
    if last.format == "steps":
        return f"there are {names}: {what}to restore one of these, give {path} as the root"
    if step_in_name(last.name) is not None:
        return f"there are {names}: {what}look at it with cordwood.load({path!r})"
    rename = "rename those"
    if isinstance(root, LocalPath):
        rename += ", or link to them by such names"
    load = f", or load one with cordwood.load({path!r})" if last.format else ""
    return (
        f"there are {names}: {what}steps are named 100, checkpoint_100 or run-100; {rename}{load}"
    )


@contextmanager
def _explaining(steps: Steps, chosen: ChosenStep) -> Iterator[None]:
    """Raise errors of the disk again, with the step and an older step to restore instead.

    `restore` does not choose an older step by itself: the disk may work the next time.
    """
    try:
        yield
    except OSError as e:
        if not is_disk_error(e):
            raise
        step = chosen.step
        older = steps.newest(lambda each: each.step < step and each.whole)
        advice = "" if older is None else f"; restore({older.step}) loads the step before it"
        message = f"{e.strerror}: step {step} cannot be read from the disk{advice}"
        raise type(e)(e.errno, message, e.filename or chosen.path) from e


def _judge(steps: Steps, chosen: ChosenStep, reports: Sequence[str]) -> str:
    """Return, on process 0, why another step must be tried; "" if all have loaded this one."""
    if not any(reports):
        return ""
    step = chosen.step
    current = steps.at(step)
    if current is None or not current.whole:
        return "it was deleted meanwhile"
    missing = [process for process, each in enumerate(reports) if each.startswith(_MISSING)]
    if missing and not reports[0]:
        raise ProcessError(
            f"{process_names(missing)} found nothing at {chosen.path}, which process 0 has "
            "loaded: the steps must lie on a file system that all processes share"
        )
    process, report = next((i, each) for i, each in enumerate(reports) if each)
    text = report[1:]
    why = f"process {process}: {text}" if process else text
    steps.mark_damaged(step, why)
    return why


def missing_step_error(steps: Steps, number: int) -> Exception:
    """Return the error for a step that was requested by its number and cannot be loaded."""
    every = steps.all()
    finished = [each.step for each in every if each.finished]
    newest = f"the newest complete step is {finished[-1]}" if finished else "no step is complete"
    for each in every:
        if each.step == number:
            return IncompleteCheckpointError(
                f"{each.path}: the save of step {number} did not finish; {newest}"
            )
    shown = ", ".join(map(str, finished[-_MAX_SHOWN:])) or "none"
    more = "... " if len(finished) > _MAX_SHOWN else ""
    return FileNotFoundError(
        errno.ENOENT, f"there is no step {number}; there are: {more}{shown}", steps.root
    )


def _warn(message: str, *, frames: int = _TO_THE_CALLER) -> None:
    warnings.warn(printable(message), RuntimeWarning, stacklevel=frames)


def load_step(chosen: ChosenStep, request: RestoreRequest, processes: Rendezvous) -> LoadedStep:
    """Load a step, as one of the processes of a rendezvous, and log a line about it.

    Raises as `cordwood.load` does, and MismatchError if the step lacks an item.
    """
    path, record = chosen.path, chosen.record
    location = parse_location(path)  # as process 0 has sent it
    kinds: Mapping[str, str] = {}
    if record is not None:
        kinds = {name: describe(item) for name, item in record.items.items()}
    elif chosen.format is None:
        kinds = foreign_items(location)
    keeps = request.options.get("missing") == "keep"
    require_items(request.items, kinds, keeps=keeps, path=path)
    start = time.monotonic()
    prefix = request.options.get("prefix")
    options: dict[str, Any] = {k: v for k, v in request.options.items() if k != "prefix"}
    if record is not None:
        prefix = _prefix_in_step(record, prefix, location)
    with progress_display(request.progress, "restoring") as report:
        counter = _ByteCounter(report)
        load_options = LoadOptions(progress=counter.note, **options)
        tree = load_at(location, request.like, load_options, format=chosen.format, prefix=prefix)
        items = {}
        for_items: dict[str, Any] = {k: options[k] for k in _FOR_ITEMS if k in options}
        if isinstance(for_items.get("cast"), Mapping):  # by patterns of the tree's leaves
            del for_items["cast"]
        for_items["progress"] = counter.note
        for name, item in request.items.items():
            counter.begin_load()
            if name not in kinds:
                log.info("%s has no item %r: what was given is kept", path, name)
                if not is_stateful(item):
                    items[name] = item
            elif record is not None:
                saved = record.items[name]
                items[name] = load_item(location, name, saved, item, for_items, processes)
            else:
                items[name] = load_foreign_item(location, name, item, for_items, processes)
        extras = None
        if record is not None:
            extras = record.extras
        elif kinds:
            extras = foreign_extras(location)
    seconds = time.monotonic() - start
    log.log(
        logging.DEBUG if processes.index else logging.INFO,
        "restored step %d: %s read in %.3f s, %s/s (%s)",
        chosen.step,
        size_text(counter.size_bytes),
        seconds,
        size_text(counter.size_bytes / max(seconds, 1e-9)),
        path,
    )
    is_item = record is not None and prefix is not None
    restored = Restored(chosen.step, tree, chosen.metrics, extras, items)
    return LoadedStep(restored, None if is_item else request.options.get("prefix"))


class _ByteCounter:
    """The sum of the bytes that several loads read, reported as the progress of one call."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._earlier_bytes = 0
        self._latest = Progress(0, 0)

    @property
    def size_bytes(self) -> int:
        return self._earlier_bytes + self._latest.done_bytes

    def begin_load(self) -> None:
        """Count the next load on top of the loads before it."""
        self._earlier_bytes = self.size_bytes
        self._latest = Progress(0, 0)

    def note(self, progress: Progress) -> None:
        """Receive the progress of the current load."""
        self._latest = progress
        if self._report is not None:
            done, total, doing = progress
            self._report(Progress(self._earlier_bytes + done, self._earlier_bytes + total, doing))


def _prefix_in_step(record: Record, prefix: str | None, path: Location) -> str | None:
    """Return the prefix of a tree in a manager's step; None stands for the tree of the run.

    A step of another tool may hold several trees, and the tree of the run is one of them; a
    manager's step holds that tree without a prefix. So that one script restores both, a step
    records the prefix by which its job restored the tree of the run, and accepts that prefix for
    this tree.

    Raises PrefixError for another prefix if the step has several trees. If it has only one, warns
    and returns None.
    """
    if prefix is None or record.items.get(prefix) == ITEM:
        return prefix
    with open_at(path) as checkpoint:
        recorded_prefix = checkpoint.metadata.get(PREFIX_KEY)
    if prefix == recorded_prefix:
        log.debug("%s: prefix %r means the tree of this run", path, prefix)
        return None
    trees = [name for name, item in record.items.items() if item == ITEM]
    if trees:
        raise PrefixError(
            f"{path} has no tree with the prefix {prefix!r}; its items that are trees: "
            f"{', '.join(trees)}. Leave prefix= out for the tree of the run"
        )
    _warn(
        f"{path} has no tree with the prefix {prefix!r}; its only tree is restored instead. Leave "
        "out prefix= to avoid this warning",
        frames=_TO_THE_CALLER + 2,
    )
    return None
