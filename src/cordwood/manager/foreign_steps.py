"""Steps that other tools have saved, and checkpoints in a root that are not steps."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from cordwood.api.detect import detect
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError
from cordwood.formats.detect_format import format_of
from cordwood.formats.orbax.format import ORBAX
from cordwood.formats.orbax.locate_trees import is_unfinished
from cordwood.formats.registry import DEFAULT
from cordwood.formats.step_directories import STEP_ENTRY, sorted_steps, step_in_name
from cordwood.formats.zarr.format import ZARR
from cordwood.manager.keep_policies import SavedStep
from cordwood.storage.directory_reader import LocalDirectory
from cordwood.storage.step_storage import StepEntry, StepStorage
from cordwood.storage.urls import parse_url

_DIGIT = re.compile(r"[0-9]")
# The files that eFormer writes last: its Checkpointer, and its AsyncCheckpointManager alone.
_EFORMER_LAST = ("metadata.json", "checkpoint_metadata.json")
_MAX_JSON_BYTES = 1 << 20
_MAX_DETECTED = 1000  # entries of a root without steps
_MAX_OTHERS = 100


class ForeignStep(NamedTuple):
    """A step of another tool."""

    step: int
    tool: str
    format: str | None  # of a file, as `cordwood.load` takes it
    saved: SavedStep | None = None  # the metrics that the tool saved; None: none


def foreign_step(name: str, path: str, *, is_file: bool) -> ForeignStep | None:
    """Return the step of another tool at a path that is named as a step; None if there is none.

    Args:
        name: its name in the root: `100` (Orbax, or a `cordwood.save`), `checkpoint_100` (Flax),
            `run-100` (eFormer).
        path: its path.
        is_file: True for a file, False for a directory.
    """
    match = STEP_ENTRY.fullmatch(name)
    if match is None or parse_url(path) is not None:
        return None
    prefix, step = match[1], int(match[2])
    if is_file:
        return ForeignStep(step, "Flax", "msgpack") if prefix == "checkpoint_" else None
    try:
        layout = format_of(path, format=None, prefix=None).name
        saved = _metrics_of_orbax(path, step) if layout == ORBAX.name else None
        if prefix == "run-":
            with LocalDirectory(path) as directory:
                if not any(directory.has(name) for name in _EFORMER_LAST):
                    return None  # its save has not finished
    except (OSError, CordwoodError):
        return None
    tools = {"packs": "cordwood.save", "zarr": "eFormer"}
    return ForeignStep(step, tools.get(layout, layout), None, saved)


def _metrics_of_orbax(path: str, step: int) -> SavedStep | None:
    """Return the time and the metrics that Orbax's CheckpointManager saved; None: no metrics.

    The metrics are in `metrics/metrics`, as JSON; the time of the commit is in
    `_CHECKPOINT_METADATA`. A value that is not a number, or is too large for a float, is left out.
    """
    with LocalDirectory(path) as directory:
        metrics = _json(directory, "metrics/metrics")
        about = _json(directory, "_CHECKPOINT_METADATA")
    every = {name: _as_float(value) for name, value in metrics.items()}
    numbers = {name: number for name, number in every.items() if number is not None}
    nanoseconds = _as_float(about.get("commit_timestamp_nsecs"))
    return SavedStep(step, (nanoseconds or 0.0) / 1e9, numbers) if numbers else None


def _as_float(value: Any) -> float | None:
    """Return a number as a float; None for anything else."""
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _json(directory: LocalDirectory, name: str) -> dict[str, Any]:
    """Return a JSON object from a file; {} if there is none."""
    try:
        data = directory.read(name, limit_bytes=_MAX_JSON_BYTES)
        value = parse_json(data.decode(), name, allow_nan=True)
    except (OSError, CordwoodError, UnicodeDecodeError):
        return {}
    return value if type(value) is dict else {}


class OtherCheckpoint(NamedTuple):
    """An entry of a root that is a checkpoint, or is named like one, but is not named as a step."""

    name: str
    format: str  # as `cordwood.detect` returns it; "" if only the name suggests it
    description: str = ""  # in words


def other_checkpoints(place: StepStorage, *, steps: Collection[str]) -> list[OtherCheckpoint]:
    """Return the checkpoints in a root that managers do not treat as steps.

    These are the entries that `detect` recognises, whatever their names, and entries with names
    that look like steps, such as `ckpt_20`.

    Args:
        place: the root.
        steps: the names of the entries that are steps, which are left out.
    """
    entries = place.entries(lambda name: name not in steps, stamps=False)
    numbered = sorted_steps(entries, extra=[name for name in entries if _DIGIT.search(name)])
    names = [*numbered, *sorted(entries.keys() - set(numbered))]
    others = []
    for name in names[:_MAX_DETECTED]:
        other = _other(name, place.path_of(name), entries[name])
        if other is not None:
            others.append(other)
        if len(others) == _MAX_OTHERS:
            break
    return others


def _other(name: str, path: str, entry: StepEntry) -> OtherCheckpoint | None:
    """Return an entry of a root as a checkpoint; None if it is not one."""
    if is_unfinished(name):
        return None
    if parse_url(path) is not None:
        is_checkpoint = entry.stamp is not None
        return OtherCheckpoint(name, DEFAULT.name, DEFAULT.description) if is_checkpoint else None
    try:
        format, description = detect(path)[:2]
    except (OSError, CordwoodError):
        is_named = step_in_name(name) is None and bool(sorted_steps([name]))
        return (
            OtherCheckpoint(name, "") if is_named and not (entry.is_file and "." in name) else None
        )
    if format == ZARR.name and step_in_name(name) is not None:
        description += f", without the {_EFORMER_LAST[0]} that eFormer writes last"
    return OtherCheckpoint(name, format, description)
