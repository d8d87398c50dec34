"""save: one tree into a file or a directory, durably and atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from cordwood.api.save_rendezvous import rendezvous_for
from cordwood.formats.format_for_saving import format_for_saving
from cordwood.formats.save_plan import SaveOptions, plan_save
from cordwood.io.background_save import raise_unreported_failures, wait_for_saves
from cordwood.io.gc_pause import gc_paused
from cordwood.io.progress import ProgressMeter, Report
from cordwood.io.reusable_memory import release_memory
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.urls import local_or_url


def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    format: str | None = None,
    layout: Literal["packs", "zarr"] | None = None,
    compression: Literal["zstd", "blosc"] | None = None,
    prefix: str | None = None,
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Report | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Store a tree in a file or a directory. When this returns, a power cut cannot lose it.

    Until it returns, what was at `path` is whole; if it raises, that stays as it was.

    A directory is saved by all processes of `jax.distributed` together: every one calls this, with
    the same path, each writes its own parts, and it returns on all or raises on all. What each
    holds for itself (numpy arrays, Python values) must be equal. A file is the affair of the
    process that calls: let one of them save it, or each one of its own.

    Args:
        path: where to. The suffix of a file says its format: `.safetensors` (keeps structure,
            kinds and digests), `.msgpack` (Flax's bytes, no digests), `.msgpack.gz`,
            `.msgpack.zst`. Any other name is a directory, which may hold several trees, arrays
            that are spread over devices as they are, and the same as a safetensors file. A
            URL (`gs://bucket/run/100`, `s3://`, `memory://`) is a directory in an object store;
            `file://` is a path. Of path objects none is a URL. `~` is the home directory.
        tree: nested dicts, lists, tuples, named tuples and registered jax pytree nodes, of
            arrays, scalars, strings, bytes, None and PRNG keys. It is not changed.
        format: the name of a format: of a file, where the suffix does not say it; or of a
            directory: "packs", a few safetensors files and an index, or "zarr", an array of zarr
            version 2 for each leaf, which eFormer and TensorStore read. None: the suffix decides,
            and for a directory the checkpoint that is there; a new directory is of packs.
        layout: another name for `format`, of a directory.
        compression: of format="zarr": "zstd", or "blosc", which is quicker and less; for slow
            disks. None: chunks are raw, and load at the speed of the disk.
        prefix: the name of this tree in a directory of several; those of other prefixes stay.
        max_shard_bytes: of format="packs": how many bytes of arrays one file holds; a larger array
            has a file of its own. None: 1 GiB, and more where a process would write more than 16
            files.
        metadata: strings to keep beside the tree (safetensors and directories only).
        progress: called now and then with a `cordwood.results.Progress`: how many bytes of the
            tree have been taken up for writing.
        timeout_seconds: how long to wait for other processes that are late, but alive, and for the
            lock of another save of the directory.

    Raises:
        UnsupportedFormatError: the suffix names no format that can be written, or the URL no
            store that is known, or one without conditional writes (docs/object-stores.md).
        UnsupportedLeafError: a leaf cannot be stored; the message names its key path.
        NotACheckpointError: there is a file or directory at `path` that is no checkpoint of
            this kind.
        OSError: the system refused (disk full, no permission); the old checkpoint is untouched.
        ProcessError: a process died, failed or did not come in time, or holds another tree; it
            is named, and nothing was saved.
        PendingSaveError: an earlier `save_async` failed, and nobody has asked about it; nothing
            was saved now. (With several processes: this tree was saved all the same.)

    >>> import numpy as np
    >>> save("/tmp/example.safetensors", {"w": np.ones(3, np.float32), "step": 7})
    >>> save("/tmp/example-step-7", {"w": np.ones(3, np.float32)}, prefix="params")
    """
    path = local_or_url(path)
    saved_format = format_for_saving(path, format=format, layout=layout, prefix=prefix)
    release_memory()
    with rendezvous_for(
        path,
        saved_format,
        prefix=prefix,
        compression=compression,
        timeout_seconds=timeout_seconds,
        how="" if max_shard_bytes is None else f" in files of {max_shard_bytes} bytes",
    ) as rendezvous:
        if rendezvous.count == 1:
            raise_unreported_failures()
        wait_for_saves(path)
        if rendezvous.index == 0:
            saved_format.refuse_foreign(path)
        with gc_paused():
            options = SaveOptions(
                prefix, {} if metadata is None else metadata, compression, max_shard_bytes
            )
            plan = plan_save(saved_format, path, tree, options, rendezvous)
            if progress is None:
                plan.write(plan.leaves.__getitem__)
            else:
                sizes = plan.sizes or [getattr(leaf, "nbytes", 0) for leaf in plan.leaves]
                meter = ProgressMeter(sum(sizes), progress)

                def fetch(number: int) -> Any:
                    meter.advance(sizes[number])
                    return plan.leaves[number]

                plan.write(fetch)
                meter.finish()
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)
