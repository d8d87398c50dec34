"""Version 1 of Orbax's calls: `from orbax.checkpoint import v1 as ocp` with another import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cordwood.compat.orbax.args import Composite
from cordwood.compat.orbax.checkpointers import AsyncCheckpointer, Checkpointer
from cordwood.compat.orbax.experimental.v1 import training
from cordwood.compat.orbax.experimental.v1.checkpointables import (
    STATE,
    AsyncResponse,
    as_restore_arguments,
    as_save_arguments,
    stored_names,
)
from cordwood.compat.orbax.experimental.v1.training import CheckpointMetadata
from cordwood.compat.orbax.handlers import CompositeCheckpointHandler, PyTreeCheckpointHandler
from cordwood.compat.orbax.items_to_store import DEFAULT_ITEM
from cordwood.compat.orbax.stored_items import stored_items
from cordwood.storage.locations import parse_location

__all__ = [
    "PLACEHOLDER",
    "AsyncResponse",
    "CheckpointMetadata",
    "load",
    "load_checkpointables",
    "load_pytree",
    "metadata",
    "pytree_metadata",
    "save",
    "save_async",
    "save_checkpointables",
    "save_checkpointables_async",
    "save_pytree",
    "save_pytree_async",
    "training",
]

PLACEHOLDER = ...  # a leaf of a target that is not restored
_USUAL_NAMES = (STATE, "pytree")  # of the tree that is loaded if none is named


def save(
    path: str | os.PathLike[str],
    state: Any,
    *,
    overwrite: bool = False,
    custom_metadata: Any = None,
) -> None:
    """Save a tree, and wait for it.

    Args:
        path: the destination.
        state: the tree.
        overwrite: replace what is there, if it is a checkpoint, and no run.
        custom_metadata: not taken: save it as a checkpointable.

    Raises ValueError if there is something at `path`.
    """
    save_async(path, state, overwrite=overwrite, custom_metadata=custom_metadata).result()


def save_async(
    path: str | os.PathLike[str],
    state: Any,
    *,
    overwrite: bool = False,
    custom_metadata: Any = None,
) -> AsyncResponse:
    """Begin to save a tree; arguments as for `save`."""
    checkpointer = AsyncCheckpointer(PyTreeCheckpointHandler())
    checkpointer.save(path, state, force=overwrite, custom_metadata=custom_metadata)
    return AsyncResponse(checkpointer.wait_until_finished, None)


def save_checkpointables(
    path: str | os.PathLike[str],
    checkpointables: Mapping[str, Any],
    *,
    overwrite: bool = False,
    custom_metadata: Any = None,
) -> None:
    """Save several trees by name, and wait for them; arguments as for `save`."""
    response = save_checkpointables_async(
        path, checkpointables, overwrite=overwrite, custom_metadata=custom_metadata
    )
    response.result()


def save_checkpointables_async(
    path: str | os.PathLike[str],
    checkpointables: Mapping[str, Any],
    *,
    overwrite: bool = False,
    custom_metadata: Any = None,
) -> AsyncResponse:
    """Begin to save several trees by name; arguments as for `save`."""
    checkpointer = AsyncCheckpointer(CompositeCheckpointHandler())
    items = Composite(**as_save_arguments(checkpointables))
    checkpointer.save(path, args=items, force=overwrite, custom_metadata=custom_metadata)
    return AsyncResponse(checkpointer.wait_until_finished, None)


def load(
    path: str | os.PathLike[str],
    abstract_state: Any = None,
    *,
    checkpointable_name: str | None = None,
) -> Any:
    """Load a tree, also one that Orbax saved.

    Args:
        path: the checkpoint.
        abstract_state: a tree of `jax.ShapeDtypeStruct`s or arrays; None: as it was saved.
        checkpointable_name: the name of the tree; None: the only one.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: names or shapes differ.
    """
    candidates = [checkpointable_name]
    if checkpointable_name in (None, *_USUAL_NAMES):
        candidates += _USUAL_NAMES
    names = stored_items(parse_location(path), None).names
    name = next((each for each in candidates if each in names), checkpointable_name)
    if name in names or len(candidates) == 1:
        return load_checkpointables(path, {str(name): abstract_state})[str(name)]
    checkpointer = Checkpointer(PyTreeCheckpointHandler())
    return checkpointer.restore(path, args=as_restore_arguments(abstract_state))


def load_checkpointables(
    path: str | os.PathLike[str], abstract_checkpointables: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Load several trees by name.

    Args:
        path: the checkpoint.
        abstract_checkpointables: targets by name, None for a tree as it was saved; None: all.
    """
    names = stored_items(parse_location(path), None).names
    targets = abstract_checkpointables or dict.fromkeys(
        [STATE if name == DEFAULT_ITEM else name for name in names]
    )
    stored = stored_names(targets, names)
    requests = {stored[name]: as_restore_arguments(target) for name, target in targets.items()}
    loaded = Checkpointer(CompositeCheckpointHandler()).restore(path, args=Composite(**requests))
    return {name: loaded[stored[name]] for name in targets}


def metadata(path: str | os.PathLike[str]) -> CheckpointMetadata:
    """Return shapes and dtypes of the tree of a checkpoint."""
    stored = Checkpointer(PyTreeCheckpointHandler()).metadata(path)
    return CheckpointMetadata(None, path, stored.item_metadata)


save_pytree, save_pytree_async, load_pytree, pytree_metadata = save, save_async, load, metadata
