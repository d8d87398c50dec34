"""The checkpoints in the root of a run that are not steps."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.list_steps import steps_in
from cordwood.formats.load_format import run_reader_of
from cordwood.formats.place import Place
from cordwood.formats.step_names import sorted_steps, step_in_name
from cordwood.formats.table import DEFAULT, run_formats
from cordwood.formats.tool_steps import missing_files_note
from cordwood.loading.detect_checkpoint import detect_checkpoint
from cordwood.message_text import listed
from cordwood.storage.locations import LocalPath
from cordwood.storage.step_storage import StepEntry, StepStorage

_MAX_DETECTED = 1000  # entries of a root without steps
_MAX_OTHERS = 100
_DIGIT = re.compile(r"[0-9]")


class OtherCheckpoint(NamedTuple):
    """An entry of a root that is a checkpoint, or is named like one, but is not named as a step."""

    name: str
    format: str  # as `cordwood.detect` returns it; "" if only the name suggests it
    description: str = ""  # in words


def other_checkpoints(storage: StepStorage, *, steps: Collection[str]) -> list[OtherCheckpoint]:
    """Return the checkpoints in a root that managers do not treat as steps.

    These are the entries that `detect` recognises, whatever their names, and entries with names
    that look like steps, such as `ckpt_20`.

    Args:
        storage: the root.
        steps: the names of the entries that are steps, which are left out.
    """
    entries = storage.entries(lambda name: name not in steps)
    numbered = sorted_steps(entries, extra=[name for name in entries if _DIGIT.search(name)])
    names = [*numbered, *sorted(entries.keys() - set(numbered))]
    others = []
    for name in names[:_MAX_DETECTED]:
        place = Place(storage.location_of(name), directory=storage.directory(name))
        other = _other(name, place, entries[name])
        if other is not None:
            others.append(other)
        if len(others) == _MAX_OTHERS:
            break
    return others


def _other(name: str, place: Place, entry: StepEntry) -> OtherCheckpoint | None:
    """Return an entry of a root as a checkpoint; None if it is not one."""
    if any(run_reader_of(format).is_unfinished_name(name) for format in run_formats()):
        return None
    format, description = "", ""
    with suppress(OSError, CordwoodError):
        if isinstance(place.location, LocalPath):
            format, description = detect_checkpoint(place.location)[:2]
        elif entry.stamp is not None:
            format, description = DEFAULT.name, DEFAULT.description
        elif place.directory is not None:
            detected = format_in(place)
            steps = [] if detected is not None else steps_in(place)
            if detected is not None:
                format, description = detected.name, detected.description
            elif steps:
                format, description = "steps", f"a directory of steps: {listed(steps)}"
    if not format:
        is_named = step_in_name(name) is None and bool(sorted_steps([name]))
        return (
            OtherCheckpoint(name, "") if is_named and not (entry.is_file and "." in name) else None
        )
    if step_in_name(name) is not None:
        description += missing_files_note(format)
    return OtherCheckpoint(name, format, description)
