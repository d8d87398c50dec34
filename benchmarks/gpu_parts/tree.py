"""The tree that is saved and loaded: a transformer in bfloat16 with Adam's moments in float32."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from benchmarks.gpu_parts.part import MIB

_BYTES_PER_PARAMETER = 2 + 4 + 4
_OFFSETS = 1 << 20


class Shape(NamedTuple):
    """The shape and the dtype of one array."""

    shape: tuple[int, ...]
    dtype: str


def shapes_of(size_bytes: int) -> dict[str, Any]:
    """Return the nested dict of the shapes of a tree of about that size; at least one layer."""
    width = 1024 if size_bytes >= 512 * MIB else 256 if size_bytes >= 32 * MIB else 64
    layer: dict[str, dict[str, tuple[int, ...]]] = {
        "attention": {"qkv": (width, 3 * width), "out": (width, width)},
        "mlp": {"up": (width, 4 * width), "down": (4 * width, width)},
        "biases": {"qkv": (3 * width,), "up": (4 * width,), "down": (width,)},
        "norms": {"attention": (width,), "mlp": (width,)},
    }
    vocabulary = 32 * width
    parameters = sum(math.prod(shape) for part in layer.values() for shape in part.values())
    rest = size_bytes - vocabulary * width * _BYTES_PER_PARAMETER
    layers = max(1, round(rest / (parameters * _BYTES_PER_PARAMETER)))
    model: dict[str, dict[str, tuple[int, ...]]] = {"embedding": {"tokens": (vocabulary, width)}}
    for number in range(layers):
        for part, shapes in layer.items():
            model[f"layer_{number:03d}_{part}"] = shapes
    dtypes = {"params": "bfloat16", "first_moment": "float32", "second_moment": "float32"}
    tree: dict[str, Any] = {
        name: {
            part: {k: Shape(v, dtype) for k, v in shapes.items()} for part, shapes in model.items()
        }
        for name, dtype in dtypes.items()
    }
    tree["step"] = {"count": {"value": Shape((), "int32")}}
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by their joined names."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def bytes_of(shapes: Mapping[str, Any]) -> int:
    """Return the size of a tree of shapes, in bytes."""
    sizes = {"bfloat16": 2, "float32": 4, "int32": 4}
    return sum(math.prod(leaf.shape) * sizes[leaf.dtype] for leaf in flat(shapes).values())


def specs_of(shapes: Mapping[str, Any], device: Any) -> Any:
    """Return the tree of jax.ShapeDtypeStructs on a device."""
    import jax

    place = jax.sharding.SingleDeviceSharding(device)
    return _mapped(
        shapes, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
    )


def make_tree(shapes: Mapping[str, Any], device: Any) -> Any:
    """Return a tree on a device, of numbers with a normal distribution.

    They are drawn on the host, because a device would compile a program for each shape.
    """
    import jax
    import numpy as np

    most = max([math.prod(leaf.shape) for leaf in flat(shapes).values()])
    noise = np.random.default_rng(0).standard_normal(most + _OFFSETS, np.float32)
    offsets = itertools.count(0, 7919)  # so that no two arrays are equal

    def make(leaf: Shape) -> Any:
        if leaf.dtype == "int32":
            return jax.device_put(np.int32(1000), device)
        offset = next(offsets) % _OFFSETS
        values = noise[offset : offset + math.prod(leaf.shape)].reshape(leaf.shape)
        return jax.device_put(values.astype(jax.numpy.dtype(leaf.dtype)), device)

    return jax.block_until_ready(_mapped(shapes, make))


def renew(tree: Any) -> Any:
    """Return a copy of a tree on its device; its arrays hold no copies in host memory."""
    import jax
    import jax.numpy as jnp

    return jax.block_until_ready(jax.tree.map(jnp.copy, tree))


def require_equal(loaded: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Raise AssertionError unless two trees of arrays on one device are equal, bit by bit."""
    one, other = flat(loaded), flat(tree)
    if one.keys() != other.keys():
        raise AssertionError(f"names differ: {sorted(one.keys() ^ other.keys())[:3]}")
    for name, array in other.items():
        if (one[name].dtype, one[name].shape) != (array.dtype, array.shape):
            raise AssertionError(f"{name}: dtype or shape differs")
        if one[name].devices() != array.devices():
            raise AssertionError(f"{name} is on another device")
    results = {name: _same()(one[name], array) for name, array in other.items()}
    wrong = [name for name, equal in results.items() if not bool(equal)]
    if wrong:
        raise AssertionError(f"{len(wrong)} arrays differ; the first is {wrong[0]}")


@cache
def _same() -> Any:
    import jax
    import jax.numpy as jnp

    def same(one: Any, other: Any) -> Any:
        bits = {2: jnp.uint16, 4: jnp.uint32}[one.dtype.itemsize]
        as_bits = jax.lax.bitcast_convert_type
        return (as_bits(one, bits) == as_bits(other, bits)).all()

    return jax.jit(same)


def _mapped(shapes: Mapping[str, Any], make: Any) -> Any:
    return {
        name: _mapped(value, make) if isinstance(value, Mapping) else make(value)
        for name, value in shapes.items()
    }
