"""Requests for single leaves, made of Orbax's arguments, and the targets that a load takes."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.compat.orbax.leaf_metadata import ScalarMetadata, StringMetadata
from cordwood.errors import MismatchError
from cordwood.index import ARRAY_KINDS, Inline, Leaf, LeafKind
from cordwood.keypath import format_path
from cordwood.loading.load_target import Target

_NUMBERS: dict[type, LeafKind] = {bool: "bool", int: "int", float: "float", complex: "complex"}
_TEXTS = (str, bytes)
_NUMBER_KINDS = frozenset(_NUMBERS.values())


class LeafRequest(NamedTuple):
    """The type, dtype, sharding and shape to restore a leaf with.

    Attributes:
        type: `jax.Array`, `numpy.ndarray`, or the type of a number; None: as it was saved.
        dtype: the dtype; None: as it was saved.
        sharding: of a jax array; None: the default device.
        shape: the expected shape; None: any.
        strict: False to pad or cut an array of another shape.
    """

    type: Any = None
    dtype: Any = None
    sharding: Any = None
    shape: tuple[int, ...] | None = None
    strict: bool = True


def request_of_args(args: Any) -> LeafRequest:
    """Return the request of a `RestoreArgs`, also of Orbax's own class."""
    import jax

    if args is None:
        return LeafRequest()
    sharding, mesh = getattr(args, "sharding", None), getattr(args, "mesh", None)
    if sharding is None and mesh is not None:
        make: Any = jax.sharding.PartitionSpec
        sharding = jax.sharding.NamedSharding(mesh, args.mesh_axes or make())
    shape = getattr(args, "global_shape", None)
    return LeafRequest(
        args.restore_type,
        args.dtype,
        sharding,
        None if shape is None else tuple(shape),
        getattr(args, "strict", True),
    )


def request_of_leaf(leaf: Any, *, strict: bool, fallback: Any) -> LeafRequest:
    """Return the request for a value like a leaf of a target tree.

    Args:
        leaf: an array, a `jax.ShapeDtypeStruct`, a number, or what a metadata call returned.
        strict: False to pad or cut arrays.
        fallback: the sharding of arrays on devices that have none; None: the default device.
    """
    import jax

    if isinstance(leaf, ScalarMetadata | StringMetadata):
        return LeafRequest()
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        return LeafRequest(type(leaf))
    if isinstance(leaf, jax.Array):
        sharding = leaf.sharding if leaf.committed else fallback
        return LeafRequest(jax.Array, leaf.dtype, sharding, leaf.shape, strict)
    if isinstance(leaf, np.generic):
        return LeafRequest(np.generic, leaf.dtype)
    if isinstance(leaf, np.ndarray):
        return LeafRequest(np.ndarray, leaf.dtype, None, leaf.shape, strict)
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        raise ValueError(
            f"expected arrays, numbers or jax.ShapeDtypeStructs as leaves of the target, found "
            f"{leaf!r:.80}"
        )
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.Sharding):
        sharding = fallback
    return LeafRequest(None if sharding is None else jax.Array, dtype, sharding, shape, strict)


def target_of(leaf: Leaf, request: LeafRequest) -> Target:
    """Return the target to load a stored leaf into.

    Raises MismatchError for text in place of an array or number, and if the shape is another one,
    and `request` is strict.
    """
    _require_kind(leaf, request)
    if _is_text(leaf):
        return Target(leaf, leaf.kind, leaf.dtype)
    if differs(leaf, request):
        is_key = leaf.kind == "prng_key"
        if request.strict or is_key:
            advice = "" if is_key else "; strict=False pads an array with zeros or cuts it"
            raise MismatchError(
                f"{format_path(leaf.key_path)}: the stored shape is {leaf.shape}, the requested "
                f"one {request.shape}{advice}"
            )
        request = request._replace(type=np.ndarray)
    if leaf.kind == "prng_key":
        return Target(leaf, "prng_key", leaf.dtype, sharding=request.sharding)
    if request.type is None and request.shape == () and leaf.kind in _NUMBER_KINDS:
        request = request._replace(type=np.ndarray)  # as a ShapeDtypeStruct asks for
    kind = _kind(leaf, request.type)
    if kind in _NUMBER_KINDS:
        if math.prod(leaf.shape) != 1:
            raise MismatchError(
                f"{format_path(leaf.key_path)}: the target has a number, and an array of the "
                f"shape {leaf.shape} is stored"
            )
        return Target(leaf, kind, "" if kind == leaf.kind else leaf.dtype)
    dtype = leaf.dtype if request.dtype is None else dtypes.name_of(np.dtype(request.dtype))
    if not dtype and isinstance(leaf.storage, Inline):  # a number, to become an array
        dtype = np.asarray(leaf.storage.value).dtype.name
    sharding = request.sharding if kind == "jax" else None
    return Target(leaf, kind, dtype, leaf.weak_type and kind == "jax", sharding)


def differs(leaf: Leaf, request: LeafRequest) -> bool:
    """Return True if an array or number is stored with another shape than the requested one."""
    if request.shape is None or _is_text(leaf):
        return False
    is_key = str(request.dtype).startswith("key<")  # the stored shape is that of its data
    return request.shape != (leaf.shape[:-1] if is_key else leaf.shape)


def _is_text(leaf: Leaf) -> bool:
    return leaf.kind not in ARRAY_KINDS and leaf.kind not in _NUMBER_KINDS


def _require_kind(leaf: Leaf, request: LeafRequest) -> None:
    """Raise MismatchError if text is stored for an array or number, or the other way."""
    asks_for_text = request.type in _TEXTS
    if (request.type is None and request.dtype is None) or asks_for_text == _is_text(leaf):
        return
    if request.type is not type(...):
        expected = "text" if asks_for_text else "an array or number"
        raise MismatchError(
            f"{format_path(leaf.key_path)}: the target has {expected}, and a value of the kind "
            f"{leaf.kind!r} is stored"
        )


def _kind(leaf: Leaf, requested: Any) -> LeafKind:
    jax = sys.modules.get("jax")
    if requested in _NUMBERS:
        return _NUMBERS[requested]
    if requested is np.ndarray:
        return "numpy"
    if jax is not None and requested is jax.Array:
        return "jax"
    if leaf.kind == "numpy_scalar":  # Orbax stores numbers
        kinds = {"b": "bool", "i": "int", "u": "int", "c": "complex"}
        return kinds.get(np.dtype(dtypes.to_numpy(leaf.dtype)).kind, "float")  # type: ignore[return-value]
    return leaf.kind
