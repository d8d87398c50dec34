"""Databases of zarr arrays as jax serializes them, by itself and as Levanter calls it."""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.experimental.array_serialization import pytree_serialization
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

from tests.foreign_files.make.values import leaves_of, write_values

Pair = collections.namedtuple("Pair", "first second")
export.register_namedtuple_serialization(Pair, serialized_name="Pair")


def main(folder: Path) -> None:
    pytree(folder / "pytree")
    levanter(folder / "levanter")


def pytree(case: Path) -> None:
    tree = {
        "layers": [jnp.arange(6.0).reshape(2, 3), (jnp.ones(2, jnp.bfloat16), None)],
        "pair": Pair(jnp.int32(3), {"zeros": jnp.zeros((3, 2))}),
        "empty": {},
    }
    pytree_serialization.save(tree, case)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loaded = pytree_serialization.load(case, sharding)
    write_values(case, {**loaded, "pair": loaded["pair"]._asdict()})


def levanter(case: Path) -> None:
    """Write a step as Levanter does since November 2025: its specs are of OCDBT and zarr 3."""
    tree = {
        "model": {"embed": {"weight": jnp.arange(12.0).reshape(4, 3)}, "blocks": [jnp.ones(5)]},
        "training_state": {"step": jnp.int32(7), "mu": jnp.zeros((2, 2), jnp.bfloat16)},
    }
    named = leaves_of(tree)
    specs = [spec(case, name) for name, _ in named]
    manager = GlobalAsyncCheckpointManager()
    manager.serialize([leaf for _, leaf in named], specs, on_commit_callback=lambda: None)
    manager.wait_until_finished()
    (case / "metadata.json").write_text(json.dumps({"step": 7, "timestamp": "2026-01-01T00:00:00"}))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loaded = manager.deserialize([sharding] * len(specs), specs)
    values = {name: array for (name, _), array in zip(named, loaded, strict=True)}
    write_values(case, values)


def spec(case: Path, name: str) -> dict[str, Any]:
    base = {"driver": "file", "path": str(case)}
    return {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": name}}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
