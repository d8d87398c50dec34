"""The calls of `eformer.serialization` for trees of arrays: switch by changing one import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from cordwood.compat.eformer.apply_shardings import apply_shardings
from cordwood.compat.eformer.array_manager import ArrayManager, load_leaves, save_with_manager
from cordwood.compat.eformer.leaf_names import (
    is_array_like,
    join_key,
    leaf_key_paths,
    leaf_order,
    leaf_steps,
    nest_by_steps,
)
from cordwood.errors import UnsupportedFormatError
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.table import ZARR
from cordwood.formats.zarr.plan_item import plan_item
from cordwood.formats.zarr.read_index import open_prefix
from cordwood.formats.zarr.write import save_item
from cordwood.index import ARRAY_KINDS
from cordwood.io.leaves_to_write import Leaves
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import Target, default_targets
from cordwood.loading.matching.match_like import match_like
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.save_rendezvous import rendezvous_for
from cordwood.sharding.partition_rules import Rules, match_partition_rules
from cordwood.storage.locations import LocalPath, parse_location
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.run_in_worker import run_in_worker

__all__ = [
    "is_array_like",
    "join_key",
    "leaf_key_paths",
    "match_partition_rules",
    "tree_deserialize_leaves",
    "tree_serialize_leaves",
]


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
    item = open_prefix(path, prefix)
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
        other_leaves = [i for i in order if placed[i].leaf.kind not in ARRAY_KINDS]
        loaded = load_leaves(item, path.text, [placed[i] for i in other_leaves], None)
        for i, value in zip(other_leaves, loaded, strict=True):
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
