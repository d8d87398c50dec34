"""Trees of jax arrays for Orbax, and the calls by which Orbax restores a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1


def restore_standard(path: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path)


DOORS: dict[str, Callable[[Path], Any]] = {
    "StandardCheckpointer": restore_standard,
    "PyTreeCheckpointer": lambda path: ocp.PyTreeCheckpointer().restore(path),
    "v1.load": v1.load,
}


def as_numpy(tree: Any) -> Any:
    """Return a tree with numpy arrays, and with the keys of dicts sorted, as Orbax has them."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


def sharded(array: Any, *spec: str | None) -> Any:
    mesh = jax.make_mesh((4, 2), ("rows", "columns"))
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
