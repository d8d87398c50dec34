"""Leaves: their types, and their elements as numpy arrays on the host."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.errors import UnsupportedLeafError
from cordwood.index import LeafKind, LeafSpec
from cordwood.keypath import KeyPath, format_path
from cordwood.sharding.boxes import ShardGrid

_new = tuple.__new__
_SHOWN = 80  # characters of a value that cannot be stored, in an error

_PYTHON_KINDS: dict[type, LeafKind] = {
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    bytes: "bytes",
}


_jax_types: set[type] = set()  # array types so far: an isinstance check takes six times as long


class DeferredArray:
    """An array whose elements are read when it is written; planning needs its type alone.

    Args:
        spec: the type.
        read: returns the elements, which may be an array that is read on demand, or the shards of
            this process; called once, unless it returns what is in memory.
        shards: its cells, and the processes that hold them; None: process 0 holds it.
    """

    __slots__ = ("read", "shards", "spec")

    def __init__(
        self, spec: LeafSpec, read: Callable[[], Any], shards: ShardGrid | None = None
    ) -> None:
        self.spec = spec
        self.read = read
        self.shards = shards

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype:
        return dtypes.to_numpy(self.spec.dtype)


def is_jax_array(leaf: object) -> bool:
    """Return True if `leaf` is a jax.Array; jax is not imported for this."""
    if type(leaf) in _jax_types:
        return True
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(leaf, jax.Array):
        return False
    if not isinstance(leaf, jax.core.Tracer):  # of one tracer type some are arrays, some not
        _jax_types.add(type(leaf))
    return True


_ONE_FILE = "save to a directory, which all processes write together; a file is written by one"


def describe_leaf(
    path: KeyPath,
    leaf: Any,
    *,
    abstract: bool = False,
    allow_remote: bool = False,
    remote_advice: str = _ONE_FILE,
) -> LeafSpec:
    """Return the type of a leaf.

    Args:
        path: its key path, for the error and for the result.
        leaf: an array, scalar, str, bytes or PRNG key array.
        abstract: accept a leaf without accessible data, as in a `like`: a deleted array, parts on
            other processes, or a jax.ShapeDtypeStruct, which counts as a jax array.
        allow_remote: accept arrays with parts on the devices of other processes.
        remote_advice: what to do about such an array if it is not allowed, for the error.

    Raises:
        UnsupportedLeafError: the leaf cannot be stored; the message names its key path and says
            what to do.
    """
    kind = _PYTHON_KINDS.get(type(leaf))
    if kind is not None:
        return LeafSpec(path, kind, (), "", value=leaf)
    if type(leaf) is np.ndarray or type(leaf) is np.memmap:
        name = _dtype_name(path, leaf.dtype)
        return _new(LeafSpec, (path, "numpy", leaf.shape, name, False, None, None))
    if type(leaf) is DeferredArray:
        return leaf.spec._replace(key_path=path)
    if isinstance(leaf, np.generic):
        return LeafSpec(path, "numpy_scalar", (), _dtype_name(path, leaf.dtype))
    jax = sys.modules.get("jax")
    if jax is not None:
        if isinstance(leaf, jax.Array):
            return _describe_jax(path, leaf, jax, abstract, None if allow_remote else remote_advice)
        if abstract and isinstance(leaf, jax.ShapeDtypeStruct):
            return _describe_jax_type(path, leaf, jax)
    if abstract:
        type_name = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
        raise UnsupportedLeafError(
            f"{name_of_path(path)}: expected an array, a number, a str, bytes or a function in "
            f"`like`, found a value of type {type_name}, which no checkpoint can hold"
        )
    raise UnsupportedLeafError(f"{name_of_path(path)}: {_storage_advice(leaf)}")


def is_static_leaf(leaf: Any) -> bool:
    """Return True for values that belong to a program and not to its state.

    These are functions, classes, modules, dtypes, enums, and structures of trees. No checkpoint
    holds them; a `like` may.
    """
    if callable(leaf) or isinstance(leaf, (ModuleType, np.dtype, enum.Enum)):
        return not is_jax_array(leaf)
    return is_tree_def(leaf) or _is_linen_module(leaf)


def is_tree_def(leaf: Any) -> bool:
    """Return True for a jax PyTreeDef, the structure of a tree."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(leaf, jax.tree_util.PyTreeDef)


def _is_linen_module(leaf: Any) -> bool:
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(leaf, linen.Module)


def name_of_path(path: KeyPath) -> str:
    """Return the text of a key path, for errors."""
    return format_path(path) or "the tree itself"


def _dtype_name(path: KeyPath, dtype: np.dtype) -> str:
    try:
        return dtypes.name_of(dtype)
    except TypeError as e:
        advice = {
            "U": "store a str, or numbers",
            "S": "store a bytes object, or a uint8 array",
            "T": "store a str, or numbers",
            "O": "store the objects as separate leaves",
        }.get(dtype.kind, "store each field as an array of its own")
        if dtype.names == ("float0",):  # https://docs.jax.dev/en/latest/jax.dtypes.html
            raise UnsupportedLeafError(
                f"{name_of_path(path)}: an array of float0, the gradient of an integer, has no "
                "elements to store; leave it out"
            ) from e
        raise UnsupportedLeafError(
            f"{name_of_path(path)}: an array of dtype {dtype} cannot be stored; {advice}"
        ) from e


def _describe_jax(
    path: KeyPath, leaf: Any, jax: Any, abstract: bool, advice_if_spread: str | None
) -> LeafSpec:
    if isinstance(leaf, jax.core.Tracer):
        advice = "save outside of jit, grad and vmap"
        if abstract:
            advice = (
                "load outside of jit, grad and vmap, and pass what is loaded into the function "
                "as an argument"
            )
        raise UnsupportedLeafError(f"{name_of_path(path)}: a tracer has no value; {advice}")
    if not abstract:
        if leaf.is_deleted():
            raise UnsupportedLeafError(
                f"{name_of_path(path)}: the array was deleted or donated; save before the step "
                "that donates it, or save what the step returned"
            )
        if advice_if_spread and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise UnsupportedLeafError(
                f"{name_of_path(path)}: parts of this array are on the devices of other processes: "
                f"{advice_if_spread}; or gather it first "
                "(jax.experimental.multihost_utils.process_allgather)"
            )
    return _describe_jax_type(path, leaf, jax)


def _describe_jax_type(path: KeyPath, leaf: Any, jax: Any) -> LeafSpec:
    """Return the type of anything that has a jax shape, dtype and weak_type."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        impl, key_shape = _prng_impl(leaf, jax)
        return LeafSpec(path, "prng_key", (*leaf.shape, *key_shape), "uint32", prng_impl=impl)
    weak_type = bool(getattr(leaf, "weak_type", False))
    return LeafSpec(path, "jax", tuple(leaf.shape), _dtype_name(path, leaf.dtype), weak_type)


def _prng_impl(leaf: Any, jax: Any) -> tuple[str, tuple[int, ...]]:
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), leaf.dtype))
    if isinstance(leaf, jax.Array):
        return str(jax.random.key_impl(leaf)), data.shape
    name = str(leaf.dtype)  # key<fry>: an abstract key names its implementation only by a tag
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        if str(jax.eval_shape(lambda impl=impl: jax.random.key(0, impl=impl)).dtype) == name:
            return impl, data.shape
    return name, data.shape


def _storage_advice(leaf: Any) -> str:
    """Return the reason why a leaf cannot be stored, and what to do about it."""
    kind = type(leaf)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(leaf, enum.Enum):
        return f"an enum ({leaf!r}) cannot be stored; store its .value or .name"
    if isinstance(leaf, np.dtype) or (isinstance(leaf, type) and issubclass(leaf, np.generic)):
        return f"a dtype ({leaf!r}) cannot be stored; store its name, str(dtype)"
    if isinstance(leaf, np.ma.MaskedArray):
        return "a masked array cannot be stored; store its .data and .mask"
    if isinstance(leaf, np.ndarray):
        return f"an array of subclass {name} cannot be stored; convert it with numpy.asarray"
    if isinstance(leaf, (bytearray, memoryview)):
        return f"a {kind.__name__} cannot be stored; convert it with bytes()"
    if name == "cordwood.loading.stored_leaf.StoredLeaf":
        return "a leaf of an open checkpoint cannot be stored; pass leaf.load()"
    if kind.__name__ == "Ref" and kind.__module__.startswith("jax."):
        return "a jax.Ref is not stored itself; store its value, ref[...]"
    if kind.__name__ == "ShapeDtypeStruct":
        return "a ShapeDtypeStruct has no value to store"
    if isinstance(leaf, (set, frozenset)):
        return f"a {kind.__name__} cannot be stored; store a sorted list"
    if _is_linen_module(leaf):
        return (
            f"a flax.linen Module ({name}) holds no arrays and cannot be stored; keep it out of "
            "the tree, and save the variables that its init returned"
        )
    if is_tree_def(leaf):
        return (
            "a PyTreeDef, the structure of a tree, cannot be stored; save the leaves alone, and "
            "load them into a `like` that has it: there it is kept"
        )
    if hasattr(leaf, "__next__") or _has_state(leaf):
        return (
            f"an iterator or loader ({name}) cannot be stored; pass one that has a state to "
            'CheckpointManager.save(items={"data": it}), or store numbers that say where it is'
        )
    if callable(leaf):
        text = f"a function or class ({_shown(leaf)}) cannot be stored; keep it out of the tree"
        if "equinox" not in sys.modules:
            return text
        return (
            f"{text} (for an equinox module, save equinox.filter(model, equinox.is_array), and "
            "load with like=model, or equinox.combine the two parts)"
        )
    base = next((b for b in _PYTHON_KINDS if isinstance(leaf, b)), None)
    if base is not None:
        return f"{name} is a subclass of {base.__name__}; convert it with {base.__name__}()"
    return (
        f"a value of type {name} cannot be stored; register it as a pytree node "
        "(jax.tree_util.register_dataclass, flax.struct.dataclass) or convert it to arrays"
    )


def _has_state(leaf: Any) -> bool:
    if isinstance(leaf, type):
        return False
    pairs = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
    return any(hasattr(leaf, get) and hasattr(leaf, put) for get, put in pairs)


def _shown(leaf: Any) -> str:
    text = " ".join(repr(leaf).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def host_array(leaf: Any) -> np.ndarray:
    """Return the elements of an array leaf, as a view of its memory if possible.

    numpy arrays are returned unchanged. For a jax.Array on one CPU device the result is a view
    that pins the buffer: drop it soon. Nothing is cached on the caller's array.
    """
    if type(leaf) is np.ndarray or not is_jax_array(leaf):
        return np.asarray(leaf)
    import jax

    devices = leaf.devices()
    if len(devices) == 1 and isinstance(leaf.dtype, np.dtype):
        return _on_device(leaf, *devices)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
        return np.asarray(jax.random.key_data(leaf))
    shards = [shard for shard in leaf.addressable_shards if shard.replica_id == 0]
    if leaf.is_fully_replicated:
        shards = leaf.addressable_shards[:1]
    if len(shards) == 1:
        return single_device_array(shards[0].data)
    whole = np.empty(leaf.shape, leaf.dtype)
    for shard in shards:
        whole[shard.index] = single_device_array(shard.data)
    return whole


def whole_array(leaf: Any) -> np.ndarray:
    """Return all elements of a leaf that this process holds completely; text as UTF-8 bytes."""
    if isinstance(leaf, str):
        leaf = leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return np.frombuffer(leaf, np.uint8)
    return without_padding(host_array(leaf))


def single_device_array(data: Any) -> np.ndarray:
    """Return the elements of a jax.Array on one device; see `host_array`."""
    return _on_device(data, *data.devices())


def _on_device(data: Any, device: Any) -> np.ndarray:
    pinned: Any = pinned_host(device)
    if pinned is None and is_cpu(device) and has_numpy_view(data.dtype):
        return np.asarray(data)
    # For any other array, np.asarray makes a copy, and jax caches it on the array. So a copy of
    # the array is converted. A computed copy would do too, but jax 0.10.2 cannot compute with
    # 1-bit types.
    import jax

    return np.asarray(jax.device_put(data, pinned or device, may_alias=False))


def has_numpy_view(dtype: np.dtype) -> bool:
    """Return True if np.asarray of a jax.Array on CPU is a view of its memory.

    It is for all types except those under eight bits, which XLA packs.
    """
    return dtype.kind != "V" or dtype.itemsize > 1 or dtype.name.startswith("float8")


def is_cpu(device: Any) -> bool:
    """Return True for a device whose memory is the host's, so that numpy can view its arrays."""
    return bool(device.platform == "cpu")


def may_be_on_accelerator(leaves: Sequence[Any]) -> bool:
    """Return True if there are jax.Arrays among the leaves and the default device is no CPU."""
    return any(map(is_jax_array, leaves)) and not is_cpu(sys.modules["jax"].devices()[0])


@cache
def pinned_host(device: Any) -> Any:
    """Return the sharding for host memory of an accelerator; None if there is none.

    That is pinned memory where the device has it. For a CPU device it is None: its memory is the
    host's.
    """
    import jax

    kinds = [memory.kind for memory in device.addressable_memories()]
    host = [kind for kind in ("pinned_host", "unpinned_host") if kind in kinds]
    if is_cpu(device) or not host:
        return None
    return jax.sharding.SingleDeviceSharding(device, memory_kind=host[0])


# Long doubles of x86 are numbers of 80 bits in 16 bytes.
# By type number, not by type character: ml_dtypes' float8_e4m3fnuz uses that of clongdouble.
_LONG = frozenset({np.dtype(np.longdouble).num, np.dtype(np.clongdouble).num})
_NUMBER_BYTES = 10
_ITEM_BYTES = 16


def has_padding(dtype: np.dtype) -> bool:
    """Return True if elements of a dtype have padding bytes."""
    # Long doubles of other platforms have other mantissas, and no padding.
    return dtype.num in _LONG and np.finfo(np.longdouble).nmant == 63


def without_padding(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy whose padding bytes are zeros if its elements have padding.

    Padding holds whatever was in memory before. Written unchanged, equal trees would give
    different bytes, and the file could disclose other data of the process.
    """
    if not has_padding(array.dtype):
        return array
    clean = array.astype(array.dtype.newbyteorder("="), order="C")
    clean.reshape(-1).view(np.uint8).reshape(-1, _ITEM_BYTES)[:, _NUMBER_BYTES:] = 0
    return clean
