"""tree_serialize_leaves: eFormer's call, implemented by cordwood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.api.save_rendezvous import rendezvous_for
from cordwood.compat.eformer.array_manager import ArrayManager, save_with_manager
from cordwood.compat.eformer.path_types import local_path
from cordwood.formats.zarr.format import ZARR
from cordwood.formats.zarr.plan_tree import draft
from cordwood.formats.zarr.write import save_draft
from cordwood.io.background_save import raise_unreported_failures, wait_for_saves
from cordwood.io.pause_python_gc import gc_paused
from cordwood.processes.rendezvous import TIMEOUT_SECONDS


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
    path = local_path(checkpoint_dir)
    callback = commit_callback or _nothing
    how = " through a manager" if manager is not None else ""
    with rendezvous_for(
        path,
        ZARR,
        prefix=prefix,
        compression=None,
        timeout_seconds=TIMEOUT_SECONDS,
        how=how if write_index else f"{how} without an index",
    ) as rendezvous:
        if rendezvous.count == 1:
            raise_unreported_failures()
        wait_for_saves(path)
        with gc_paused():
            item = draft(
                pytree,
                prefix=prefix or "",
                compression=None,
                metadata={},
                covered=write_index,
                rendezvous=rendezvous,
            )
            if manager is not None:
                save_with_manager(path, item, manager, callback, rendezvous)
                return
            save_draft(path, item, item.snapshot.leaves.__getitem__, rendezvous)
    if rendezvous.index == 0:
        callback()
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)


def _nothing() -> None:
    pass
