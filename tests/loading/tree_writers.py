"""Writers of one tree in every format that holds trees: ours, Flax, Orbax, joined names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import flax.serialization
import jax
import numpy as np
import safetensors.numpy

import cordwood
from cordwood.state_dict import to_state_dict
from tests.golden import orbax_checkpoints

Writer: TypeAlias = Callable[[Path, Any], Path]


def _saved(name: str, **options: Any) -> Writer:
    def write(path: Path, tree: Any) -> Path:
        cordwood.save(path / name, tree, **options)
        return path / name

    return write


def _flax(path: Path, tree: Any) -> Path:
    tree = _native(to_state_dict(tree))  # Flax takes dataclasses registered with itself only
    (path / "flax.msgpack").write_bytes(flax.serialization.to_bytes(tree))
    return path / "flax.msgpack"


def _native(node: Any) -> Any:
    """Return a state dict with arrays in the byte order of the machine: Flax records none."""
    if isinstance(node, dict):
        return {key: _native(value) for key, value in node.items()}
    if isinstance(node, np.ndarray):
        return node.astype(node.dtype.newbyteorder("="))
    return node


def _orbax(path: Path, tree: Any) -> Path:
    orbax_checkpoints.write(path / "orbax", "v0-zarr2-ocdbt", tree)
    return path / "orbax"


def _arrays(tree: Any, separator: str) -> dict[str, np.ndarray[Any, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=separator): np.asarray(leaf)
        for path, leaf in leaves
    }


def _npz(path: Path, tree: Any) -> Path:
    arrays: Any = _arrays(tree, "/")
    np.savez(path / "theirs.npz", **arrays)
    return path / "theirs.npz"


def _dotted(path: Path, tree: Any) -> Path:
    (path / "hub").mkdir()
    arrays = {name: array.copy("C") for name, array in _arrays(tree, ".").items()}
    safetensors.numpy.save_file(arrays, path / "hub" / "model.safetensors")
    return path / "hub"


# Formats that keep structure, kinds of containers and Python values; and those that have no more
# than names and arrays.
WRITERS: Mapping[str, Writer] = {
    "packs": _saved("packs"),
    "zarr": _saved("zarr", format="zarr"),
    "safetensors": _saved("ours.safetensors"),
    "msgpack": _saved("ours.msgpack"),
    "msgpack.zst": _saved("ours.msgpack.zst"),
    "flax": _flax,
    "orbax": _orbax,
    "npz": _npz,
    "dotted": _dotted,
}
ARRAYS_ONLY = ("npz", "dotted")
