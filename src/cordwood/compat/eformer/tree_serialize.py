"""tree_serialize_leaves: eFormer's call, on cordwood's engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.api.save_rendezvous import rendezvous_for
from cordwood.compat.eformer.array_manager import ArrayManager, save_with_manager
from cordwood.compat.eformer.path_types import local_path
from cordwood.formats.zarr.format import ZARR
from cordwood.formats.zarr.plan_tree import draft
from cordwood.formats.zarr.save import save_draft
from cordwood.io.background_save import raise_unreported_failures, wait_for_saves
from cordwood.io.gc_pause import gc_paused
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

    When this returns, a power cut cannot lose it; until then what was there is whole. What other
    prefixes have saved there stays, and so do files that are no part of a checkpoint. All
    processes of `jax.distributed` call it together, as `cordwood.save`.

    Args:
        checkpoint_dir: the directory: a path, or a file:// URL; made where it is missing.
        pytree: as `cordwood.save` takes. eFormer's loader sees the arrays; cordwood's
            brings all of it back with `like`, as `cordwood.load` does without.
        manager: None: cordwood's own engine writes. Given, its `serialize_with_paths` writes
            the jax arrays, in the background perhaps: the checkpoint is put in place, index
            last, when it calls back, and not before; its `wait_until_finished` waits for that.
        prefix: a name for the tree beside others in the directory.
        commit_callback: called when the checkpoint is in place; of several processes, on
            process 0, as eFormer does.
        write_index: False writes the arrays and leaves the index to the caller. They carry no
            digests then.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path. Nothing
            has been written.
        UnsupportedFormatError: a URL of an object store.
        NotACheckpointError: the directory holds what this save would destroy.
        OSError: the system refused (disk full, no permission); what was there is untouched.
        ProcessError: a process died, failed or did not come in time, or holds another tree; it
            is named, and nothing was saved.
        PendingSaveError: an earlier `save_async` failed, and nobody has asked about it.

    >>> import numpy as np
    >>> tree_serialize_leaves("/tmp/example-zarr", {"w": np.ones(3, np.float32)}, prefix="params")
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
