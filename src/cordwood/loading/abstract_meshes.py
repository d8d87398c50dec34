"""Shardings over an abstract mesh, as `jax.eval_shape` and `nnx.eval_shape` make them.

Inside `jax.set_mesh(mesh)` the shapes that they return have shardings that name the axes of the
mesh, but no devices. A load puts the arrays on the mesh that it gets, or else on that of set_mesh.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cordwood.devices.device_memory import sharding_of
from cordwood.loading.load_target import Target


def has_abstract_mesh(value: Any) -> bool:
    """Return True for a sharding or Format over an abstract mesh."""
    mesh = getattr(sharding_of(value), "mesh", None)
    return type(mesh).__name__ == "AbstractMesh"


def need_devices(targets: Iterable[Target]) -> bool:
    """Return True if a target has a sharding over an abstract mesh."""
    return any(has_abstract_mesh(target.sharding) for target in targets)


def mesh_for_abstract(sharding: Any, mesh: Any, name: str) -> Any:
    """Return the mesh of devices for a sharding over an abstract one.

    Args:
        sharding: the sharding.
        mesh: the mesh of the load; None: that of `jax.set_mesh`.
        name: the name of the leaf.

    Raises ValueError if there is no mesh.
    """
    import jax

    if mesh is None:
        mesh = jax.sharding.get_mesh()
    if mesh.empty:
        raise ValueError(
            f"{name}: its sharding in `like` is {sharding.spec} over an abstract mesh, which has "
            "no devices: pass mesh=, or load inside of jax.set_mesh(mesh)"
        )
    return mesh


def with_devices(value: Any, mesh: Any) -> Any:
    """Return a sharding or Format over an abstract mesh as one over a mesh of devices.

    Raises ValueError if the mesh lacks an axis that the sharding names.
    """
    import jax

    sharding = sharding_of(value)
    placed = jax.sharding.NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
    return placed if value is sharding else type(value)(value.layout, placed)
