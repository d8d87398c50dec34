"""Loading of one chosen step: its tree, and the requested items beside it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypedDict

from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.api.load import load
from cordwood.encoding.step_record import PREFIX_KEY, Record, decode_record, encode_record
from cordwood.errors import MismatchError, PrefixError
from cordwood.io.progress import Progress, ProgressOption, Report
from cordwood.io.progress_bar import progress_display
from cordwood.loading.cast import Cast
from cordwood.loading.match_like import Extra, Missing, is_abstract
from cordwood.manager.foreign_items import foreign_extras, foreign_items, load_foreign_item
from cordwood.manager.step_items import (
    ITEM,
    describe,
    is_stateful,
    state_from_record,
    state_from_tree,
)
from cordwood.manager.step_listing import Step
from cordwood.message_text import printable, size_text
from cordwood.plan.path_patterns import Select
from cordwood.plan.transpose_leaves import Transpose
from cordwood.sharding.partition_rules import Rules
from cordwood.storage.urls import parse_url
from cordwood.tree.flatten import flatten

_log = logging.getLogger("cordwood")

_TO_THE_CALLER = 7  # frames from a warning to the caller of `CheckpointManager.restore`

# Options that apply to trees among the items too; the others name leaves of the tree of the step.
_FOR_ITEMS = ("mesh", "rules", "strict", "cast", "missing", "extra")


class LoadOptions(TypedDict, total=False):
    """Options of `cordwood.load`: placement, differences to accept, and the report of progress."""

    mesh: Any
    rules: Rules | None
    shardings: Any
    strict: bool
    cast: bool | Cast
    select: Select | None
    rename: Mapping[str, str] | None
    transpose: Transpose | None
    missing: Missing
    extra: Extra
    prefix: str | None
    progress: ProgressOption


class RestoreRequest(NamedTuple):
    """The request to restore a step, before the step is chosen."""

    like: Any
    items: Mapping[str, Any]  # by name: a tree like the expected one, a stateful object, or None
    options: LoadOptions
    progress: ProgressOption
    process: int  # this process, whose states are loaded
    process_count: int


class LoadedStep(NamedTuple):
    """A loaded step: its tree and the data beside it."""

    step: int
    path: str
    tree: Any
    metrics: dict[str, float]
    extras: Any
    items: dict[str, Any]  # by name; for stateful objects, the state to set
    prefix: str | None  # the requested prefix, if it named the tree of the run; or None


def as_message(step: Step) -> dict[str, Any]:
    """Return, as JSON values, the facts about a step that all processes need to load it."""
    record = None if step.record is None else encode_record(step.record)
    return {
        "step": step.step,
        "path": step.path,
        "format": step.format,
        "metrics": step.metrics,
        "record": record,
    }


def load_step(chosen: Mapping[str, Any], request: RestoreRequest) -> LoadedStep:
    """Load a step and log a line about it.

    Args:
        chosen: the step, as `as_message` returned it.
        request: which parts of it to load.

    Raises as `cordwood.load` does, and MismatchError if the step lacks an item.
    """
    path, text = chosen["path"], chosen["record"]
    record = None if text is None else decode_record(text, path)
    by_manager = record is not None
    other_items = (
        {} if by_manager or chosen["format"] or not _is_local(path) else foreign_items(path)
    )
    kinds = (
        other_items
        if record is None
        else {name: describe(item) for name, item in record.items.items()}
    )
    _require_items(request, kinds, path=path)
    with progress_display(request.progress, "restoring") as report:
        counter = _ByteCounter(report)
        return _load(chosen, request, record, kinds, counter, has_others=bool(other_items))


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


def _load(
    chosen: Mapping[str, Any],
    request: RestoreRequest,
    record: Record | None,
    kinds: Mapping[str, str],
    counter: _ByteCounter,
    *,
    has_others: bool,
) -> LoadedStep:
    path = chosen["path"]
    by_manager = record is not None
    since = time.monotonic()
    options: dict[str, Any] = {**request.options}
    if record is not None:
        options["prefix"] = _prefix_in_step(record, options.get("prefix"), path=path)
    tree = load(path, request.like, format=chosen["format"], progress=counter.note, **options)
    items = {}
    for_items: dict[str, Any] = {k: options[k] for k in _FOR_ITEMS if k in options}
    if isinstance(for_items.get("cast"), Mapping):  # by patterns of the tree's leaves
        del for_items["cast"]
    for_items["progress"] = counter.note
    for name, item in request.items.items():
        counter.begin_load()
        if name not in kinds:
            _log.info("%s has no item %r: what was given is kept", path, name)
            if not is_stateful(item):
                items[name] = item
        elif record is not None:
            items[name] = _load_item(record, name, item, request, path=path, options=for_items)
        else:
            items[name] = load_foreign_item(
                path, name, item, for_items, process=request.process, count=request.process_count
            )
    extras = record.extras if record is not None else foreign_extras(path) if has_others else None
    seconds = time.monotonic() - since
    _log.log(
        logging.DEBUG if request.process else logging.INFO,
        "restored step %d: %s read in %.3f s, %s/s (%s)",
        chosen["step"],
        size_text(counter.size_bytes),
        seconds,
        size_text(counter.size_bytes / max(seconds, 1e-9)),
        path,
    )
    prefix = None if by_manager and options["prefix"] is not None else request.options.get("prefix")
    return LoadedStep(chosen["step"], path, tree, chosen["metrics"], extras, items, prefix)


def _is_local(path: str) -> bool:
    return parse_url(path) is None


def _require_items(request: RestoreRequest, kinds: Mapping[str, str], *, path: str) -> None:
    """Raise MismatchError unless a step has the items, or missing="keep" has values to keep."""
    keeps = request.options.get("missing") == "keep"
    for name, item in request.items.items():
        if name not in kinds and not (keeps and _has_values(item)):
            available = ", ".join(f"{each} ({kind})" for each, kind in kinds.items()) or "none"
            raise MismatchError(
                f"{path} has no item {name!r}; it has: {available}. To restore the tree without "
                'it, leave it out of items=; missing="keep" keeps the tree that is given'
            )


def _has_values(item: Any) -> bool:
    """Return True if an item can be kept: it has a state, or is a tree of values."""
    if item is None or is_stateful(item):
        return item is not None
    return not any(map(is_abstract, flatten(item).leaves))


def _prefix_in_step(record: Record, prefix: str | None, *, path: str) -> str | None:
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
    with open_checkpoint(path) as checkpoint:
        recorded_prefix = checkpoint.metadata.get(PREFIX_KEY)
    if prefix == recorded_prefix:
        _log.debug("%s: prefix %r means the tree of this run", path, prefix)
        return None
    trees = [name for name, item in record.items.items() if item == ITEM]
    if trees:
        raise PrefixError(
            f"{path} has no tree with the prefix {prefix!r}; its items that are trees: "
            f"{', '.join(trees)}. Leave prefix= out for the tree of the run"
        )
    warnings.warn(
        printable(
            f"{path} has no tree with the prefix {prefix!r}; its only tree is restored instead. "
            "Leave out prefix= to avoid this warning"
        ),
        RuntimeWarning,
        stacklevel=_TO_THE_CALLER,
    )
    return None


def _load_item(
    record: Record,
    name: str,
    item: Any,
    request: RestoreRequest,
    *,
    path: str,
    options: Mapping[str, Any],
) -> Any:
    """Return an item of a manager's step: a tree, or the state of this process."""
    saved = record.items[name]
    if (saved == ITEM) == is_stateful(item) and item is not None:
        type_text = "something with a state" if saved == ITEM else f"a {type(item).__name__}"
        expected = "a tree like it" if saved == ITEM else "what has set_state or load_state_dict"
        raise MismatchError(
            f"{path}: the item {name!r} was saved as {describe(saved)}: expected {expected}, or "
            f"None to get it as it was saved, found {type_text}"
        )
    if saved == ITEM:
        try:
            return load(path, item, prefix=name, **options)
        except MismatchError as e:
            raise MismatchError(f"the item {name!r}: {e}") from e
    of_process: Callable[..., Any]
    if type(saved) is dict:
        tree = load(path, prefix=name, progress=options["progress"])
        of_process = partial(state_from_tree, tree, saved, name, path=path)
    else:
        of_process = partial(state_from_record, saved, name, path=path)
    try:
        return of_process(process=request.process, count=request.process_count)
    except MismatchError:  # states of another number of processes
        if item is not None:
            raise
        saved_count = saved["processes"] if type(saved) is dict else len(saved)
        return [of_process(process=i, count=saved_count) for i in range(saved_count)]
