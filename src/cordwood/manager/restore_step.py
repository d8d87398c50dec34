"""Restoring of a step: the requested one, or the newest whole one.

All processes of a job load the same step: process 0 chooses it, and each one reports its result.
"""

from __future__ import annotations

import errno
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    ProcessError,
)
from cordwood.formats.detect_format import indexed_format
from cordwood.formats.step_directories import listed, step_in_name
from cordwood.manager.foreign_steps import OtherCheckpoint
from cordwood.manager.load_step import LoadedStep, RestoreRequest, as_message, load_step
from cordwood.manager.step_listing import Step, StepListing
from cordwood.message_text import printable, shortened
from cordwood.notebook.tree_html import tree_lines, tree_preview_html
from cordwood.processes.join_rendezvous import process_names
from cordwood.processes.rendezvous import Rendezvous
from cordwood.public_names import document_fields
from cordwood.storage.open_files import DISK_ERRORS
from cordwood.storage.path_kind import kind_at
from cordwood.storage.urls import parse_url

_log = logging.getLogger("cordwood")

T = TypeVar("T")
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
        from cordwood.notebook.html_parts import fields_html, fold_html, page_html

        metrics = [(name, f"{value:.6g}") for name, value in self.metrics.items()]
        extras = "" if self.extras is None else shortened(repr(self.extras), _MAX_EXTRAS)
        body = [fields_html([*metrics[:_MAX_SHOWN], ("extras", extras)])]
        for name, tree in [("tree", self.tree), *self.items.items()]:
            preview = tree_preview_html(tree)
            body.append(fold_html(name, preview.note, [preview.html], is_open=name == "tree"))
        return page_html(fold_html(f"step {self.step}", "restored", body))


def restore_step(
    listing: StepListing, rendezvous: Rendezvous, number: int, request: RestoreRequest, *, root: str
) -> LoadedStep:
    """Load the step of a number, as one of the processes of a rendezvous.

    Raises as `CheckpointManager.restore` does.
    """

    def find(requests: list[str]) -> dict[str, Any]:
        _require_same(requests, root)
        step = listing.at(number)
        if step is None or not step.finished:
            raise missing_step_error(number, listing.steps(), root=root)
        step.require_known()
        return as_message(step)

    chosen = rendezvous.exchange(str(number), find)
    with _explaining(listing, chosen):
        loaded = load_step(chosen, request)
    rendezvous.exchange(None, lambda _: None)  # all processes have loaded it
    return loaded


def restore_newest(
    listing: StepListing,
    rendezvous: Rendezvous,
    request: RestoreRequest,
    *,
    root: str,
    required: bool,
) -> LoadedStep | None:
    """Load the newest whole step, as one of the processes of a rendezvous.

    Warns of steps that are passed over and, if there is no step, of checkpoints that are not steps.
    Returns None if no save has finished; with `required` that is an error. Raises as
    `CheckpointManager.restore` does.
    """
    damaged: dict[int, str] = {}

    def choose(requests: list[str]) -> dict[str, Any]:
        _require_same(requests, root)
        return _choose(listing, damaged, root=root)

    while True:
        chosen = rendezvous.exchange(_NEWEST, choose)
        for step, path, problem in chosen["damaged"]:
            damaged[step] = problem
            _warn(f"{path}: step {step} is passed over: {problem}")
        if "path" not in chosen:
            break
        with _explaining(listing, chosen):
            report, loaded = _try(chosen, request)
        answer = rendezvous.exchange(report, partial(_judge, listing, chosen))
        if not answer:
            _warn_unfinished(chosen)
            return loaded
        if rendezvous.index:
            listing.mark_damaged(chosen["step"], answer)
    _warn_unfinished(chosen)
    if damaged:
        lines = [f"  {number}: {damaged[number]}" for number in sorted(damaged)]
        raise CorruptionError(f"{root}: no step can be restored:\n" + "\n".join(lines))
    if required:
        raise FileNotFoundError(
            errno.ENOENT,
            f"there is no step to restore in {root}, but required=True was passed: "
            f"{chosen['nothing']}",
            root,
        )
    if chosen["others"]:
        _warn(f"{root}: nothing is restored, and {chosen['nothing']}")
    else:
        level = logging.DEBUG if rendezvous.index else logging.INFO
        _log.log(level, "nothing to restore in %s: %s", root, chosen["nothing"])
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


def _choose(listing: StepListing, damaged: Mapping[int, str], *, root: str) -> dict[str, Any]:
    """Return, on process 0, the newest whole step, and the newer steps that are passed over."""
    choice: dict[str, Any] = {"damaged": [], "unfinished": []}
    steps = listing.down_to(lambda step: step.whole)
    for each in steps:
        if each.whole:
            each.require_known()
            return {**as_message(each), **choice}
        if each.damaged and each.step not in damaged:
            why = "; ".join(filter(None, (each.problem, each.in_the_way)))
            choice["damaged"].append((each.step, each.path, why))
        if listing.died(each):
            choice["unfinished"].append((each.step, each.path))
    if not steps:
        _require_root(root)
    others = listing.others()
    choice["others"] = bool(others)
    nothing = (
        _other_checkpoints_text(others, root) if others else _no_checkpoint_text(listing, root)
    )
    choice["nothing"] = printable(nothing, keep="")
    return choice


def _require_root(root: str) -> None:
    """Raise an error if a root cannot hold steps, or is a checkpoint itself.

    To start from the beginning would be wrong then.
    """
    if parse_url(root) is not None:
        return
    what = kind_at(root)
    if what in ("a file", "something else"):
        raise NotADirectoryError(
            errno.ENOTDIR, f"expected the directory that steps lie in, found {what}", root
        )
    format = indexed_format(root) if what == "a folder" else None
    if format is not None:
        raise ValueError(
            f"{root} is a checkpoint itself ({format.description}): expected the directory that "
            f"steps lie in, perhaps {Path(root).parent}"
        )


def _other_checkpoints_text(others: Sequence[OtherCheckpoint], root: str) -> str:
    """Return the text about checkpoints that are not named as steps, with advice."""
    names = listed([each.name for each in others])
    last = others[-1]
    path = f"{root}/{last.name}"
    what = f"{last.name} is {last.description}; " if last.description else ""
    if last.format == "steps":
        return f"there are {names}: {what}to restore one of these, give {path} as the root"
    if step_in_name(last.name) is not None:
        return f"there are {names}: {what}look at it with cordwood.load({path!r})"
    rename = "rename those"
    if parse_url(root) is None:
        rename += ", or link to them by such names"
    load = f", or load one with cordwood.load({path!r})" if last.format else ""
    return (
        f"there are {names}: {what}steps are named 100, checkpoint_100 or run-100; {rename}{load}"
    )


def _no_checkpoint_text(listing: StepListing, root: str) -> str:
    """Return the text about a root without checkpoints, with advice."""
    check = "check the path, or save a step first"
    names = listing.names()
    if names:
        return f"it holds {listed(names)}, and no checkpoint; {check}"
    if parse_url(root) is None and kind_at(root) == "nothing":
        return f"there is no such directory; {check}"
    return f"it is empty; {check}"


@contextmanager
def _explaining(listing: StepListing, chosen: Mapping[str, Any]) -> Iterator[None]:
    """Raise errors of the disk again, with the step and an older step to restore instead.

    `restore` does not choose an older step by itself: the disk may work the next time.
    """
    try:
        yield
    except OSError as e:
        if e.errno not in DISK_ERRORS:
            raise
        step = chosen["step"]
        older = listing.newest(lambda each: each.step < step and each.whole)
        advice = "" if older is None else f"; restore({older.step}) loads the step before it"
        message = f"{e.strerror}: step {step} cannot be read from the disk{advice}"
        raise type(e)(e.errno, message, e.filename or chosen["path"]) from e


def _try(chosen: Mapping[str, Any], request: RestoreRequest) -> tuple[str, LoadedStep | None]:
    try:
        return "", load_step(chosen, request)
    except FileNotFoundError as e:
        return _MISSING + str(e), None
    except (CorruptionError, FormatError) as e:
        return _DAMAGED + str(e), None


def _judge(listing: StepListing, chosen: Mapping[str, Any], reports: Sequence[str]) -> str:
    """Return, on process 0, why another step must be tried; "" if all have loaded this one."""
    if not any(reports):
        return ""
    step = chosen["step"]
    current = listing.at(step)
    if current is None or not current.whole:
        return "it was deleted meanwhile"
    missing = [process for process, each in enumerate(reports) if each.startswith(_MISSING)]
    if missing and not reports[0]:
        raise ProcessError(
            f"{process_names(missing)} found nothing at {chosen['path']}, which process 0 has "
            "loaded: the steps must lie on a file system that all processes share"
        )
    process, report = next((i, each) for i, each in enumerate(reports) if each)
    text = report[1:]
    why = f"process {process}: {text}" if process else text
    listing.mark_damaged(step, why)
    return why


def missing_step_error(number: int, steps: Sequence[Step], *, root: str) -> Exception:
    """Return the error for a step that was requested by its number and cannot be loaded."""
    finished = [each.step for each in steps if each.finished]
    newest = f"the newest complete step is {finished[-1]}" if finished else "no step is complete"
    for each in steps:
        if each.step == number:
            return IncompleteCheckpointError(
                f"{each.path}: the save of step {number} did not finish; {newest}"
            )
    shown = ", ".join(map(str, finished[-_MAX_SHOWN:])) or "none"
    more = "... " if len(finished) > _MAX_SHOWN else ""
    return FileNotFoundError(
        errno.ENOENT, f"there is no step {number}; there are: {more}{shown}", root
    )


def _warn_unfinished(chosen: Mapping[str, Any]) -> None:
    for step, path in chosen["unfinished"]:
        _warn(
            f"{path}: the save of step {step} did not finish; it is passed over",
            frames=_TO_THE_CALLER + 1,
        )


def _warn(message: str, *, frames: int = _TO_THE_CALLER) -> None:
    warnings.warn(printable(message), RuntimeWarning, stacklevel=frames)
