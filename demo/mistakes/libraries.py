"""The libraries, each with the calls that its documentation shows first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox
import orbax.checkpoint as ocp
from flax import serialization

import cordwood

__all__ = ["LIBRARIES", "Library", "orbax_load", "orbax_save"]


class Library(NamedTuple):
    """One library: its name, and its calls that save and load."""

    title: str
    distribution: str
    calls: str
    suffix: str
    save: Callable[[Path, Any], Any]
    load: Callable[[Path, Any], Any]

    @property
    def version(self) -> str:
        return version(self.distribution)


def orbax_save(path: Path, tree: Any) -> None:
    """Save with the calls of Orbax's guide."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def orbax_load(path: Path, like: Any) -> Any:
    """Load into a tree of arrays, or of shapes and dtypes."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, like)


def _flax_save(path: Path, tree: Any) -> None:
    path.write_bytes(serialization.to_bytes(tree))


def _flax_load(path: Path, like: Any) -> Any:
    return serialization.from_bytes(like, path.read_bytes())


def _equinox_save(path: Path, tree: Any) -> None:
    equinox.tree_serialise_leaves(path, tree)


def _equinox_load(path: Path, like: Any) -> Any:
    return equinox.tree_deserialise_leaves(path, like)


LIBRARIES: Mapping[str, Library] = {
    "cordwood": Library(
        "cordwood",
        "cordwood",
        "`save(path, tree)`, `load(path, like=tree)`",
        "",
        cordwood.save,
        lambda path, like: cordwood.load(path, like=like),
    ),
    "orbax": Library(
        "Orbax",
        "orbax-checkpoint",
        "`StandardCheckpointer().save(path, tree)`, `.restore(path, tree)`",
        "",
        orbax_save,
        orbax_load,
    ),
    "flax": Library(
        "Flax",
        "flax",
        "`path.write_bytes(to_bytes(tree))`, `from_bytes(tree, path.read_bytes())`",
        ".msgpack",
        _flax_save,
        _flax_load,
    ),
    "equinox": Library(
        "equinox",
        "equinox",
        "`tree_serialise_leaves(path, tree)`, `tree_deserialise_leaves(path, tree)`",
        ".eqx",
        _equinox_save,
        _equinox_load,
    ),
}
