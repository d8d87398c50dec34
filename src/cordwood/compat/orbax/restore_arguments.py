"""Arguments for single leaves: the type, dtype, sharding and shape to save or restore them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class SaveArgs:
    """The `dtype` to save a leaf with. The other fields have no effect."""

    aggregate: bool = False
    dtype: Any = None
    chunk_byte_size: int | None = None
    shard_axes: tuple[int, ...] = ()


@dataclass
class RestoreArgs:
    """The type and dtype to restore a leaf with.

    Attributes:
        restore_type: `jax.Array`, `numpy.ndarray`, or the type of a number; None: as it was saved.
        dtype: the dtype to convert to; None: as it was saved.
    """

    restore_type: Any = None
    dtype: Any = None


@dataclass
class ArrayRestoreArgs(RestoreArgs):
    """The type, dtype, sharding and shape to restore a jax array with.

    Attributes:
        restore_type: as in `RestoreArgs`; None means `jax.Array`.
        mesh: with `mesh_axes`, the sharding.
        mesh_axes: a PartitionSpec.
        sharding: the sharding, which takes precedence.
        global_shape: the shape; None: as it was saved.
        shape: another name of `global_shape`.
        strict: False pads an array of another shape with zeros, or cuts it; True raises an error.
    """

    mesh: Any = None
    mesh_axes: Any = None
    sharding: Any = None
    global_shape: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.restore_type is None:
            import jax

            self.restore_type = jax.Array
        if None not in (self.shape, self.global_shape) and self.shape != self.global_shape:
            raise ValueError(
                f"shape={self.shape} and global_shape={self.global_shape}: expected one of them"
            )
        self.shape = self.global_shape = self.global_shape if self.shape is None else self.shape
