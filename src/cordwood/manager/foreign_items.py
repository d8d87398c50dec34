"""Items beside the tree in steps of other tools: JSON, random keys, states of iterators.

<step>/<item>/_METADATA                     Orbax: a tree
<step>/<item>/metadata                      Orbax's JsonSave: a file of JSON
<step>/metrics/metrics                      Orbax's CheckpointManager: the metrics, as JSON
<step>/<item>/jax_random_key/               Orbax's JaxRandomKeySave: an array, and beside it
<step>/<item>/jax_random_key_metadata/metadata      {"typed": true} for a typed key
<step>/<item>/np_random_key/                Orbax's NumpyRandomKeySave: a tree
<step>/<item>/process_0-of-2.json           Grain's CheckpointSave: the state of each process
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cordwood.api.load import load
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CorruptionError, FormatError, LimitError, MismatchError
from cordwood.formats.detect_format import format_of
from cordwood.formats.format_protocol import has_runs
from cordwood.formats.orbax.locate_trees import JAX_KEY, JSON, NUMPY_KEY, STATES, TREE
from cordwood.manager.step_items import is_stateful
from cordwood.storage.directory_reader import LocalDirectory

_log = logging.getLogger("cordwood")

_MAX_JSON_BYTES = 1 << 28
_METRICS = "metrics"  # the item of Orbax's CheckpointManager itself


def foreign_items(path: str) -> dict[str, str]:
    """Return the items of a step of another tool, each with its kind in words."""
    format = format_of(path, format=None, prefix=None)
    items = {name: TREE for name in format.items(path) if name}
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
