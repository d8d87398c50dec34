"""Refusals of a copy to a place that holds another run or another step."""

from __future__ import annotations

import shlex
from contextlib import suppress

from cordwood.errors import FormatError, NotACheckpointError, StepError, UnsupportedFormatError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.detect_format import format_of
from cordwood.formats.load_format import records_of, storage_of
from cordwood.formats.place import Place
from cordwood.formats.step_names import sorted_steps, step_in_name
from cordwood.formats.table import DEFAULT
from cordwood.message_text import listed
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import blocking_parent, kind_at, last_name
from cordwood.storage.storage_protocol import Storage


def is_directory_of_steps(source: Location, store: Storage) -> bool:
    """Return True for a directory of steps, False for a checkpoint that can be copied."""
    if store.read_index() is not None:
        return False
    if isinstance(source, LocalPath) and kind_at(source) == "a folder":
        other = format_in(Place(source))
        if other is not None:
            refuse_format(source, other.name)
    if any(step_in_name(name) is not None for name in store.names()):
        return True
    if isinstance(source, LocalPath):
        format_of(source, format=None, prefix=None)  # raises
    storage_of(DEFAULT).require_index(store)  # raises
    return False


def refuse_file(source: Location, destination: Location) -> None:
    """Raise NotACheckpointError for a directory that would be copied onto a file, or below one."""
    if not isinstance(destination, LocalPath):
        return
    file = destination.text if kind_at(destination) == "a file" else blocking_parent(destination)
    if file is not None:
        raise NotACheckpointError(
            f"{file} is a file, and {source} is a directory: copy it to a directory, or to a path "
            "where nothing is"
        )


def refuse_format(path: LocalPath, format: str) -> None:
    """Raise UnsupportedFormatError for a checkpoint that cannot be copied file by file."""
    raise UnsupportedFormatError(
        f"{path} is of the format {format!r}: copy takes directories of the format 'packs', and "
        "single files; cordwood.convert (cordwood convert) writes a directory of packs of it"
    )


def _recorded_step(source: Location) -> int | None:
    """Return the number of a step that a manager has saved; None for another checkpoint."""
    storage = storage_of(DEFAULT)
    index = storage.require_index(storage.store_at(source))
    record = None
    with suppress(FormatError):  # not a manager's
        record = records_of(DEFAULT).read_record(index, name=str(source))
    return None if record is None else record.step


def refuse_other_step(source: Location, destination: Location) -> None:
    """Raise StepError if a manager would take the copy of a step for another step."""
    number = step_in_name(last_name(str(destination)))
    step = _recorded_step(source)
    if number is not None and step is not None and step != number:
        raise StepError(
            f"{source} is step {step} of a CheckpointManager, and would be taken for step "
            f"{number} at {destination}: copy it to a path that ends in {step}, or convert it"
        )


def refuse_run(source: Location, destination: Location, target: Storage) -> None:
    """Raise NotACheckpointError for a checkpoint that would be copied onto a directory of steps."""
    if target.read_index() is not None:
        return
    steps = [name for name in sorted_steps(target.names()) if step_in_name(name) is not None]
    if not steps:
        return
    step = _recorded_step(source)
    last = last_name(str(source))
    name = str(step) if step is not None else last if step_in_name(last) is not None else "STEP"
    command = shlex.join(["cordwood", "copy", str(source), f"{destination}/{name}"])
    raise NotACheckpointError(
        f"{destination} is a directory of steps ({listed(steps)}), and {source} is one checkpoint: "
        f"copy it to a step there: {command}"
    )
