"""tree_serialize_leaves: eFormer's call, on cordwood's engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.api.local_path import local_path
from cordwood.api.managed import ArrayManager, save_managed
from cordwood.api.save_zarr import draft, refuse_processes, save_draft
from cordwood.engine.collector import collector_paused
from cordwood.engine.hosts import current
from cordwood.engine.pending import raise_unreported, wait_for

__all__ = ["tree_serialize_leaves"]


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
    prefixes have saved there stays, and so do files that are no part of a checkpoint.

    Args:
        checkpoint_dir: the directory: a path, or a file:// URL; made where it is missing.
        pytree: as `cordwood.save` takes. eFormer's loader sees the arrays; cordwood's
            brings all of it back with `like`, as `cordwood.load` does without.
        manager: None: cordwood's own engine writes. Given, its `serialize_with_paths` writes
            the jax arrays, in the background perhaps: the checkpoint is put in place, index
            last, when it calls back, and not before; its `wait_until_finished` waits for that.
        prefix: a name for the tree beside others in the directory.
        commit_callback: called when the checkpoint is in place.
        write_index: False writes the arrays and leaves the index to the caller. They carry no
            digests then.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path. Nothing
            has been written.
        UnsupportedFormatError: several processes of jax.distributed run: this layout is written by
            one; or a URL of an object store.
        NotACheckpointError: the directory holds what this save would destroy.
        OSError: the system refused (disk full, no permission); what was there is untouched.
        PendingSaveError: an earlier `save_async` failed, and nobody has asked about it.

    >>> import numpy as np
    >>> tree_serialize_leaves("/tmp/example-zarr", {"w": np.ones(3, np.float32)}, prefix="params")
    """
    path = local_path(checkpoint_dir)
    refuse_processes(path, current().count)
    raise_unreported()
    wait_for(path)
    callback = commit_callback or _nothing
    with collector_paused():
        item = draft(
            pytree, prefix=prefix or "", compression=None, metadata={}, covered=write_index
        )
        if manager is not None:
            save_managed(path, item, manager, callback)
            return
        save_draft(path, item, item.leaves.__getitem__)
    callback()


def _nothing() -> None:
    pass
