"""Restoring of targets: read the leaves, and convert each to the kind of its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Digests, Index, Inline, Leaf, LeafKind
from cordwood.io.check_sources import check_sources
from cordwood.io.source_digests import SourceDigests
from cordwood.keypath import format_path
from cordwood.loading.convert_leaf import (
    convert_dtype,
    convert_inline,
    convert_kind,
    transpose_copy,
)
from cordwood.loading.device_batches import GROUP_BYTES
from cordwood.loading.leaf_target import Target
from cordwood.loading.read_context import ReadContext
from cordwood.loading.read_whole_leaves import read_leaves
from cordwood.loading.reshard import are_stored_in_order, device_boxes, restore_boxes
from cordwood.message_text import first_lines
from cordwood.storage.open_files import ReadableFile

_new = tuple.__new__
_NEED_X64 = frozenset({"int64", "uint64", "float64", "complex128"})


def default_target(leaf: Leaf, to: str | None) -> Target:
    """Return the target of one leaf; see `default_targets`."""
    (target,) = default_targets([leaf], to)
    return target


def default_targets(leaves: Sequence[Leaf], to: str | None) -> list[Target]:
    """Return targets of the kinds that were saved; `to` ("jax" or "numpy") decides for arrays."""
    if not leaves:
        return []
    _, stored_as, _, dtypes, _, weak_types, _ = zip(*leaves, strict=True)
    kind_of = {kind: _kind_as_saved(kind, to) for kind in set(stored_as)}
    kinds = [kind_of[kind] for kind in stored_as]
    if any(weak_types):
        weak_types = tuple([w and k == "jax" for w, k in zip(weak_types, kinds, strict=True)])
    columns = zip(leaves, kinds, dtypes, weak_types, repeat(None), repeat(None))
    return list(map(_new, repeat(Target), columns))


def _kind_as_saved(kind: LeafKind, to: str | None) -> LeafKind:
    if to is not None and kind in ("jax", "numpy"):
        return "jax" if to == "jax" else "numpy"
    if to == "numpy" and kind == "prng_key":
        return "numpy"
    return kind


def restore_targets(
    index: Index,
    files: Sequence[ReadableFile],
    targets: Sequence[Target],
    *,
    mmap: bool,
    verify: bool,
    alias: bool,
    digests: Sequence[Digests | None] | None = None,
    budget_bytes: int | None = None,
) -> list[Any]:
    """Return the values of the targets, in their order.

    Args:
        index: the index of the checkpoint.
        files: its sources, open.
        targets: the leaves and what to make of them.
        mmap: map the files instead of reading them.
        verify: check digests.
        alias: on CPU, jax may use the memory that the leaves were read into.
        digests: the digests of each source. None: those in the index.
        budget_bytes: the size of a group of leaves on the way to devices; the host holds two
            groups. None: GROUP_BYTES if the devices have their own memory, else no groups.

    Raises:
        MismatchError: a target is a 64-bit jax array while jax's 64-bit types are off, or a
            conversion to integers would change a value, or a sharding does not fit its leaf.
        CorruptionError: with `verify`, stored bytes do not match their digests.
    """
    check_x64(files[0].name if files else "", targets)
    all_digests = SourceDigests(index.sources) if digests is None else digests
    if mmap and verify:
        check_sources(index, files, all_digests)
    reading = ReadContext(index.sources, files, all_digests, mmap, verify and not mmap)
    boxes = device_boxes(targets)
    if budget_bytes is None and _leaves_the_host(targets):
        budget_bytes = GROUP_BYTES
    if boxes or budget_bytes is not None or not are_stored_in_order(targets):
        return restore_boxes(reading, targets, boxes, alias=alias, budget_bytes=budget_bytes)
    values: list[Any] = [None] * len(targets)
    stored: list[int] = []
    on_device: list[int] = []
    leaves = list(map(itemgetter(0), targets))
    for i, storage in enumerate(map(itemgetter(4), leaves)):
        if type(storage) is not Inline:
            stored.append(i)
            continue
        values[i] = convert_inline(storage.value, targets[i])
        if targets[i].kind == "jax":
            on_device.append(i)
    arrays: list[Any] = read_leaves(reading, [leaves[i] for i in stored])
    for n, i in enumerate(stored):
        array, arrays[n] = arrays[n], None  # drop the stored array once it is converted
        target = targets[i]
        leaf, kind, dtype, _, _, axes = target
        if dtype != leaf[3] and dtype:
            array = convert_dtype(array, target)
        if axes is not None:
            array = np.transpose(array, axes) if mmap else transpose_copy(array, axes)
        if kind == "numpy":
            values[i] = array
        elif kind in ("jax", "prng_key"):
            on_device.append(i)
            values[i] = array
        else:
            values[i] = convert_kind(array, target)
    if on_device:
        from cordwood.devices.to_jax import DevicePut, put_all

        puts = []
        for i in on_device:
            target = targets[i]
            impl = target.leaf.prng_impl if target.kind == "prng_key" else None
            puts.append(DevicePut(values[i], target.weak_type, target.sharding, impl))
        for i, value in zip(on_device, put_all(puts, alias=alias), strict=True):
            values[i] = value
    return values


def _leaves_the_host(targets: Sequence[Target]) -> bool:
    shardings = [target.sharding for target in targets if target.kind in ("jax", "prng_key")]
    if not shardings:
        return False
    from cordwood.devices.to_jax import any_off_cpu

    return any_off_cpu(shardings)


def check_x64(
    name: str, targets: Sequence[Target], *, has_like: bool = True, cast: Any = None
) -> None:
    """Raise MismatchError for 64-bit leaves that jax would truncate to 32 bits.

    Args:
        name: the checkpoint's name in errors.
        targets: the leaves and what to make of them.
        has_like: a `like` gives the dtypes of the leaves.
        cast: the caller's argument; the message proposes a mapping that extends it.
    """
    if "jax" not in map(itemgetter(1), targets):
        return
    wide = [t for t in targets if t.kind == "jax" and (t.dtype or t.leaf.dtype) in _NEED_X64]
    if not wide:
        return
    import jax

    if jax.dtypes.canonicalize_dtype(np.int64) == np.int64:
        return
    lines = [f"{format_path(t.leaf.key_path)}: {t.dtype or t.leaf.dtype}" for t in wide]
    advice = "a `like` of 32-bit arrays and cast=True"
    if not has_like:
        first = format_path(wide[0].leaf.key_path)
        advice = f'{_narrower(wide, cast)}, or leave leaves out: select=["**", "!{first}"]'
    raise MismatchError(
        f"{name} has 64-bit leaves ({len(wide)} in all), and jax's 64-bit types are off: "
        'load with to="numpy", or call jax.config.update("jax_enable_x64", True) first, or pass '
        f"{advice}:\n{first_lines(lines, 20)}"
    )


def _narrower(wide: Sequence[Target], cast: Any) -> str:
    """Return the source text of a `cast` that makes those leaves 32-bit ones."""
    entries: dict[str, str] = {}
    has_floats = False
    for target in wide:
        dtype = target.dtype or target.leaf.dtype
        if dtype == "float64":
            has_floats = True
        else:
            narrow = "complex64" if dtype == "complex128" else dtype.replace("64", "32")
            entries[format_path(target.leaf.key_path)] = narrow
    shown = [f'"{name}": "{dtype}"' for name, dtype in list(entries.items())[:3]]
    if len(entries) > len(shown):
        shown.append("...")
    if isinstance(cast, Mapping):
        shown += [f'"{name}": "{dtypes.parse(dtype)}"' for name, dtype in cast.items()]
        if has_floats:
            shown.append('"**": "float32"')
    elif has_floats or not isinstance(cast, bool | None):
        rest = "float32" if has_floats else cast if isinstance(cast, str) else dtypes.parse(cast)
        if not shown:
            return f'cast="{rest}"'
        shown.append(f'"**": "{rest}"')
    return f"cast={{{', '.join(shown)}}}"
