"""The mistakes with disks, rights and devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import serialization

import cordwood
from demo.mistakes.libraries import LIBRARIES, orbax_load
from demo.mistakes.mistake import Act, Mistake, Surroundings

__all__ = ["MACHINES"]


def _large() -> Any:
    return {"dense": {"kernel": np.random.default_rng(0).random((1024, 1024), np.float32)}}


def _forbid(path: Path) -> None:
    for each in [path, *path.rglob("*")][::-1]:
        each.chmod(0)


def _folder_forbidden(path: Path) -> None:
    path.parent.chmod(0o500)


def _mesh() -> Any:
    return jax.make_mesh((jax.device_count(),), ("data",))


def _spread() -> Any:
    kernel = np.arange(64, dtype=np.float32).reshape(8, 8)
    return {"kernel": jax.device_put(kernel, jax.NamedSharding(_mesh(), jax.P("data")))}


def _seven_rows() -> Any:
    return {"kernel": np.zeros((7, 8), np.float32)}


def _restore_alone(path: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path)


def _flax_restore(path: Path) -> Any:
    return serialization.msgpack_restore(path.read_bytes())


def _spec(axis: str) -> Any:
    sharding = jax.NamedSharding(_mesh(), jax.P(axis))
    return {"kernel": jax.ShapeDtypeStruct((7, 8), np.float32, sharding=sharding)}


def _put(name: str, axis: str) -> Act:
    """Return the calls that users of a library without shardings make."""

    def act(path: Path) -> Any:
        tree = LIBRARIES[name].load(path, _seven_rows())
        return jax.device_put(tree, jax.NamedSharding(_mesh(), jax.P(axis)))

    return act


def _onto(axis: str) -> dict[str, Act]:
    return {
        "cordwood": lambda path: cordwood.load(path, mesh=_mesh(), rules=[(".*", _p(axis))]),
        "orbax": lambda path: orbax_load(path, _spec(axis)),
        "flax": _put("flax", axis),
        "equinox": _put("equinox", axis),
    }


def _p(axis: str) -> Any:
    return jax.P(axis)


MACHINES: Sequence[Mistake] = (
    Mistake(
        "No permission to read",
        "the checkpoint belongs to another user",
        change=_forbid,
        surroundings=Surroundings(unprivileged=True),
    ),
    Mistake(
        "No permission to write",
        "the parent directory belongs to another user",
        saves=True,
        change=_folder_forbidden,
        surroundings=Surroundings(unprivileged=True),
    ),
    Mistake(
        "A full disk",
        "4 MiB are saved to a disk of 1 MiB",
        _large,
        saves=True,
        surroundings=Surroundings(full_disk=True),
    ),
    Mistake(
        "Another number of devices",
        "eight devices saved it, and one device loads it, without a sharding argument",
        _spread,
        acts={
            "cordwood": cordwood.load,
            "orbax": _restore_alone,
            "flax": _flax_restore,
        },
        surroundings=Surroundings(devices=1),
    ),
    Mistake(
        "An axis that the mesh does not have",
        "the mesh has the axis `data`, and the PartitionSpec names `dat`; Flax's and equinox's "
        "users put the loaded tree with `jax.device_put`",
        _seven_rows,
        acts=_onto("dat"),
    ),
    Mistake(
        "A dimension that the mesh does not divide",
        "an array of 7 rows is partitioned over 8 devices",
        _seven_rows,
        acts=_onto("data"),
    ),
)
