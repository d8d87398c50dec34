"""From an index to values: read what is wanted, and make each leaf what it is to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.engine.files import ReadableFile
from cordwood.errors import MismatchError
from cordwood.index import Encoding, Index, Inline, Leaf, LeafKind, Pieces
from cordwood.keypath import format_path
from cordwood.plan.load import Placement, plan_load

__all__ = ["Target", "decode", "read_leaves", "restore", "target_as_saved", "targets_as_saved"]

_new = tuple.__new__
_MAX_DIMS = 64  # of numpy
_NEED_X64 = frozenset({"int64", "uint64", "float64", "complex128"})


class Target(NamedTuple):
    """What a stored leaf is to become."""

    leaf: Leaf
    kind: LeafKind
    dtype: str  # other than the leaf's: converted
    weak_type: bool = False
    sharding: Any = None


def target_as_saved(leaf: Leaf, to: str | None) -> Target:
    """The kind of value it was, except that `to` decides for arrays."""
    (target,) = targets_as_saved([leaf], to)
    return target


def targets_as_saved(leaves: Sequence[Leaf], to: str | None) -> list[Target]:
    """Of each leaf the kind of value it was, except that `to` decides for arrays."""
    kinds = {kind: _kind_as_saved(kind, to) for kind in set(map(itemgetter(1), leaves))}
    targets = []
    for leaf in leaves:
        _, kind, _, dtype, _, weak_type, _ = leaf
        kind = kinds[kind]
        targets.append(_new(Target, (leaf, kind, dtype, weak_type and kind == "jax", None)))
    return targets


def _kind_as_saved(kind: LeafKind, to: str | None) -> LeafKind:
    if to is not None and kind in ("jax", "numpy"):
        return "jax" if to == "jax" else "numpy"
    if to == "numpy" and kind == "prng_key":
        return "numpy"
    return kind


def restore(
    index: Index,
    files: Sequence[ReadableFile],
    targets: Sequence[Target],
    *,
    mmap: bool,
    verify: bool,
    alias: bool,
) -> list[Any]:
    """The values of the targets, in their order.

    Raises:
        MismatchError: a 64-bit leaf is to become a jax array and 64-bit types are off, or a
            conversion to integers would change a value.
        CorruptionError: with `verify`, stored bytes do not match their digests.
    """
    _check_x64(files[0].name if files else "", targets)
    values: list[Any] = [None] * len(targets)
    stored: list[int] = []
    on_device: list[int] = []
    for i, target in enumerate(targets):
        storage = target[0].storage
        if not isinstance(storage, Inline):
            stored.append(i)
            continue
        values[i] = _inline(storage.value, target)
        if target.kind == "jax":
            on_device.append(i)
    arrays = read_leaves(index, files, [targets[i].leaf for i in stored], mmap=mmap, verify=verify)
    for i, array in zip(stored, arrays, strict=True):
        target = targets[i]
        leaf, kind, dtype, _, _ = target
        if dtype != leaf.dtype and dtype:
            array = _convert(array, target)
        if kind == "numpy":
            values[i] = array
        elif kind in ("jax", "prng_key"):
            on_device.append(i)
            values[i] = array
        else:
            values[i] = _as_kind(array, target)
    if on_device:
        from cordwood.engine.devices import Put, put_all

        puts = []
        for i in on_device:
            target = targets[i]
            impl = target.leaf.prng_impl if target.kind == "prng_key" else None
            puts.append(Put(values[i], target.weak_type, target.sharding, impl))
        for i, value in zip(on_device, put_all(puts, alias=alias), strict=True):
            values[i] = value
    return values


def _inline(value: Any, target: Target) -> Any:
    """A stored Python value, or the array of shape () that it is to become."""
    if not target.dtype:
        return value
    array = _convert(np.asarray(value), target)
    return array if target.kind == "jax" else _as_kind(array, target)


_PYTHON_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
}


def _as_kind(array: np.ndarray[Any, Any], target: Target) -> Any:
    """A host array as what a target is to be, jax arrays aside."""
    if target.kind == "numpy":
        return array
    if target.kind == "numpy_scalar":
        return array[()]
    if target.kind == "bytes":
        return array.tobytes()
    if target.kind == "str":
        return array.tobytes().decode("utf-8", "surrogatepass")
    stored = array.item()
    number = _PYTHON_NUMBERS[target.kind](stored)
    if number != stored and stored == stored:
        raise _would_change(target, target.kind)
    return number


def _would_change(target: Target, wanted: str) -> MismatchError:
    return MismatchError(
        f"{format_path(target.leaf.key_path)}: casting {target.leaf.dtype or target.leaf.kind} "
        f"to {wanted} would change values; load it as it is and convert it yourself"
    )


def _check_x64(name: str, targets: Sequence[Target]) -> None:
    if "jax" not in map(itemgetter(1), targets):
        return
    wide = [t for t in targets if t.kind == "jax" and (t.dtype or t.leaf.dtype) in _NEED_X64]
    if not wide:
        return
    import jax

    if jax.dtypes.canonicalize_dtype(np.int64) == np.int64:
        return
    lines = [f"  {format_path(t.leaf.key_path)}: {t.dtype or t.leaf.dtype}" for t in wide[:20]]
    more = f"\n  ... and {len(wide) - 20} more" if len(wide) > 20 else ""
    raise MismatchError(
        f"{name} has 64-bit leaves ({len(wide)} in all), and jax's 64-bit types are off: "
        'load with to="numpy", or call jax.config.update("jax_enable_x64", True) first, or pass '
        "a `like` of 32-bit arrays and cast=True:\n" + "\n".join(lines) + more
    )


def _convert(array: np.ndarray[Any, Any], target: Target) -> np.ndarray[Any, Any]:
    wanted = dtypes.to_numpy(target.dtype)
    with np.errstate(all="ignore"):
        result = array.astype(wanted)
        exact = target.dtype.startswith(("int", "uint", "bool"))
        exact = exact or (np.iscomplexobj(array) and not np.iscomplexobj(result))
        if exact and not _same_values(result, array):
            raise _would_change(target, target.dtype)
    return result


def _same_values(result: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    same = np.array_equal(result.astype(array.dtype), array)
    if np.iscomplexobj(array) or array.dtype.kind == "b":
        return same
    # A negative number wraps round into an unsigned one, and back.
    return same and np.array_equal(result < 0, array < 0)


def read_leaves(
    index: Index,
    files: Sequence[ReadableFile],
    leaves: Sequence[Leaf],
    *,
    mmap: bool,
    verify: bool,
) -> list[np.ndarray[Any, Any]]:
    """The arrays of leaves that are stored as pieces.

    Eager arrays own their memory and are writable. Mapped ones are read-only views into the
    file's mapping and keep it open; leaves that lie in several pieces, or not in this
    machine's byte order, are read even then.
    """
    if mmap:
        return _mapped(index, files, leaves, verify=verify)
    # The engine's reader is imported here so that looking at an index needs no threads.
    from cordwood.engine.read import execute_load

    plan = plan_load(leaves)
    digests = [source.digests for source in index.sources]
    return _views(
        execute_load(plan, files, digests=digests, verify=verify), leaves, plan.placements
    )


def _mapped(
    index: Index, files: Sequence[ReadableFile], leaves: Sequence[Leaf], *, verify: bool
) -> list[np.ndarray[Any, Any]]:
    maps = [np.frombuffer(file.map(), np.uint8) for file in files]
    if verify:
        _check_mapped(index, files)
    eager: list[int] = []
    mapped: list[int] = []
    placements: list[Placement] = []
    for i, leaf in enumerate(leaves):
        pieces, encoding = _pieces(leaf)
        if len(pieces) == 1 and encoding == "raw":
            mapped.append(i)
            placements.append(pieces[0][1:])
        else:
            eager.append(i)
    arrays = _views(maps, [leaves[i] for i in mapped], placements)
    if not eager:
        return arrays
    found = dict(zip(mapped, arrays, strict=True))
    read = read_leaves(index, files, [leaves[i] for i in eager], mmap=False, verify=verify)
    found.update(zip(eager, read, strict=True))
    return [found[i] for i in range(len(leaves))]


def _check_mapped(index: Index, files: Sequence[ReadableFile]) -> None:
    from cordwood.api.verify import check_sources

    check_sources(index, files)


def _pieces(leaf: Leaf) -> Pieces:
    assert isinstance(leaf.storage, Pieces)
    return leaf.storage


def _views(
    buffers: Sequence[np.ndarray[Any, Any]],
    leaves: Sequence[Leaf],
    placements: Sequence[Placement],
) -> list[np.ndarray[Any, Any]]:
    """The arrays of leaves that lie in buffers: views, where nothing has to be decoded."""
    arrays: list[np.ndarray[Any, Any]] = []
    first = 0
    while first < len(leaves):
        end = _end_of_run(leaves, placements, first)
        arrays += _run(buffers, leaves[first], placements[first], end - first)
        first = end
    return arrays


def _end_of_run(leaves: Sequence[Leaf], placements: Sequence[Placement], first: int) -> int:
    """Where the leaves end that lie after the one at `first` and are of the same type."""
    _, _, shape, dtype, storage, _, _ = leaves[first]
    buffer, position, length = placements[first]
    encoding = storage[1:]
    if not 0 < len(shape) < _MAX_DIMS:
        return first + 1
    for i in range(first + 1, len(leaves)):
        position += length
        _, _, its_shape, its_dtype, its_storage, _, _ = leaves[i]
        if (
            placements[i] != (buffer, position, length)
            or its_shape != shape
            or its_dtype != dtype
            or its_storage[1:] != encoding
        ):
            return i
    return len(leaves)


def _run(
    buffers: Sequence[np.ndarray[Any, Any]], leaf: Leaf, placement: Placement, count: int
) -> list[np.ndarray[Any, Any]]:
    """The arrays of `count` leaves like this one that lie one after another.

    They are the rows of one array: numpy makes those ten times as quickly as single views.
    """
    buffer, position, length = placement
    shape = leaf.shape if count == 1 else (count, *leaf.shape)
    encoding = _pieces(leaf).encoding
    if encoding == "raw":
        whole = _view(buffers[buffer], position, shape, leaf.dtype)
    else:
        raw = buffers[buffer][position : position + count * length]
        whole = decode(raw, encoding, shape, leaf.dtype)
    return [whole] if count == 1 else list(whole)


def _view(
    buffer: np.ndarray[Any, Any], offset: int, shape: tuple[int, ...], dtype: str
) -> np.ndarray[Any, Any]:
    if 0 in shape:
        return np.empty(shape, dtypes.to_numpy(dtype))
    return np.ndarray(shape, dtypes.to_numpy(dtype), buffer, offset)


def decode(
    raw: np.ndarray[Any, Any], encoding: Encoding, shape: tuple[int, ...], dtype: str
) -> np.ndarray[Any, Any]:
    """Elements from the bytes of a leaf as they were stored (uint8[bytes])."""
    count = math.prod(shape)
    numpy_dtype = dtypes.to_numpy(dtype)
    if encoding == "swapped":
        return raw.view(numpy_dtype).byteswap(inplace=True).reshape(shape)
    if encoding in ("packed4", "packed6"):
        width = int(encoding[-1])
        bits = np.unpackbits(raw, bitorder="little")[: count * width].reshape(count, width)
        elements = np.packbits(bits, axis=1, bitorder="little")
        return elements.reshape(-1).view(numpy_dtype).reshape(shape)
    return raw.view(numpy_dtype).reshape(shape)
