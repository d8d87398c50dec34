"""save: write a tree to a file or a directory, durably and atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.load_format import writer_of
from cordwood.formats.orbax_option import with_orbax
from cordwood.formats.plan_save import plan_save, write_save
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.memory_for_next_load import release_memory_if_short
from cordwood.io.page_cache import require_page_cache_option
from cordwood.io.progress import ProgressMeter, ProgressOption
from cordwood.io.progress_bar import progress_display
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.saving.save_rendezvous import rendezvous_for
from cordwood.storage.locations import parse_location
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.run_in_worker import in_worker
from cordwood.threads.stop_check import check_stop


@in_worker
def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    format: str | None = None,
    compression: Literal["zstd", "blosc", "archive"] | None = None,
    prefix: str | None = None,
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    orbax: bool | str = False,
    page_cache: bool = True,
    progress: ProgressOption = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Save a tree in a file or a directory, atomically and durably.

    When this returns, a power cut cannot lose the checkpoint. Until then, and also if it raises,
    the previous checkpoint at `path` is unchanged.

    A directory is saved by all processes of `jax.distributed` together: every process calls this
    with the same path, each writes its own parts, and it returns on all or raises on all. Values
    that each process holds for itself (numpy arrays, Python values) must be equal. A single file
    is written by the calling process only: let one process save it, or let each save its own.

    Args:
        path: the destination. The suffix of a file gives its format: `.safetensors` (keeps
            structure, kinds and digests), `.msgpack` (Flax's bytes, no digests), `.msgpack.gz`,
            `.msgpack.zst`. Any other name is a directory, which can hold several trees, keeps
            arrays in parts as they are sharded over devices, and stores all that a safetensors
            file stores. A URL (`gs://bucket/run/100`, `s3://`, `memory://`) is a directory in an
            object store, also as a path object of another library; `file://` is a local path. `~`
            is the home directory.
        tree: nested dicts, lists, tuples, named tuples and registered jax pytree nodes, with
            leaves that are arrays, scalars, strings, bytes, None and PRNG keys. It is not changed.
        format: the name of the format, for a file whose suffix does not give it. For a directory,
            "packs": a few safetensors files and an index; or "zarr": one zarr version 2 array per
            leaf, which eFormer and TensorStore read; or "hugging_face": a new directory as on the
            Hugging Face hub, of arrays alone, named by their key paths joined with dots; or
            "orbax": a new checkpoint that Orbax restores. One process writes these two. None: the
            suffix decides, or the checkpoint that is in the directory; a new directory has the
            format "packs".
        compression: with format="zarr", "zstd", or "blosc", which is faster and compresses less;
            useful on slow disks. "archive" is the smallest: zstd in blosc, of the shuffled bytes.
            None: no compression; such chunks load at the speed of the disk.
        prefix: the name of this tree in a directory of several; trees of other prefixes stay.
        max_shard_bytes: with format="packs" or "hugging_face", the number of bytes of arrays in
            one file; a larger array has its own file. None: 1 GiB, or more if a process would write
            more than 16 files; for the hub, all in one file.
        metadata: strings to store beside the tree (safetensors and directories only).
        orbax: True for a directory that is a checkpoint of Orbax too: a small index says where in
            cordwood's files its arrays are. A name: the tree is the item of that name, in a
            directory below. It is for format="packs" on a disk. False: for cordwood alone.
        page_cache: True if the files may stay in the page cache of this host, so that the next load
            of them here does not read the disk. Where the tree is larger than an eighth of the
            available memory, they are written past it (O_DIRECT) all the same. False: always.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`, which has the number of bytes of the
            tree whose writing has begun. None: neither.
        timeout_seconds: the time to wait for other processes that are late but alive, and for the
            lock of another save to the directory, in seconds.

    Raises:
        UnsupportedFormatError: the suffix is of no writable format, or the URL of no supported
            object store, or of one without conditional writes (docs/object-stores.md).
        UnsupportedLeafError: a leaf cannot be stored; names its key path.
        NotACheckpointError: the file or directory at `path` is not a checkpoint of this kind, and
            is not replaced.
        OSError: the system refused (disk full, no permission); the old checkpoint is unchanged.
        ProcessError: a process died, failed, did not come in time, or holds a different tree;
            names the process; nothing was saved.
        PendingSaveError: an earlier `save_async` failed, and its error was not read yet; nothing
            was saved now. (With several processes, this tree was saved nevertheless.)

    >>> import numpy as np
    >>> save("example.safetensors", {"w": np.ones(3, np.float32), "step": 7})
    >>> save("step-7", {"w": np.ones(3, np.float32)}, prefix="params")
    """
    location = parse_location(path)
    saved_format = format_for_saving(location, format=format, prefix=prefix, exports=True)
    strings = with_orbax(metadata, orbax, saved_format, location, item="")
    require_page_cache_option(page_cache)
    options = SaveOptions(prefix, strings, compression, max_shard_bytes, page_cache=page_cache)
    release_memory_if_short()
    with (
        after_interrupted_saves(str(location)),
        rendezvous_for(location, saved_format, options, timeout_seconds) as rendezvous,
    ):
        wait_for_saves(str(location))
        if rendezvous.index == 0:
            writer_of(saved_format).refuse_foreign(saved_format, location)
        with gc_paused(), progress_display(progress, "saving") as report:
            plan = plan_save(saved_format, location, tree, options, rendezvous)
            check_stop()
            leaves = Leaves(plan.leaves)
            if report is not None:
                sizes = plan.sizes or [getattr(leaf, "nbytes", 0) for leaf in plan.leaves]
                meter = ProgressMeter(sum(sizes), report)
                leaves.on_take = lambda leaf: meter.advance(sizes[leaf])
            try:
                write_save(saved_format, plan.save, leaves, rendezvous)
            finally:
                leaves.clear()
            if report is not None:
                meter.finish()
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)
