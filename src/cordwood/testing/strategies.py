"""Strategies of hypothesis for everything that cordwood stores.

    @given(trees(carried_by="msgpack"))
    def test_round_trip(tree): ...

The values shrink towards small plain trees of zeros. `carried_by` is a format: values that it
cannot store are left out (docs/format.md lists them). This module needs hypothesis. It imports jax
only to make jax arrays.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from cordwood import dtypes
from cordwood.index import LeafKind
from cordwood.keypath import DictKey, KeyPath

__all__ = [
    "Pair",
    "dict_keys",
    "jax_arrays",
    "key_paths",
    "leaves",
    "numpy_arrays",
    "numpy_scalars",
    "prng_keys",
    "python_values",
    "trees",
]

Carrier: TypeAlias = Literal["safetensors", "msgpack"]
ContainerName: TypeAlias = Literal[
    "dict", "list", "tuple", "none", "namedtuple", "OrderedDict", "defaultdict"
]

CONTAINERS: tuple[ContainerName, ...] = get_args(ContainerName)
LEAF_KINDS: tuple[LeafKind, ...] = (
    "numpy",
    "jax",
    "numpy_scalar",
    "prng_key",
    "bool",
    "int",
    "float",
    "complex",
    "str",
    "bytes",
)
DTYPE_NAMES = (*dtypes.DTYPES, "datetime64[ns]", "datetime64[D]", "timedelta64[25s]")
# The dtypes that jax has on CPU while 64-bit types are disabled.
JAX_DTYPE_NAMES = tuple(
    name
    for name in dtypes.DTYPES
    if name not in ("int64", "uint64", "float64", "complex128", "float128", "complex256")
    and not name.startswith("float6")
)
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (1,),
    (3,),
    (0,),
    (2, 3),
    (0, 3),
    (3, 0),
    (1, 1, 1),
    (4, 1, 2),
    (17,),
)
_WEAK = ("int32", "float32", "complex64")
_PRNG = ("threefry2x32", "rbg", "unsafe_rbg")
_TEXTS = ("", "w", "kernel", "0", "01", "a.b", "a/b", "'", "(1)", "%2F", "é", "日本", "A", "a")
_SURROGATES: tuple[Literal["Cs"], ...] = ("Cs",)


class Pair(NamedTuple):
    """The named tuple type in the trees of `trees`."""

    first: Any
    second: Any


def _text(carried_by: Carrier, max_size: int) -> SearchStrategy[str]:
    excluded = _SURROGATES if carried_by == "msgpack" else ()
    free = st.text(st.characters(exclude_categories=excluded), max_size=max_size)
    return st.sampled_from(_TEXTS) | free


def dict_keys(carried_by: Carrier = "safetensors") -> SearchStrategy[Any]:
    """Generate dict keys of all stored types: str, int, bool, float, None, bytes and tuples."""
    finite = st.floats(allow_nan=False, allow_infinity=False)
    text = _text(carried_by, 12)
    plain = st.one_of(st.integers(), st.booleans(), finite, st.none(), st.binary(max_size=5))
    nested = st.recursive(plain | text, lambda inner: st.lists(inner, max_size=3).map(tuple))
    return text | plain | nested


def key_paths(max_size: int = 5) -> SearchStrategy[KeyPath]:
    """Generate key paths with every kind of key."""
    positions = st.integers(min_value=0)
    others = dict_keys().filter(lambda key: not isinstance(key, str)).map(DictKey)
    keys = st.one_of(_text("safetensors", 12), positions, others)
    return st.lists(keys, max_size=max_size).map(tuple)


def numpy_arrays(
    *, names: Sequence[str] = DTYPE_NAMES, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> SearchStrategy[np.ndarray]:
    """Generate numpy arrays of any dtype, bits, shape and layout.

    The layouts are C and Fortran order, strided, reversed, broadcast, read-only and big-endian.

    Args:
        names: dtypes to choose from, by their names in `cordwood.dtypes`.
        shapes: shapes to choose from.
    """
    return st.builds(
        _with_layout,
        st.builds(elements, st.sampled_from(names), st.sampled_from(shapes), _seeds()),
        st.sampled_from(("C", "F", "strided", "reversed", "broadcast", "read-only", "big-endian")),
    )


def _seeds() -> SearchStrategy[int]:
    """Generate seeds of `elements`; seed 0 makes zeros."""
    return st.integers(min_value=0, max_value=0xFFFF)


def _with_layout(array: np.ndarray, layout: str) -> np.ndarray:
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided" and array.ndim:
        doubled = np.repeat(array, 2, axis=-1)
        return doubled[..., ::2]
    if layout == "reversed" and array.ndim:
        return array[::-1]
    if layout == "broadcast" and array.ndim and array.shape[0]:
        return np.broadcast_to(array[:1], array.shape)
    if layout == "read-only":
        array.flags.writeable = False
    if layout == "big-endian" and array.dtype.kind in "iufcmM":
        return array.astype(array.dtype.newbyteorder(">"))
    return array


def numpy_scalars(*, names: Sequence[str] = DTYPE_NAMES) -> SearchStrategy[np.generic]:
    """Generate numpy scalars of any dtype and bits."""
    return st.builds(
        lambda name, seed: elements(name, (1,), seed)[0], st.sampled_from(names), _seeds()
    )


def jax_arrays(
    *,
    names: Sequence[str] = JAX_DTYPE_NAMES,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    committed: bool = True,
) -> SearchStrategy[Any]:
    """Generate jax arrays of any dtype and bits, some with weak types.

    Args:
        names: dtypes to choose from.
        shapes: shapes to choose from.
        committed: True to commit some of them to a device, chosen from all devices.
    """
    return st.builds(
        _on_device,
        st.builds(elements, st.sampled_from(names), st.sampled_from(shapes), _seeds()),
        weak_type=st.booleans(),
        device=st.none() | st.integers(0, 7) if committed else st.none(),
    )


def _on_device(array: np.ndarray, *, weak_type: bool, device: int | None) -> Any:
    import jax

    from cordwood.devices.private_jax import set_weak_type

    devices = jax.devices()
    if device is None:
        result = jax.device_put(array)
        return set_weak_type(result) if weak_type and array.dtype.name in _WEAK else result
    return jax.device_put(array, devices[device % len(devices)])


def prng_keys() -> SearchStrategy[Any]:
    """Generate typed PRNG key arrays of jax, of every implementation."""
    return st.builds(
        _prng_key, st.sampled_from(_PRNG), st.sampled_from(((), (2,), (0,), (2, 1))), _seeds()
    )


def _prng_key(impl: str, shape: tuple[int, ...], seed: int) -> Any:
    import jax

    words = 2 if impl == "threefry2x32" else 4
    data = elements("uint32", (*shape, words), seed)
    return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=impl)


def python_values(kind: LeafKind, carried_by: Carrier = "safetensors") -> SearchStrategy[Any]:
    """Generate Python values of one kind: "bool", "int", "float", "complex", "str" or "bytes"."""
    bounds = (-(2**63), 2**64 - 1) if carried_by == "msgpack" else (None, None)
    kinds: dict[LeafKind, SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(*bounds),
        "float": st.floats(),
        "complex": st.complex_numbers(),
        "str": _text(carried_by, 40),
        "bytes": st.binary(max_size=80),
    }
    return kinds[kind]


def leaves(
    carried_by: Carrier = "safetensors", *, kinds: Collection[LeafKind] = LEAF_KINDS
) -> SearchStrategy[Any]:
    """Generate leaves of the given kinds (default: all), except those the format cannot store."""
    arrays: dict[LeafKind, Callable[[], SearchStrategy[Any]]] = {
        "numpy": numpy_arrays,
        "numpy_scalar": numpy_scalars,
        "jax": jax_arrays,
        "prng_key": prng_keys,
    }
    stored = [kind for kind in kinds if (kind, carried_by) != ("prng_key", "msgpack")]
    return st.one_of(
        [arrays[kind]() if kind in arrays else python_values(kind, carried_by) for kind in stored]
    )


def trees(
    carried_by: Carrier = "safetensors",
    *,
    leaf: SearchStrategy[Any] | None = None,
    keys: SearchStrategy[Any] | None = None,
    containers: Collection[ContainerName] = CONTAINERS,
    max_leaves: int = 12,
) -> SearchStrategy[Any]:
    """Generate whole trees; the smallest are a single leaf and an empty container.

    Args:
        carried_by: the format that must be able to store them; "msgpack" also stands for its
            compressed forms.
        leaf: a strategy for leaves; None: `leaves(carried_by)`.
        keys: a strategy for keys of dicts; None: `dict_keys(carried_by)`.
        containers: the kinds of containers that may occur. A named tuple is a `Pair`.
        max_leaves: the approximate maximum number of leaves.
    """
    keys = _named(dict_keys(carried_by) if keys is None else keys)
    unique: Any = str if carried_by == "msgpack" else None  # its file stores keys as strings

    def grow(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
        inner = _named(inner)
        pairs = st.lists(
            st.tuples(keys, inner),
            max_size=4,
            unique_by=lambda pair: unique(pair[0]) if unique else pair[0],
        )
        kinds: dict[str, SearchStrategy[Any]] = {
            "dict": pairs.map(dict),
            "list": st.lists(inner, max_size=4),
            "tuple": st.lists(inner, max_size=4).map(tuple),
            "namedtuple": st.builds(Pair, inner, inner),
            "OrderedDict": pairs.map(OrderedDict),
            "defaultdict": pairs.map(lambda items: defaultdict(list, items)),
        }
        return st.one_of([made for kind, made in kinds.items() if kind in containers])

    base = _named(leaves(carried_by) if leaf is None else leaf)
    if "none" in containers:
        base |= st.none()
    return _named(st.recursive(base, grow, max_leaves=max_leaves) | grow(base))


def _named(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Give a strategy a short repr; the full one would multiply at each level of recursion."""

    @st.composite
    def part(draw: st.DrawFn) -> Any:
        return draw(strategy)

    return part()


_WIDTH = re.compile(r"u?int([124])|float([46])_e.*")  # dtypes of less than a byte


def elements(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return a C-order array of a dtype of `cordwood.dtypes`; the same seed gives the same bits.

    Seed 0 gives zeros. Any other seed gives random bits, so that floating-point arrays have NaNs of
    every payload, infinities and subnormals.

    >>> elements("uint8", (3,), 0)
    array([0, 0, 0], dtype=uint8)
    """
    dtype = dtypes.to_numpy(name)
    if seed == 0:
        zeros = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
        return zeros.view(dtype).reshape(shape)
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype.type in (np.longdouble, np.clongdouble):  # most of their bit patterns are invalid
        values = rng.standard_normal(count) + 1j * rng.standard_normal(count)
        parts = values if dtype.kind == "c" else values.real
        return parts.astype(dtype).reshape(shape)
    raw = np.frombuffer(rng.bytes(count * dtype.itemsize), np.uint8).copy()
    narrow = _WIDTH.fullmatch(name)
    if name == "bool":
        raw &= 1
    elif narrow:
        raw &= (1 << int(narrow[1] or narrow[2])) - 1
    return raw.view(dtype).reshape(shape)
