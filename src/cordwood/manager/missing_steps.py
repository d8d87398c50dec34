"""The errors and texts about steps that do not exist, and about a root that has none."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress

from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.detect_directory import indexed_format
from cordwood.formats.place import place_at
from cordwood.formats.step_names import step_in_name
from cordwood.manager.other_checkpoints import OtherCheckpoint
from cordwood.manager.step import Step
from cordwood.manager.steps import Steps
from cordwood.message_text import listed, printable
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import kind_at

_MAX_SHOWN = 10  # numbers of steps


def finished_step(steps: Steps, number: int) -> Step:
    """Return the finished step of a number. Raises the error of a missing or unfinished step."""
    step = steps.at(number)
    if step is not None and step.finished:
        return step
    raise missing_step_error(steps, number)


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


def require_root(root: Location) -> None:
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
