"""Steps that other tools have saved: which they are, and the items beside their trees."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from cordwood.api.detect import detect
from cordwood.api.load import load
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError, CorruptionError, FormatError, LimitError, MismatchError
from cordwood.formats.detect_format import format_of
from cordwood.formats.format_protocol import has_runs, item_names
from cordwood.formats.orbax import ORBAX
from cordwood.formats.orbax.locate_trees import (
    JAX_KEY,
    JSON,
    NUMPY_KEY,
    STATES,
    TREE,
    is_unfinished,
)
from cordwood.formats.registry import DEFAULT
from cordwood.formats.step_names import parse_step_name, sorted_steps, step_in_name
from cordwood.formats.zarr import ZARR
from cordwood.manager.step_items import is_stateful
from cordwood.policies import SavedStep
from cordwood.storage.directory_reader import LocalDirectory
from cordwood.storage.paths import parse_url
from cordwood.storage.step_storage import StepEntry, StepStorage

_log = logging.getLogger("cordwood")

_DIGIT = re.compile(r"[0-9]")
# The files that eFormer writes last: its Checkpointer, and its AsyncCheckpointManager alone.
_EFORMER_LAST = ("metadata.json", "checkpoint_metadata.json")
_MAX_METRICS_BYTES = 1 << 20
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
    parsed = parse_step_name(name)
    if parsed is None or not parsed.is_entry or parse_url(path) is not None:
        return None
    word, step, _ = parsed
    if is_file:
        return ForeignStep(step, "Flax", "msgpack") if word == "checkpoint_" else None
    try:
        layout = format_of(path, format=None, prefix=None).name
        saved = _metrics_of_orbax(path, step) if layout == ORBAX.name else None
        if word == "run-":
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
        metrics = _json_object(directory, "metrics/metrics")
        about = _json_object(directory, "_CHECKPOINT_METADATA")
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


def _json_object(directory: LocalDirectory, name: str) -> dict[str, Any]:
    """Return a JSON object from a file; {} if there is none."""
    try:
        data = directory.read(name, limit_bytes=_MAX_METRICS_BYTES)
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


# Items beside the tree in steps of other tools: JSON, random keys, states of iterators.
#
# <step>/<item>/_METADATA                     Orbax: a tree
# <step>/<item>/metadata                      Orbax's JsonSave: a file of JSON
# <step>/metrics/metrics                      Orbax's CheckpointManager: the metrics, as JSON
# <step>/<item>/jax_random_key/               Orbax's JaxRandomKeySave: an array, and beside it
# <step>/<item>/jax_random_key_metadata/metadata      {"typed": true} for a typed key
# <step>/<item>/np_random_key/                Orbax's NumpyRandomKeySave: a tree
# <step>/<item>/process_0-of-2.json           Grain's CheckpointSave: the state of each process


_MAX_JSON_BYTES = 1 << 28
_METRICS = "metrics"  # the item of Orbax's CheckpointManager itself


def foreign_items(path: str) -> dict[str, str]:
    """Return the items of a step of another tool, each with its kind in words."""
    format = format_of(path, format=None, prefix=None)
    items = {name: TREE for name in item_names(format, path) if name}
    if has_runs(format):
        items.update(format.other_items(path))
    return items


def foreign_extras(path: str) -> dict[str, Any] | None:
    """Return the JSON items of a step of Orbax by their names; None if there are none.

    An item that is not JSON, whatever its name, is left out and logged: the caller did not ask for
    it, and the tree is complete without it.
    """
    extras = {}
    for name, kind in foreign_items(path).items():
        if kind == JSON and name != _METRICS:
            try:
                extras[name] = _json_item(path, name)
            except (CorruptionError, FormatError, LimitError) as e:
                _log.warning("%s: the item %r is left out of extras: %s", path, name, e)
    return extras or None


def load_foreign_item(
    path: str,
    name: str,
    item: Any,
    options: Mapping[str, Any],
    *,
    process: int,
    count: int,
) -> Any:
    """Return an item of a step of another tool.

    Args:
        path: the path of the step.
        name: the name of the item, from `foreign_items`.
        item: its target: an object with a state, a tree as `like` is one, or None.
        options: as in `cordwood.load`, for a tree.
        process: the number of this process.
        count: the number of processes, which have a state each.

    Raises MismatchError if the item is of another kind.
    """
    kind = foreign_items(path)[name]
    if kind == JSON:
        return _json_item(path, name)
    if kind == STATES:
        return _state_of_grain(path, name, item, process=process, count=count)
    if kind == JAX_KEY:
        return _key(path, name, item)
    if kind == NUMPY_KEY:
        key = load(f"{path}/{name}/np_random_key", to="numpy")
        legacy = _json(path, f"{name}/np_random_key_metadata/metadata").get("legacy")
        return tuple(key) if legacy else key
    if kind != TREE:
        raise MismatchError(f"{path}: the item {name!r} is {kind}: read it with what wrote it")
    return load(path, None if is_stateful(item) else item, prefix=name, **options)


def _state_of_grain(path: str, name: str, item: Any, *, process: int, count: int) -> Any:
    """Return the state that Grain saved for this process: bytes for its loaders, else JSON."""
    if not is_stateful(item) and item is not None:
        raise MismatchError(
            f"{path}: the item {name!r} holds the states of an iterator: give the iterator, which "
            "has get_state and set_state, or None for the state itself"
        )
    file = f"process_{process}-of-{count}.json"
    with LocalDirectory(path) as directory:
        names = sorted(directory.sizes(name))
        if file not in names:
            raise MismatchError(
                f"{path}: the item {name!r} has {', '.join(names)}, and no {file}: it was saved by "
                "another number of processes; restore without it, and set it yourself"
            )
        data = directory.read(f"{name}/{file}", limit_bytes=_MAX_JSON_BYTES)
    if hasattr(item, "get_state") and isinstance(item.get_state(), bytes):
        return data
    return _parsed(data, f"{path}/{name}/{file}")


def _key(path: str, name: str, item: Any) -> Any:
    """Return a random key of jax; a typed one has the implementation of `item`."""
    import jax

    loaded = load(f"{path}/{name}/jax_random_key", to="jax")
    (data,) = loaded.values() if isinstance(loaded, dict) else (loaded,)
    if not _json(path, f"{name}/jax_random_key_metadata/metadata").get("typed"):
        return data
    is_key = str(getattr(item, "dtype", "")).startswith("key<")
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(item) if is_key else None)


def _json_item(path: str, name: str) -> Any:
    """Return a JSON item, from the file `metadata` or else from the file named as the item."""
    with LocalDirectory(path) as directory:
        names = directory.sizes(name)
    return _json(path, f"{name}/metadata" if "metadata" in names else f"{name}/{name}")


def _json(path: str, name: str) -> Any:
    with LocalDirectory(path) as directory:
        data = directory.read(name, limit_bytes=_MAX_JSON_BYTES)
    return _parsed(data, f"{path}/{name}")


def _parsed(data: bytes, where: str) -> Any:
    try:
        return parse_json(data.decode(), where, allow_nan=True)
    except UnicodeDecodeError as e:
        raise FormatError(f"{where} is not UTF-8 at byte {e.start}") from e
