"""The calls of `eformer.serialization` for trees of arrays: switch by changing one import.

One file with the names that eFormer gives to leaves, and shardings by these names: its rules,
corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from cordwood.api.save import rendezvous_for
from cordwood.compat.eformer.array_manager import ArrayManager, load_leaves, save_with_manager
from cordwood.devices.device_memory import sharding_of
from cordwood.encoding.tensor_names import dotted_name
from cordwood.errors import MismatchError, UnsupportedFormatError
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.zarr import ZARR
from cordwood.formats.zarr.array_paths import ordinary_path
from cordwood.formats.zarr.plan_save import plan_item
from cordwood.formats.zarr.read_index import open_item
from cordwood.formats.zarr.write import save_item
from cordwood.index import ARRAY_KINDS, Index, jax_order
from cordwood.io.leaves_to_write import Leaves
from cordwood.keypath import KeyPath, format_path
from cordwood.loading.assign_shardings import IndivisibleError, array_shape, resolve_sharding
from cordwood.loading.load_request import LoadOptions, Target, default_targets
from cordwood.loading.match_like import match_like
from cordwood.message_text import first_lines
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.sharding.partition_rules import Rules, match_partition_rules, match_rule
from cordwood.storage.locations import LocalPath, parse_location
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.tree.flatten import entry_key, flatten

__all__ = [
    "is_array_like",
    "join_key",
    "leaf_key_paths",
    "match_partition_rules",
    "tree_deserialize_leaves",
    "tree_serialize_leaves",
]


def is_array_like(x: Any) -> bool:
    """Return whether an object has a shape and a dtype: arrays of any kind, not Python numbers.

    >>> is_array_like(3.5)
    False
    """
    return hasattr(x, "shape") and hasattr(x, "dtype")


def join_key(prefix: str | None, k: str | None) -> str:
    """Return 'prefix.key', or the one that is not empty, or ''."""
    return ".".join(part for part in (prefix, k) if part)


def leaf_key_paths(
    pytree: Any, prefix: str | None = "", *, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Return a tree of the same structure whose leaves are their '.'-joined key paths.

    Args:
        pytree: any jax pytree.
        prefix: put in front of every name; it is the name of a single leaf.
        is_leaf: as in jax.tree_util.tree_flatten.

    Returns:
        The same containers with strings as leaves. The names are readable, but not
        injective ({'a.b': x} and {'a': {'b': x}} share one); `format_path` is.

    >>> leaf_key_paths({"a": [1, (2,)]})
    {'a': ['a.0', ('a.1.0',)]}
    """
    import jax

    paths, treedef = jax.tree_util.tree_flatten_with_path(pytree, is_leaf=is_leaf)
    names = [
        join_key(prefix, ".".join(str(entry_key(entry)) for entry in path)) for path, _ in paths
    ]
    return jax.tree_util.tree_unflatten(treedef, names)


def tree_serialize_leaves(
    checkpoint_dir: Any,
    pytree: Any,
    manager: ArrayManager | None = None,
    *,
    prefix: str | None = None,
    commit_callback: Callable[[], None] | None = None,
    write_index: bool = True,
) -> None:
    """Save a tree as a directory of zarr arrays, which eFormer and TensorStore read.

    When this returns, a power cut cannot lose the checkpoint; until then the old one is unchanged.
    Trees under other prefixes in the directory are kept, and so are files that are not part of a
    checkpoint. All processes of `jax.distributed` must call it together, as `cordwood.save`.

    Args:
        checkpoint_dir: the directory: a path, or a file:// URL; created if it is missing.
        pytree: any tree that `cordwood.save` accepts. eFormer's loader returns only the arrays.
            cordwood's returns the whole tree with `like`; `cordwood.load` needs no `like`.
        manager: None: cordwood writes. Otherwise the manager's `serialize_with_paths` writes the
            jax arrays, perhaps in the background. The checkpoint is committed, index last, when
            the manager calls back; its `wait_until_finished` waits for that.
        prefix: a name for the tree, if the directory holds several trees.
        commit_callback: called when the checkpoint is committed; with several processes, on
            process 0, as in eFormer.
        write_index: False writes the arrays only; the caller writes the index. Such arrays have
            no digests.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path. Nothing
            has been written.
        UnsupportedFormatError: the URL is of an object store.
        NotACheckpointError: the directory holds something that this save would destroy.
        OSError: the operating system reported an error (disk full, no permission); the old
            checkpoint is unchanged.
        ProcessError: a process died, failed, came too late or has another tree; the message
            names it, and nothing was saved.
        PendingSaveError: an earlier `save_async` failed, and the failure was not reported yet.

    >>> import numpy as np
    >>> tree_serialize_leaves("zarr", {"w": np.ones(3, np.float32)}, prefix="params")
    """
    path = directory_path(checkpoint_dir)
    callback = commit_callback or (lambda: None)
    how = " through a manager" if manager is not None else ""
    how = how if write_index else f"{how} without an index"
    options = SaveOptions(prefix)
    with rendezvous_for(path, ZARR, options, TIMEOUT_SECONDS, how=how) as rendezvous:
        wait_for_saves(path)
        with gc_paused():
            item = plan_item(
                pytree,
                prefix=prefix or "",
                compression=None,
                metadata={},
                covered=write_index,
                rendezvous=rendezvous,
            )
            if manager is not None:
                save_with_manager(path.text, item, manager, callback, rendezvous)
                return
            leaves = Leaves(item.tree.leaves)
            run_in_worker(lambda: save_item(path, item, leaves, rendezvous))
    if rendezvous.index == 0:
        callback()
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)


def tree_deserialize_leaves(
    checkpoint_dir: Any,
    mesh: Any,
    manager: ArrayManager | None = None,
    *,
    prefix: str | None = None,
    partition_rules: Rules | None = None,
    shardings: Any = None,
    callback: Callable[[Any, str], Any] | None = None,
    chunk_size: int | None = None,
    like: Any = None,
) -> Any:
    """Load a directory written by `tree_serialize_leaves` of cordwood or of any eFormer version.

    Args:
        checkpoint_dir: the directory: a path, or a file:// URL.
        mesh: of the devices to load onto. None: leaves without a sharding go to the default device.
        manager: None: cordwood reads, and checks bytes that have a digest. Otherwise the
            manager's `deserialize_with_paths` and `wait_until_finished` load jax arrays, after
            their files are checked.
        prefix: the prefix under which the tree was saved.
        partition_rules: pairs of a regular expression and a PartitionSpec. The first expression
            found in the name of a leaf (keys joined by '/') counts; `shardings` is ignored.
        shardings: a jax Sharding, PartitionSpec or Format for each name: a dict by dotted names
            (without the prefix), or a tree of dicts like the result.
        callback: called with each array and its dotted name, in the order of the index; its
            result replaces the array.
        chunk_size: the number of arrays to load before the callback is called; None: all.
        like: a tree with the expected structure, shapes and dtypes; the result has its structure.

    Returns:
        Without `like`, nested dicts with string keys ("0" for a list's first element): jax
        arrays, and numpy arrays, scalars and strings as they were saved.

    Raises:
        FileNotFoundError: there is no checkpoint.
        PrefixError: there is no tree of that prefix.
        MismatchError: leaves do not fit `like` or their shardings; or there are 64-bit arrays
            while jax's 64-bit types are off.
        ValueError: a leaf has no sharding on a mesh of several axes, or no rule matches it.
        CorruptionError: files are missing or damaged.
        FormatError: the directory does not match its index.
    """
    path = directory_path(checkpoint_dir)
    wait_for_saves(path)
    item = open_item(path, prefix)
    with closing(item), gc_paused():
        index = item.index
        steps = leaf_steps(index, prefix or "")
        targets: Sequence[Target] = default_targets(index.leaves, None)
        order = leaf_order(index)
        rebuild = None
        if like is not None:
            fitted = match_like(index, like, LoadOptions(), name=path.text)
            position = {leaf.key_path: i for i, leaf in enumerate(index.leaves)}
            positions = [position[target.leaf.key_path] for target in fitted.targets]
            steps = [steps[i] for i in positions]
            rank = {i: n for n, i in enumerate(order)}
            order = sorted(range(len(positions)), key=lambda n: rank[positions[n]])
            targets, rebuild = fitted.targets, fitted.rebuild
        placed, formats = apply_shardings(
            targets,
            steps,
            mesh=mesh,
            rules=partition_rules,
            shardings=shardings,
            like=like is not None,
        )
        values: list[Any] = [None] * len(placed)
        arrays = [i for i in order if placed[i].leaf.kind in ARRAY_KINDS]
        size = chunk_size if chunk_size is not None and chunk_size > 0 else max(1, len(arrays))
        for start in range(0, len(arrays), size):
            batch = arrays[start : start + size]
            loaded = load_leaves(item, path.text, [placed[i] for i in batch], manager)
            for n, i in enumerate(batch):
                value = loaded[n]
                if i in formats:
                    import jax

                    value = jax.device_put(value, formats[i])
                loaded[n] = None  # the callback may release it
                values[i] = value if callback is None else callback(value, ".".join(steps[i]))
                del value
        rest = [i for i in order if placed[i].leaf.kind not in ARRAY_KINDS]
        loaded = load_leaves(item, path.text, [placed[i] for i in rest], None)
        for i, value in zip(rest, loaded, strict=True):
            values[i] = value
        if rebuild is not None:
            return rebuild(values)
        return nest_by_steps([steps[i] for i in order], [values[i] for i in order], name=path.text)


def directory_path(path: Any) -> LocalPath:
    """Return the path of a local directory: a str, a path object of any library, a file:// URL.

    Raises UnsupportedFormatError for a URL of anything else.
    """
    location = parse_location(path)
    if isinstance(location, LocalPath):
        return location
    raise UnsupportedFormatError(
        f"{location}: this layout replaces whole directories, which {location.scheme}:// cannot "
        "do; save to a local directory, or use cordwood.save, whose own layout any store can hold"
    )


KeySteps = tuple[str, ...]


def leaf_order(index: Index) -> list[int]:
    """Return the positions of the leaves in the order in which eFormer lists them."""
    return jax_order(index.structure) if index.naming == "exact" else list(range(len(index.leaves)))


def leaf_steps(index: Index, prefix: str) -> list[KeySteps]:
    """Return for each leaf the keys under which eFormer's loader puts it.

    The keys are the parts of the directory's path below the prefix, divided at dots and slashes. A
    leaf whose directory is not named so keeps its own keys.
    """
    result: list[KeySteps] = [()] * len(index.leaves)
    taken: set[KeySteps] = set()
    parents: set[KeySteps] = set()
    for i in leaf_order(index):
        path = index.leaves[i].key_path
        steps = _ordinary(path, prefix)
        if steps in taken or steps in parents or any(steps[:n] in taken for n in range(len(steps))):
            steps = tuple(format_path(path).split("/"))
        taken.add(steps)
        parents.update(steps[:n] for n in range(len(steps)))
        result[i] = steps
    return result


def _ordinary(path: KeyPath, prefix: str) -> KeySteps:
    if not path:  # the tree is one leaf, in the directory of the prefix itself
        return tuple(prefix.replace("/", ".").split(".")) if prefix else ("", "")
    ordinary = ordinary_path(dotted_name(path))
    if ordinary is None:
        return tuple(format_path(path).split("/"))
    return tuple(ordinary.split("/"))


def nest_by_steps(steps: Sequence[KeySteps], values: Sequence[Any], *, name: str) -> dict[str, Any]:
    """Return nested dicts with the values at these keys.

    Raises MismatchError if two leaves have the same keys, or one is inside another.
    """
    tree: dict[str, Any] = {}
    for path, value in zip(steps, values, strict=True):
        node: Any = tree
        for step in path[:-1]:
            node = node.setdefault(step, {})
            if type(node) is not dict:
                break
        if type(node) is not dict or path[-1] in node:
            raise MismatchError(
                f"{name}: {'.'.join(path)!r:.200} is the name of two leaves in a dict of strings; "
                "pass like=, or use cordwood.load, which keeps all keys as they are"
            )
        node[path[-1]] = value
    return tree


_PLACED = frozenset({"jax", "prng_key"})
_MAX_LINES = 20


def apply_shardings(
    targets: Sequence[Target],
    names: Sequence[KeySteps],
    *,
    mesh: Any,
    rules: Rules | None,
    shardings: Any,
    like: bool,
) -> tuple[list[Target], dict[int, Any]]:
    """Return the targets with their shardings, and the formats (layouts in memory) of some of them.

    If there are rules, only they count. Otherwise the first of these counts: the entry of
    `shardings`; the sharding of the target (from `like`); replication over the mesh, which must
    have one axis unless `like` was passed. numpy arrays and scalars are not changed.

    Raises:
        ValueError: no rule matches a name, or nothing but a mesh of several axes was passed.
        TypeError: an entry is not a sharding.
        MismatchError: shapes do not fit their shardings; the message names all of them.
    """
    if rules is not None and mesh is None:
        raise ValueError("partition_rules give partition specs, which need a mesh: pass one")
    entries = _entries(shardings)
    placed: list[Target] = []
    formats: dict[int, Any] = {}
    problems: list[str] = []
    for i, (target, steps) in enumerate(zip(targets, names, strict=True)):
        if target.kind not in _PLACED:
            placed.append(target)
            continue
        name = ".".join(steps)
        shape = array_shape(target)
        if rules is not None:
            import jax

            spec = match_rule(rules, "/".join(steps))
            if isinstance(spec, jax.sharding.PartitionSpec):
                spec = type(spec)(*tuple(spec)[: len(shape)])
        else:
            spec = entries.get(name)
        if spec is None:
            spec = target.sharding
        if spec is None and mesh is not None and len(mesh.axis_names) > 1 and not like:
            raise ValueError(
                f"No sharding specified for {name!r} on multi-axis mesh. Provide 'shardings' or "
                "'partition_rules'."
            )
        try:
            value = resolve_sharding(spec, mesh, shape, f"shardings: {name}")
        except IndivisibleError as e:
            problems.append(f"{name}: {e}")
            continue
        sharding = sharding_of(value)
        placed.append(target._replace(sharding=sharding))
        if value is not sharding:
            formats[i] = value
    if problems:
        lines = first_lines(problems, _MAX_LINES)
        raise MismatchError(f"shardings do not fit their leaves:\n{lines}")
    return placed, formats


def _entries(shardings: Any) -> dict[str, Any]:
    """Return the entries of a flat dict or of a tree, by dotted name."""
    if shardings is None:
        return {}
    flat = flatten(shardings)
    by_name: dict[str, Any] = {}
    for path, value in zip(flat.paths, flat.leaves, strict=True):
        name = ".".join([str(getattr(key, "value", key)) for key in path]).replace("/", ".")
        if by_name.setdefault(name, value) is not value:
            raise ValueError(f"shardings: there are two entries for {name!r}")
    return by_name
