"""Loads a step: the one that is asked for, or the newest that is whole.

All processes of a job load the same one: process 0 looks for it, and each says how it fared.
"""

from __future__ import annotations

import errno
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from cordwood.api.casting import Cast
from cordwood.api.layouts import by_index
from cordwood.api.load import load
from cordwood.api.match import Extra, Missing
from cordwood.api.steps import listed, sorted_steps
from cordwood.engine.folders import names_in, subfolders
from cordwood.engine.meeting import Meeting, named
from cordwood.engine.presence import is_folder, what_is_at
from cordwood.engine.urls import parse_url
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    ProcessError,
)
from cordwood.manager.foreign import number_in
from cordwood.manager.listing import Listing, Step
from cordwood.manager.records import Record, decode_record, encode_record
from cordwood.manager.stateful import require_items
from cordwood.plan.patterns import Select
from cordwood.sharding.rules import Rules

__all__ = [
    "LoadOptions",
    "Loaded",
    "Restored",
    "Wish",
    "no_such_step",
    "restore_newest",
    "restore_step",
]

T = TypeVar("T")
_MAX_SHOWN = 10
_TO_THE_CALLER = 4  # frames from a warning to whoever called `CheckpointManager.restore`
_NEWEST = b"(the newest)"
_DAMAGED, _MISSING = b"!", b"?"  # what begins the word of a process that could not load


class Restored(NamedTuple, Generic[T]):
    """A step that was loaded."""

    step: int
    tree: T
    metrics: dict[str, float]
    extras: Any  # as they were given to `save`: JSON


class Loaded(NamedTuple):
    """A step that was loaded, and all that is beside its tree."""

    step: int
    path: str
    tree: Any
    record: Record | None


class LoadOptions(TypedDict, total=False):
    """What `cordwood.load` may be told of where a tree is to go, and of what may differ."""

    mesh: Any
    rules: Rules | None
    shardings: Any
    strict: bool
    cast: bool | Cast
    select: Select | None
    rename: Mapping[str, str] | None
    missing: Missing
    extra: Extra


class Wish(NamedTuple):
    """What is asked of a step, whichever it is."""

    like: Any
    items: Collection[str]  # the names of those that it must have
    options: LoadOptions


def restore_step(
    listing: Listing, meeting: Meeting, number: int, wish: Wish, *, root: str
) -> Loaded:
    """Load one step and no other, as one of the processes of a meeting.

    Raises as `CheckpointManager.restore` does.
    """

    def find(asked: list[bytes]) -> bytes:
        _require_same(asked, root)
        step = listing.at(number)
        if step is None or not step.finished:
            raise no_such_step(number, listing.steps(), root=root)
        step.require_known()
        return _as_bytes(step)

    chosen = json.loads(meeting.round(str(number).encode(), find))
    tree = _load(chosen, wish)
    meeting.round(b"", lambda _: b"")  # all have it
    return _loaded(chosen, tree)


def restore_newest(listing: Listing, meeting: Meeting, wish: Wish, *, root: str) -> Loaded | None:
    """Load the newest step that is whole, as one of the processes of a meeting.

    Warns of those that are passed over. None where no save has finished. Raises as
    `CheckpointManager.restore` does.
    """
    damaged: dict[int, str] = {}

    def choose(asked: list[bytes]) -> bytes:
        _require_same(asked, root)
        return _choose(listing, damaged, root=root)

    while True:
        chosen = json.loads(meeting.round(_NEWEST, choose))
        for step, path, problem in chosen["damaged"]:
            damaged[step] = problem
            _warn(f"{path}: step {step} is passed over: {problem}")
        if "path" not in chosen:
            break
        word, tree = _try(chosen, wish)
        answer = meeting.round(word, partial(_judge, listing, chosen))
        if not answer:
            _warn_unfinished(chosen)
            return _loaded(chosen, tree)
        if meeting.index:
            listing.mark_damaged(chosen["step"], answer.decode())
    _warn_unfinished(chosen)
    if damaged:
        lines = [f"  {number}: {damaged[number]}" for number in sorted(damaged)]
        raise CorruptionError(f"{root}: no step can be restored:\n" + "\n".join(lines))
    if chosen["others"]:
        _warn(
            f"{root}: nothing is restored, and there are {listed(chosen['others'])}: steps are "
            "named 100, checkpoint_100 or run-100; rename those, or link to them by such names"
        )
    return None


def _require_same(asked: Sequence[bytes], root: str) -> None:
    for process, step in enumerate(asked):
        if step != asked[0]:
            raise ProcessError(
                f"process {process} came to restore step {step.decode()} of {root}, process 0 step "
                f"{asked[0].decode()}: every process must restore the same step"
            )


def _choose(listing: Listing, known: Mapping[int, str], *, root: str) -> bytes:
    """On process 0: the newest step that counts, and what is newer and does not."""
    found: dict[str, Any] = {"damaged": [], "unfinished": []}
    steps = listing.down_to(lambda step: step.whole)
    for each in steps:
        if each.whole:
            each.require_known()
            return json.dumps({**json.loads(_as_bytes(each)), **found}).encode()
        if each.damaged and each.step not in known:
            why = "; ".join(filter(None, (each.problem, each.in_the_way)))
            found["damaged"].append((each.step, each.path, why))
        if listing.died(each):
            found["unfinished"].append((each.step, each.path))
    if not steps:
        _require_root(root)
    found["others"] = _others(root)
    return json.dumps(found).encode()


def _require_root(root: str) -> None:
    """Raise for what steps cannot lie in, or were not meant to: to start anew is no answer then."""
    if parse_url(root) is not None:
        return
    what = what_is_at(root)
    if what in ("a file", "something else"):
        raise NotADirectoryError(
            errno.ENOTDIR, f"expected the directory that steps lie in, found {what}", root
        )
    layout = by_index(Path(root)) if what == "a folder" else None
    if layout is not None:
        raise ValueError(
            f"{root} is a checkpoint itself ({layout.description}): expected the directory that "
            f"steps lie in, perhaps {Path(root).parent}"
        )


def _others(root: str) -> list[str]:
    """What is named like a step in some other way; a file like those that Flax writes."""
    if parse_url(root) is not None or not is_folder(root):
        return []
    folders = subfolders(root)
    lying = [name for name in names_in(root) if name in folders or "." not in name]
    return [name for name in sorted_steps(lying) if number_in(name) is None]


def _load(chosen: Mapping[str, Any], wish: Wish) -> Any:
    if wish.items:
        record = _loaded(chosen, None).record
        require_items(wish.items, {} if record is None else record.items, path=chosen["path"])
    return load(chosen["path"], wish.like, format=chosen["format"], **wish.options)


def _try(chosen: Mapping[str, Any], wish: Wish) -> tuple[bytes, Any]:
    try:
        return b"", _load(chosen, wish)
    except FileNotFoundError as e:
        return _MISSING + str(e).encode("utf-8", "surrogatepass"), None
    except (CorruptionError, FormatError) as e:
        return _DAMAGED + str(e).encode("utf-8", "surrogatepass"), None


def _judge(listing: Listing, chosen: Mapping[str, Any], words: Sequence[bytes]) -> bytes:
    """On process 0, of how all fared: nothing if well, else why another step is to be tried."""
    if not any(words):
        return b""
    step = chosen["step"]
    there = listing.at(step)
    if there is None or not there.whole:
        return b"it was deleted meanwhile"
    blind = [process for process, word in enumerate(words) if word.startswith(_MISSING)]
    if blind and not words[0]:
        raise ProcessError(
            f"{named(blind)} found nothing at {chosen['path']}, which process 0 has loaded: the "
            "steps must lie on a file system that all processes share"
        )
    process, word = next((process, word) for process, word in enumerate(words) if word)
    text = word[1:].decode("utf-8", "surrogatepass")
    why = f"process {process}: {text}" if process else text
    listing.mark_damaged(step, why)
    return why.encode("utf-8", "surrogatepass")


def _as_bytes(step: Step) -> bytes:
    record = None if step.record is None else encode_record(step.record)
    found = {"step": step.step, "path": step.path, "format": step.format, "record": record}
    return json.dumps(found).encode()


def _loaded(chosen: Mapping[str, Any], tree: Any) -> Loaded:
    text = chosen["record"]
    record = None if text is None else decode_record(text, chosen["path"])
    return Loaded(chosen["step"], chosen["path"], tree, record)


def no_such_step(number: int, steps: Sequence[Step], *, root: str) -> Exception:
    """Why a step that was asked for by its number cannot be had."""
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
    warnings.warn(message, RuntimeWarning, stacklevel=frames)
