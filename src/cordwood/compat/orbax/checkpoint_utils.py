"""Functions for restores, with the names of `orbax.checkpoint.checkpoint_utils`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cordwood.compat.orbax.leaf_metadata import ArrayMetadata, ScalarMetadata, StringMetadata
from cordwood.compat.orbax.restore_arguments import ArrayRestoreArgs, RestoreArgs
from cordwood.manager.step_reader import StepReader

__all__ = ["checkpoints_iterator", "construct_restore_args"]


def construct_restore_args(
    target: Any, sharding_tree: Any = None, set_global_shape: bool = True, strict: bool = True
) -> Any:
    """Return a tree of `RestoreArgs` that restores leaves like those of a target.

    Args:
        target: a tree of arrays, `jax.ShapeDtypeStruct`s, numbers, or metadata.
        sharding_tree: the shardings of jax arrays; None: those of the target.
        set_global_shape: True to restore arrays in the shapes of the target.
        strict: False to pad or cut arrays of another shape.
    """
    import jax

    def arguments_of(leaf: Any, sharding: Any) -> RestoreArgs:
        if isinstance(leaf, ScalarMetadata):
            types = {"b": bool, "i": int, "u": int, "c": complex}
            return RestoreArgs(types.get(leaf.dtype.kind, float), leaf.dtype)
        if isinstance(leaf, StringMetadata | str) or leaf is ...:
            return RestoreArgs(type(leaf) if leaf is ... else str)
        if isinstance(leaf, bool | int | float | complex):
            return RestoreArgs(type(leaf))
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None or isinstance(leaf, np.generic):
            raise ValueError(f"Unsupported type: {type(leaf)}")
        if sharding is None and not isinstance(leaf, jax.Array):
            kind = None if isinstance(leaf, ArrayMetadata) else np.ndarray
            return RestoreArgs(kind, dtype)
        is_key = str(dtype).startswith("key<")
        return ArrayRestoreArgs(
            jax.Array,
            None if is_key else dtype,
            sharding=sharding,
            global_shape=tuple(shape) if set_global_shape and not is_key else None,
            strict=strict,
        )

    structure: Any
    leaves, structure = jax.tree.flatten(target, is_leaf=_is_metadata)
    if sharding_tree is None:
        shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    else:
        shardings = structure.flatten_up_to(sharding_tree)
    return structure.unflatten(map(arguments_of, leaves, shardings))


def _is_metadata(value: Any) -> bool:
    return isinstance(value, ArrayMetadata | StringMetadata)


def checkpoints_iterator(
    checkpoint_dir: str | os.PathLike[str],
    *,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[int]:
    """Yield each new step below a root, the newest first seen, until none comes in time.

    Args:
        checkpoint_dir: the root.
        min_interval_secs: has no effect.
        timeout: how long to wait for a new step, in seconds; None: without limit.
        timeout_fn: called after `timeout`; True ends the iteration.
    """
    del min_interval_secs
    reader = StepReader(checkpoint_dir)
    while True:
        step = reader.wait_for_new_step(timeout)
        if step is not None:
            yield step
        elif timeout_fn is None or timeout_fn():
            return
