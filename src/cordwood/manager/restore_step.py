"""Loads a step: the one that is asked for, or the newest that is whole.

All processes of a job load the same one: process 0 looks for it, and each says how it fared.
"""

from __future__ import annotations

import errno
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from cordwood.api.tree_preview import tree_lines
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    ProcessError,
)
from cordwood.field_docs import document_fields
from cordwood.formats.detect_format import indexed_format
from cordwood.formats.step_directories import listed, step_in_name
from cordwood.manager.foreign_steps import OtherCheckpoint
from cordwood.manager.load_step import LoadedStep, RestoreRequest, as_message, load_step
from cordwood.manager.step_listing import Step, StepListing
from cordwood.message_text import printable, shortened
from cordwood.processes.join_messages import process_names
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.open_files import DISK_ERRORS
from cordwood.storage.path_kind import kind_at
from cordwood.storage.urls import parse_url

_log = logging.getLogger("cordwood")

T = TypeVar("T")
_MAX_SHOWN = 10
_MAX_EXTRAS = 200  # characters in a repr
_TO_THE_CALLER = 4  # frames from a warning to whoever called `CheckpointManager.restore`
_NEWEST = b"(the newest)"
_DAMAGED, _MISSING = b"!", b"?"  # what begins the word of a process that could not load


@document_fields
class Restored(NamedTuple, Generic[T]):
    """A step that was loaded. Its repr shows shapes and dtypes, and no elements.

    Attributes:
        step: its number.
        tree: the tree, as `cordwood.load` returns it.
        metrics: the metrics that were given to `save`, by name; {} where there are none.
        extras: the JSON value that was given to `save`; None where there is none. Of a step of
            Orbax's: its JSON items, by their names.
        items: by name, the trees and other values that were asked for with `items=`. What has a
            state is not among them: that was set.
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


def restore_step(
    listing: StepListing, rendezvous: Rendezvous, number: int, wish: RestoreRequest, *, root: str
) -> LoadedStep:
    """Load one step and no other, as one of the processes of a rendezvous.

    Raises as `CheckpointManager.restore` does.
    """

    def find(asked: list[bytes]) -> bytes:
        _require_same(asked, root)
        step = listing.at(number)
        if step is None or not step.finished:
            raise missing_step_error(number, listing.steps(), root=root)
        step.require_known()
        return as_message(step)

    chosen = json.loads(rendezvous.exchange(str(number).encode(), find))
    with _explaining(listing, chosen):
        found = load_step(chosen, wish)
    rendezvous.exchange(b"", lambda _: b"")  # all have it
    return found


def restore_newest(
    listing: StepListing, rendezvous: Rendezvous, wish: RestoreRequest, *, root: str, required: bool
) -> LoadedStep | None:
    """Load the newest step that is whole, as one of the processes of a rendezvous.

    Warns of those that are passed over, and, where there is no step, of checkpoints that are no
    steps. None where no save has finished; that is an error with `required`. Raises as
    `CheckpointManager.restore` does.
    """
    damaged: dict[int, str] = {}

    def choose(asked: list[bytes]) -> bytes:
        _require_same(asked, root)
        return _choose(listing, damaged, root=root)

    while True:
        chosen = json.loads(rendezvous.exchange(_NEWEST, choose))
        for step, path, problem in chosen["damaged"]:
            damaged[step] = problem
            _warn(f"{path}: step {step} is passed over: {problem}")
        if "path" not in chosen:
            break
        with _explaining(listing, chosen):
            word, found = _try(chosen, wish)
        answer = rendezvous.exchange(word, partial(_judge, listing, chosen))
        if not answer:
            _warn_unfinished(chosen)
            return found
        if rendezvous.index:
            listing.mark_damaged(chosen["step"], answer.decode())
    _warn_unfinished(chosen)
    if damaged:
        lines = [f"  {number}: {damaged[number]}" for number in sorted(damaged)]
        raise CorruptionError(f"{root}: no step can be restored:\n" + "\n".join(lines))
    if required:
        raise FileNotFoundError(
            errno.ENOENT,
            f"there is no step to restore, and required=True asks for one: {chosen['nothing']}",
            root,
        )
    if chosen["others"]:
        _warn(f"{root}: nothing is restored, and {chosen['nothing']}")
    else:
        level = logging.DEBUG if rendezvous.index else logging.INFO
        _log.log(level, "nothing to restore in %s: %s", root, chosen["nothing"])
    return None


def _require_same(asked: Sequence[bytes], root: str) -> None:
    for process, step in enumerate(asked):
        if step != asked[0]:
            raise ProcessError(
                f"process {process} came to restore step {step.decode()} of {root}, process 0 step "
                f"{asked[0].decode()}: every process must restore the same step; steps() and "
                "best() may differ for a moment, while process 0 deletes: let it choose, and send "
                "its choice to the others (jax.experimental.multihost_utils.broadcast_one_to_all)"
            )


def _choose(listing: StepListing, known: Mapping[int, str], *, root: str) -> bytes:
    """Return, on process 0, the newest step that counts, and what is newer and does not."""
    found: dict[str, Any] = {"damaged": [], "unfinished": []}
    steps = listing.down_to(lambda step: step.whole)
    for each in steps:
        if each.whole:
            each.require_known()
            return json.dumps({**json.loads(as_message(each)), **found}).encode()
        if each.damaged and each.step not in known:
            why = "; ".join(filter(None, (each.problem, each.in_the_way)))
            found["damaged"].append((each.step, each.path, why))
        if listing.died(each):
            found["unfinished"].append((each.step, each.path))
    if not steps:
        _require_root(root)
    others = listing.others()
    found["others"] = bool(others)
    nothing = _named_otherwise(others, root) if others else _no_step(listing, root)
    found["nothing"] = printable(nothing, keep="")
    return json.dumps(found).encode()


def _require_root(root: str) -> None:
    """Raise for what steps cannot lie in, or were not meant to: to start anew is no answer then."""
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


def _named_otherwise(others: Sequence[OtherCheckpoint], root: str) -> str:
    """Return what to say of checkpoints that are not named as steps, and what to do."""
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


def _no_step(listing: StepListing, root: str) -> str:
    """Return what lies in a root without checkpoints, and what to do."""
    check = "check the path, or save a step first"
    names = listing.names()
    if names:
        return f"it holds {listed(names)}, and no checkpoint; {check}"
    if parse_url(root) is None and kind_at(root) == "nothing":
        return f"there is no such directory; {check}"
    return f"it is empty; {check}"


@contextmanager
def _explaining(listing: StepListing, chosen: Mapping[str, Any]) -> Iterator[None]:
    """Raise errors of the disk anew, with the step and the one to restore in its place.

    `restore` does not go back by itself then: the disk may give the step back the next time.
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


def _try(chosen: Mapping[str, Any], wish: RestoreRequest) -> tuple[bytes, LoadedStep | None]:
    try:
        return b"", load_step(chosen, wish)
    except FileNotFoundError as e:
        return _MISSING + str(e).encode("utf-8", "surrogatepass"), None
    except (CorruptionError, FormatError) as e:
        return _DAMAGED + str(e).encode("utf-8", "surrogatepass"), None


def _judge(listing: StepListing, chosen: Mapping[str, Any], words: Sequence[bytes]) -> bytes:
    """Return, on process 0, why another step is to be tried; b"" if all have loaded this one."""
    if not any(words):
        return b""
    step = chosen["step"]
    there = listing.at(step)
    if there is None or not there.whole:
        return b"it was deleted meanwhile"
    blind = [process for process, word in enumerate(words) if word.startswith(_MISSING)]
    if blind and not words[0]:
        raise ProcessError(
            f"{process_names(blind)} found nothing at {chosen['path']}, which process 0 has "
            "loaded: the steps must lie on a file system that all processes share"
        )
    process, word = next((process, word) for process, word in enumerate(words) if word)
    text = word[1:].decode("utf-8", "surrogatepass")
    why = f"process {process}: {text}" if process else text
    listing.mark_damaged(step, why)
    return why.encode("utf-8", "surrogatepass")


def missing_step_error(number: int, steps: Sequence[Step], *, root: str) -> Exception:
    """Return the error for a step that was asked for by its number and cannot be loaded."""
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
