"""What other tools have saved: steps of a run that moves over, and checkpoints that are none."""

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
# What eFormer writes last: its Checkpointer, and its AsyncCheckpointManager alone.
_EFORMER_LAST = ("metadata.json", "checkpoint_metadata.json")
_MAX_JSON_BYTES = 1 << 20
_MAX_LOOKED_AT = 1000  # entries of a root without steps
_MAX_OTHERS = 100


class ForeignStep(NamedTuple):
    """A step of another tool."""

    step: int
    tool: str
    format: str | None  # of a file, as `cordwood.load` takes it
    saved: SavedStep | None = None  # what the tool noted of it; None: nothing


def foreign_step(name: str, path: str, *, is_file: bool) -> ForeignStep | None:
    """Return what lies at a path that is named like a step; None: no step of another tool.

    Args:
        name: its name in the root: `100` (Orbax, or a `cordwood.save`), `checkpoint_100` (Flax),
            `run-100` (eFormer).
        path: where it lies.
        is_file: a file, and no directory.
    """
    found = STEP_ENTRY.fullmatch(name)
    if found is None or parse_url(path) is not None:
        return None
    prefix, step = found[1], int(found[2])
    if is_file:
        return ForeignStep(step, "Flax", "msgpack") if prefix == "checkpoint_" else None
    try:
        layout = format_of(path, format=None, prefix=None).name
        saved = _noted_by_orbax(path, step) if layout == ORBAX.name else None
        if prefix == "run-":
            with LocalDirectory(path) as directory:
                if not any(directory.has(name) for name in _EFORMER_LAST):
                    return None  # its save has not finished
    except (OSError, CordwoodError):
        return None
    tools = {"packs": "cordwood.save", "zarr": "eFormer"}
    return ForeignStep(step, tools.get(layout, layout), None, saved)


def _noted_by_orbax(path: str, step: int) -> SavedStep | None:
    """Return the time and the metrics that Orbax's CheckpointManager noted; None: no metrics.

    They lie in `metrics/metrics`, as JSON, and the time of the commit in `_CHECKPOINT_METADATA`.
    What is not a number, or is too large for a float, is left out.
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
    """Return an object of JSON; {} where there is none."""
    try:
        data = directory.read(name, limit_bytes=_MAX_JSON_BYTES)
        found = parse_json(data.decode(), name, allow_nan=True)
    except (OSError, CordwoodError, UnicodeDecodeError):
        return {}
    return found if type(found) is dict else {}


class OtherCheckpoint(NamedTuple):
    """An entry of a root that is a checkpoint, or is named like one, and not named as a step."""

    name: str
    format: str  # as `cordwood.detect` has it; "" where only its name tells
    description: str = ""  # in words


def other_checkpoints(place: StepStorage, *, steps: Collection[str]) -> list[OtherCheckpoint]:
    """Return the checkpoints in a root that no manager takes for steps.

    These are the entries that `detect` recognises, whatever their names, and those that are named
    like steps in some other way, such as `ckpt_20`.

    Args:
        place: the root.
        steps: the names of the entries that are steps, which are left out.
    """
    lying = place.entries(lambda name: name not in steps, stamps=False)
    numbered = sorted_steps(lying, known=[name for name in lying if _DIGIT.search(name)])
    names = [*numbered, *sorted(lying.keys() - set(numbered))]
    found = []
    for name in names[:_MAX_LOOKED_AT]:
        other = _other(name, place.path_of(name), lying[name])
        if other is not None:
            found.append(other)
        if len(found) == _MAX_OTHERS:
            break
    return found


def _other(name: str, path: str, entry: StepEntry) -> OtherCheckpoint | None:
    """Return what an entry is; None where it is no checkpoint."""
    if is_unfinished(name):
        return None
    if parse_url(path) is not None:
        there = entry.stamp is not None
        return OtherCheckpoint(name, DEFAULT.name, DEFAULT.description) if there else None
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
