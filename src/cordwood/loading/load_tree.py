"""A load from an open checkpoint: select, match, cast, assign shardings, restore, rebuild.

A leaf is read whole, or as the boxes of it that this process's devices need. Leaves on their way
to accelerators are read in groups, into memory that is used again (`transfer_ring.py`): while one
group is sent, the next one is read. A load to the CPU needs no groups: jax uses the memory that the
leaves were read into.

One file: the way of a load from its options to the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from cordwood import dtypes
from cordwood.errors import FormatError, MismatchError
from cordwood.index import Box, Index, Inline, Leaf
from cordwood.io.find_damage import check_sources
from cordwood.io.garbage_collector import gc_paused
from cordwood.io.log import log
from cordwood.io.progress import progress_display, report_progress
from cordwood.keypath import KeyPath, format_path, path_label
from cordwood.loading.abstract_meshes import need_devices
from cordwood.loading.assign_shardings import assign_shardings
from cordwood.loading.cast import (
    cast_targets,
    convert_dtype,
    convert_inline,
    convert_kind,
    transpose_copy,
)
from cordwood.loading.leaf_reader import Array, Boxes, LeafReader
from cordwood.loading.load_request import (
    LoadOptions,
    Target,
    check_x64,
    default_targets,
    target_size_bytes,
)
from cordwood.loading.match_by_position import match_by_position
from cordwood.loading.match_like import match_like
from cordwood.loading.match_names import SEPARATORS
from cordwood.loading.matching import Matching
from cordwood.loading.migrations import migration_error
from cordwood.loading.nnx_like import warn_of_lost_ties, with_kinds_of_nnx
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.message_text import counted, first_lines
from cordwood.plan.keys_of_like import with_keys_of_like
from cordwood.plan.load_pieces import first_byte
from cordwood.plan.select_leaves import SelectedLeaves, permute_shape, select_leaves, stored_box
from cordwood.sharding.boxes import element_count
from cordwood.sharding.partition_rules import explain_sharding_error
from cordwood.tree.flatten import build_tree, flatten
from cordwood.tree.nnx_modules import has_nnx

if TYPE_CHECKING:
    from cordwood.loading.transfer_ring import TransferRing

DeviceBoxes: TypeAlias = Mapping[int, Mapping[Any, Box]]  # by position of the target; by device

_ON_DEVICE = frozenset({"jax", "prng_key"})


@gc_paused()
def load_tree(reader: LeafReader, like: Any, options: LoadOptions) -> Any:
    """Return the tree of a checkpoint, or the selected part of it.

    Args:
        reader: the open checkpoint.
        like: as in `cordwood.load`.
        options: as in `cordwood.load`.

    Raises what `cordwood.load` documents.
    """
    options.require_valid(like)
    part, matching, options = _matched(reader, like, options)
    mmap, name, targets = options.mmap, reader.path, matching.targets
    if options.assigns_shardings or need_devices(targets):
        targets = assign_shardings(options, targets, matching.paths)
    check_x64(name, targets, has_like=like is not None, cast=options.cast)
    if part.stored is not reader.index:
        targets = _stored_targets(reader, part, targets)
    verify = not mmap if options.verify is None else options.verify
    with ExitStack() as stack:
        if options.progress is not None:
            report = stack.enter_context(progress_display(options.progress, "loading"))
            size_bytes = sum(map(target_size_bytes, targets))
            stack.enter_context(report_progress(size_bytes, report))
        values = restore_targets(reader, targets, mmap=mmap, verify=verify, alias=options.alias)
    return matching.rebuild(values)


def _matched(
    reader: LeafReader, like: Any, options: LoadOptions
) -> tuple[SelectedLeaves, Matching, LoadOptions]:
    """Return the leaves to load, what to make of them, and the options by which they fit `like`.

    Migrations are tried in order, if the checkpoint does not fit without them. Nothing is read.
    """
    problems = []
    for number, attempt in enumerate(options.attempts(), start=-1):
        try:
            result = _matched_by(reader, like, attempt)
        except MismatchError as e:
            problems.append(e)
            continue
        if number >= 0:
            log.info(
                "%s does not fit as it is, and is loaded by migrations[%d] = %.200r",
                reader.path,
                number,
                options.migrations[number],
            )
        return *result, attempt
    if options.migrations:
        raise migration_error(reader.path, options.migrations, problems)
    raise problems[0]


def _matched_by(
    reader: LeafReader, like: Any, options: LoadOptions
) -> tuple[SelectedLeaves, Matching]:
    cast, name = options.cast, reader.path
    part = _selected(reader, options)
    index = part.stored
    if like is None:
        matching = match_without_like(index, options, name=name)
    elif index.naming == "positions":
        matching = match_by_position(index, like, options, name=name)
    else:
        if part.moved or has_nnx():
            flat = flatten(like)
            warn_of_lost_ties(flat)
            part = with_kinds_of_nnx(part, flat)
            if part.moved and index.naming == "exact":
                part = with_keys_of_like(part, flat.structure, flat.paths)
        index = part.stored
        transposed = {index.leaves[i].key_path for i in part.axes}
        matching = match_like(
            index,
            like,
            options,
            name=name,
            left_out=part.left_out,
            transposed=transposed,
            moved=part.moved,
        )
    targets = matching.targets
    if "unreadable" in map(itemgetter(1), targets):
        require_readable([target.leaf for target in targets], index.naming, name=name)
    if cast is not None and not isinstance(cast, bool):
        paths = [target.leaf.key_path for target in targets]
        targets = cast_targets(targets, paths, cast, naming=index.naming, where=name)
    return part, matching._replace(targets=targets)


def _selected(reader: LeafReader, options: LoadOptions) -> SelectedLeaves:
    select, rename, transpose = options.select, options.rename, options.transpose
    if select is None and not rename and transpose is None:
        return SelectedLeaves(reader.index, ())
    if reader.index.naming == "positions":
        raise MismatchError(
            f"{reader.path} holds arrays without names, which select, rename and transpose need"
        )
    return select_leaves(
        reader.index, select=select, rename=rename, transpose=transpose, where=reader.path
    )


def _stored_targets(
    reader: LeafReader, part: SelectedLeaves, targets: Sequence[Target]
) -> list[Target]:
    """Return the targets of selected leaves, with the leaves of the checkpoint itself."""
    leaves = reader.index.leaves
    position = {id(leaf): i for i, leaf in enumerate(part.stored.leaves)}
    positions = [position[id(target.leaf)] for target in targets]
    return [
        target._replace(leaf=leaves[part.numbers[i]], axes=part.axes.get(i))
        for target, i in zip(targets, positions, strict=True)
    ]


def match_without_like(index: Index, options: LoadOptions, *, name: str) -> Matching:
    """Return targets for all leaves of the index, of the kinds that were saved.

    Args:
        index: the stored leaves.
        options: `to` and `nest` are used.
        name: the checkpoint's name in errors.

    Raises:
        MismatchError: leaves have no names, so only a `like` could give the structure.
        ValueError: `nest` is true and the names to split are in containers, or `rename` has
            turned them into paths.
    """
    if index.naming == "positions":
        raise MismatchError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: pass "
            "like=, a tree like the one that was saved (equinox.filter_eval_shape makes one that "
            "takes no memory)"
        )
    paths = [leaf.key_path for leaf in index.leaves]
    targets = default_targets(index.leaves, options.to)
    separator = SEPARATORS.get(index.naming)
    if options.nest and separator is None:
        separator = _separator_of(paths, name)
    if not options.nest or separator is None:
        return Matching(targets, paths, lambda values: build_tree(index.structure, values))
    if any(len(path) > 1 for path in paths):
        raise ValueError("nest=True is for names as they are; rename has made paths of some")
    paths = [tuple(separator.join(map(str, path)).split(separator)) for path in paths]

    def rebuild(values: Sequence[Any]) -> Any:
        return nest_names(build_tree(index.structure, values), separator, name)

    return Matching(targets, paths, rebuild)


def _separator_of(paths: Sequence[KeyPath], name: str) -> str | None:
    """Return the separator of the joined keys of a flat dict; None if no keys are joined.

    Raises ValueError if keys are joined by '.' and the dict is not flat.
    """
    joined = [path for path in paths if any(isinstance(key, str) and "." in key for key in path)]
    if not all(len(path) == 1 and isinstance(path[0], str) for path in paths):
        if joined:
            raise ValueError(
                f"nest=True: {name} holds containers already, and {format_path(joined[0])} has a "
                "key that is joined by '.': only the keys of one flat dict are split; load "
                "it without nest=True, or with rename="
            )
        return None
    if joined:
        return "."
    return "/" if any("/" in str(path[0]) for path in paths) else None


def nest_names(flat: dict[str, Any], separator: str, file_name: str) -> dict[str, Any]:
    """Return nested dicts: {'a.b': x} becomes {'a': {'b': x}} if the separator is '.'.

    Raises:
        FormatError: one name is both a leaf and a prefix of another.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(separator)
        node, prefix = tree, ""
        for parent in parents:
            prefix = f"{prefix}{separator}{parent}" if node is not tree else parent
            if prefix in flat:
                raise FormatError(
                    f"{file_name}: {name!r} cannot be nested: {prefix!r} is a leaf too; "
                    "load it without nest=True"
                )
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def restore_targets(
    reader: LeafReader,
    targets: Sequence[Target],
    *,
    mmap: bool = False,
    verify: bool = True,
    alias: bool = True,
    group_bytes: int | None = None,
) -> list[Any]:
    """Return the values of the targets, in their order.

    Args:
        reader: the open checkpoint.
        targets: leaves of its index, and what to make of them.
        mmap: map the files instead of reading them.
        verify: check digests.
        alias: on CPU, jax may use the memory that the leaves were read into.
        group_bytes: the size of a group of leaves that are sent to accelerators together (a larger
            leaf is a group of its own). None: a part of the load, as its memory is chosen.

    Raises:
        MismatchError: a target is a 64-bit jax array while jax's 64-bit types are off, or a
            conversion to integers would change a value, or a sharding does not fit its leaf.
        CorruptionError: with `verify`, stored bytes do not match their digests.
    """
    if "unreadable" in map(itemgetter(1), targets):
        require_readable([target.leaf for target in targets], reader.index.naming, name=reader.path)
    check_x64(reader.files[0].name if reader.files else "", targets)
    on_devices = device_boxes(targets)
    unique = _unique_boxes(on_devices)
    leaves = reader.with_pieces([target[0] for target in targets], unique)
    if mmap and verify:
        check_sources(reader.index, reader.files, reader.digests)
    sent = _positions_on_accelerators(targets)
    if not sent:
        values = _read_and_convert(reader, targets, leaves, unique, mmap=mmap, verify=verify)
        _put(values, targets, on_devices, alias=alias)
        return values
    from cordwood.devices.device_memory import local_device
    from cordwood.loading.transfer_ring import TransferRing

    sizes = _sizes_on_devices(targets, leaves, unique)
    device = local_device([targets[i].sharding for i in sent])
    ring = TransferRing(sum([sizes[i] for i in sent]), device)
    groups = _groups(sent, leaves, sizes, group_bytes or ring.group_bytes)
    on_host = sorted(set(range(len(targets))).difference(sent))
    values = [None] * len(targets)
    for group in [on_host, *groups] if on_host else groups:
        memory = None if group is on_host else ring
        if memory is not None:
            memory.begin_group()
        some = [targets[i] for i in group]
        group_values = _read_and_convert(
            reader,
            some,
            [leaves[i] for i in group],
            {n: unique[i] for n, i in enumerate(group) if i in unique},
            mmap=mmap,
            verify=verify,
            memory=memory,
        )
        boxes = {n: on_devices[i] for n, i in enumerate(group) if i in on_devices}
        _put(group_values, some, boxes, alias=alias)
        if memory is not None:
            memory.end_group(group_values)
        for i, value in zip(group, group_values, strict=True):
            values[i] = value
    return values


def _positions_on_accelerators(targets: Sequence[Target]) -> list[int]:
    """Return the positions of the targets that go to memory of accelerators."""
    on_device = [i for i, target in enumerate(targets) if target[1] in _ON_DEVICE]
    if not on_device:
        return []
    from cordwood.devices.device_memory import is_in_accelerator_memory

    shardings = {id(targets[i][4]): targets[i][4] for i in on_device}
    answers = {key: is_in_accelerator_memory(sharding) for key, sharding in shardings.items()}
    return [i for i in on_device if answers[id(targets[i][4])]]


def device_boxes(targets: Sequence[Target]) -> dict[int, dict[Any, Box]]:
    """Return the boxes that this process's devices need, by position of the target and device.

    Leaves that are whole on one device have no entry. The boxes are in the stored order of axes,
    also for leaves that are transposed.

    Raises:
        MismatchError: a leaf cannot be cut as its sharding says; the message names all of them.
    """
    placed = [
        i for i, target in enumerate(targets) if target[4] is not None and target[1] in _ON_DEVICE
    ]
    if not placed:
        return {}
    from cordwood.devices.device_memory import sharding_of
    from cordwood.devices.local_boxes import key_boxes, local_boxes, spans_devices

    result: dict[int, dict[Any, Box]] = {}
    cache: dict[Any, dict[Any, Box] | None] = {}
    problems = []
    for i in placed:
        leaf, kind, _, _, requested, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
        key = requested, shape, impl, axes
        if key not in cache:
            sharding = sharding_of(requested)
            try:
                if impl is not None:
                    cache[key] = key_boxes(sharding, shape, impl)
                elif requested is not sharding or spans_devices(sharding):
                    local = local_boxes(sharding, shape)
                    cache[key] = {device: stored_box(box, axes) for device, box in local.items()}
                else:
                    cache[key] = None
            except (ValueError, IndexError) as e:
                reason = explain_sharding_error(shape, sharding, None, e)
                problems.append(f"{path_label(leaf.key_path)}: {reason}")
                continue
        boxes = cache[key]
        if boxes is not None:
            result[i] = boxes
    if problems:
        raise MismatchError(f"shardings do not fit their leaves:\n{first_lines(problems, 20)}")
    return result


def _unique_boxes(on_devices: DeviceBoxes) -> Boxes:
    """Return the boxes to read of each leaf: each one once, in the order of the devices."""
    distinct = {id(boxes): boxes for boxes in on_devices.values()}  # shared by leaves cut alike
    unique = {key: tuple(dict.fromkeys(boxes.values())) for key, boxes in distinct.items()}
    return {i: unique[id(boxes)] for i, boxes in on_devices.items()}


def _sizes_on_devices(targets: Sequence[Target], leaves: Sequence[Leaf], boxes: Boxes) -> list[int]:
    """Return the bytes that are read for each target, for the devices of this process."""
    return [
        sum(map(element_count, boxes[i])) * dtypes.itemsize(leaves[i].dtype)
        if i in boxes
        else target_size_bytes(target)
        for i, target in enumerate(targets)
    ]


def _groups(
    positions: Sequence[int], leaves: Sequence[Leaf], sizes: Sequence[int], group_bytes: int
) -> list[list[int]]:
    """Return the positions of targets in groups, in the order of their bytes in the files.

    A group has at most `group_bytes` bytes, or it is a single larger leaf.
    """
    groups: list[list[int]] = []
    free_bytes = 0
    for i in sorted(positions, key=lambda i: first_byte(leaves[i])):
        if not groups or sizes[i] > free_bytes:
            groups.append([])
            free_bytes = group_bytes
        groups[-1].append(i)
        free_bytes -= sizes[i]
    return groups


def _read_and_convert(
    reader: LeafReader,
    targets: Sequence[Target],
    leaves: Sequence[Leaf],
    boxes: Boxes,
    *,
    mmap: bool,
    verify: bool,
    memory: TransferRing | None = None,
) -> list[Any]:
    """Return the values on the host; of a leaf with boxes, a list of their arrays.

    `memory` is what stored bytes are read into; None: new memory.
    """
    values: list[Any] = [None] * len(targets)
    stored: list[int] = []
    for i, leaf in enumerate(leaves):
        storage = leaf[4]
        if type(storage) is not Inline:
            stored.append(i)
            continue
        target, value = targets[i], storage.value
        values[i] = convert_inline(value, target) if target.dtype else value
        if i in boxes:
            values[i] = [values[i]] * len(boxes[i])
    cuts = {n: boxes[i] for n, i in enumerate(stored) if i in boxes} if boxes else boxes
    stored_leaves = [leaves[i] for i in stored]
    arrays = reader.read(stored_leaves, cuts, mmap=mmap, verify=verify, memory=memory)
    if boxes:
        rest = iter(arrays)
        for i in stored:
            values[i] = [next(rest) for _ in boxes[i]] if i in boxes else next(rest)
        del rest
    else:
        for i, array in zip(stored, arrays, strict=True):
            values[i] = array
    del arrays  # a stored array is dropped once it is converted
    for i in stored:
        target = targets[i]
        leaf, kind, dtype, _, _, axes = target
        if kind in _ARRAYS and axes is None and (dtype == leaf[3] or not dtype):
            continue  # most leaves
        if i in boxes:
            for n, array in enumerate(values[i]):
                values[i][n] = _converted(array, target)
            continue
        array = values[i] = _converted(values[i], target, as_view=mmap)
        if kind not in _ARRAYS:
            values[i] = convert_kind(array, target)
    return values


_ARRAYS = frozenset({"jax", "prng_key", "numpy"})


def _converted(array: Array, target: Target, *, as_view: bool = False) -> Array:
    """Return the array with the dtype and the axes of the target."""
    if target.dtype != target.leaf.dtype and target.dtype:
        array = convert_dtype(array, target)
    if target.axes is None:
        return array
    return array.transpose(target.axes) if as_view else transpose_copy(array, target.axes)


def _put(values: list[Any], targets: Sequence[Target], boxes: DeviceBoxes, *, alias: bool) -> None:
    """Replace the host arrays in `values` that belong on devices by jax arrays."""
    on_device = [i for i, target in enumerate(targets) if target[1] in _ON_DEVICE]
    if not on_device:
        return
    import jax

    from cordwood.devices.device_memory import sharding_of
    from cordwood.devices.private_jax import DevicePut
    from cordwood.devices.put_arrays import Shards, put_all, put_shards

    whole = [i for i in on_device if i not in boxes] if boxes else on_device
    puts = []
    for i in whole:
        leaf, kind, _, weak_type, requested, _ = targets[i]
        impl = leaf[6] if kind == "prng_key" else None
        puts.append(DevicePut(values[i], weak_type, requested, impl))
    for i in boxes:
        leaf, kind, dtype, weak_type, requested, axes = targets[i]
        impl = leaf.prng_impl if kind == "prng_key" else None
        arrays = _by_device(values[i], boxes[i])
        sharding = sharding_of(requested)
        shape = leaf.shape if axes is None else permute_shape(leaf.shape, axes)
        shards = Shards(shape, arrays, sharding, dtypes.to_numpy(dtype), weak_type, impl)
        values[i] = put_shards(shards, alias=alias)
        if requested is not sharding:  # a Format, which has a layout too
            values[i] = jax.device_put(values[i], requested)
    for i, value in zip(whole, put_all(puts, alias=alias), strict=True):
        values[i] = value


def _by_device(arrays: Sequence[Array], boxes: Mapping[Any, Box]) -> dict[Any, Array]:
    """Return the array for each device. `arrays` has one for each distinct box."""
    if len(arrays) == len(boxes):  # no box twice: they are in the order of the devices
        return dict(zip(boxes, arrays, strict=True))
    array_of = dict(zip(dict.fromkeys(boxes.values()), arrays, strict=True))
    return {device: array_of[box] for device, box in boxes.items()}
