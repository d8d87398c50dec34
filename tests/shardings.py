"""Thirty shardings of eight devices, for arrays of three axes."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

__all__ = ["SHARDINGS", "mesh_of", "sharding"]


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    names = ("x", "y", "z")[: len(sizes)]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return jax.sharding.Mesh(devices, names)


def sharding(spec: P, *sizes: int) -> NamedSharding:
    return NamedSharding(mesh_of(*sizes), spec)


# 1 to 8 devices, 1 to 3 axes of the mesh; cut, replicated, and both.
SHARDINGS = [
    SingleDeviceSharding(jax.devices()[3]),
    sharding(P(), 1),
    sharding(P("x"), 1),
    sharding(P(), 2),
    sharding(P("x"), 2),
    sharding(P(None, "x"), 2),
    sharding(P(None, None, "x"), 2),
    sharding(P("x"), 4),
    sharding(P(None, "x"), 4),
    sharding(P(), 8),
    sharding(P("x"), 8),
    sharding(P(None, "x"), 8),
    sharding(P(None, None, "x"), 8),
    sharding(P("x"), 4, 2),
    sharding(P("y"), 4, 2),
    sharding(P("x", "y"), 4, 2),
    sharding(P("y", "x"), 4, 2),
    sharding(P(("x", "y")), 4, 2),
    sharding(P(("y", "x")), 4, 2),
    sharding(P(None, ("x", "y")), 4, 2),
    sharding(P(None, "y", "x"), 4, 2),
    sharding(P("x", None, "y"), 2, 4),
    sharding(P(None, None, ("y", "x")), 2, 4),
    sharding(P("x", "y"), 3, 2),
    sharding(P("y"), 3, 2),
    sharding(P("x", "y", "z"), 2, 2, 2),
    sharding(P("z", "x"), 2, 2, 2),
    sharding(P(("x", "z"), None, "y"), 2, 2, 2),
    sharding(P(None, ("z", "y", "x")), 2, 2, 2),
    sharding(P("y", None, "z"), 1, 4, 2),
]
