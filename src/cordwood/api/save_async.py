"""save_async: save a tree as it is now, in the background."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.orbax_option import with_orbax
from cordwood.formats.table import Format
from cordwood.io.memory.staging_memory import StagingOptions, checked_options
from cordwood.io.page_cache import require_page_cache_option
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import require_progress_option
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.saving.background_saves import PendingSave, raise_unreported_failures
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.saving.save_rendezvous import rendezvous_for
from cordwood.saving.snapshot_save import SnapshotSave
from cordwood.storage.locations import Location, parse_location
from cordwood.threads.run_in_worker import run_in_worker


def save_async(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    format: str | None = None,
    compression: Literal["zstd", "blosc", "archive"] | None = None,
    prefix: str | None = None,
    metadata: Mapping[str, str] | None = None,
    orbax: bool | str = False,
    page_cache: bool = False,
    staging_bytes: int | None = None,
    device_copies: bool = False,
    progress: ProgressOption = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> PendingSave:
    """Save the tree as it is now, in the background; the caller may then change or donate it.

    Saves run one after another, in the order of the calls. The interpreter does not exit before
    they have ended. In an `atexit` handler this saves before it returns, or raises, as `save`
    does. A failure is raised by `wait`; if `wait` is not called, by the next save of any path,
    which then saves nothing. (With several processes that next save is made nevertheless, because
    other processes may have raised the failure already and take part in it.)

    jax arrays on CPU are not copied: a view of each keeps its memory until it is written, so a step
    that donates the array in the meantime allocates new memory. Arrays on an accelerator are
    copied to host memory, which is bounded by `staging_bytes` and used again by later saves. If all
    copies fit, this returns at once, while they are being made. Otherwise it returns when so much
    is written that the rest fits; an exception meanwhile (Ctrl-C) gives the save up.

    numpy arrays are copied before this returns. A jax array on CPU that was made from a numpy array
    without a copy (`jax.device_put`) shares its memory: do not write into the numpy array before
    `wait` has returned.

    Args:
        path: the destination, as in `save`.
        tree: the tree to save, as in `save`.
        format: the name of the format, as in `save`.
        compression: with format="zarr", "zstd", "blosc" or "archive", as in `save`.
        prefix: the name of this tree in a directory of several.
        metadata: strings to store beside the tree.
        orbax: True, or the name of an item, for a directory that Orbax reads too, as in `save`.
        page_cache: True if the files may stay in the page cache of this host, as in `save`. It is
            for programs that load each save here soon, such as an evaluation; the copy takes
            processor time from a training loop.
        staging_bytes: the most host memory for copies of arrays on accelerators, in bytes, for all
            saves of this process together; a single shard may be larger. It matters on
            accelerators only. None: a quarter of the memory of the machine (or of its container),
            divided by the number of processes of the job on it, as Slurm or MPI says; on GPUs at
            most three quarters of the host memory that XLA allows.
        device_copies: True if the arrays may be copied on their devices where `staging_bytes` has
            no room for all of them. Then this does not wait for the disk, but the devices need
            memory for the copies until they are written, and the next call waits until then.
        progress: True for a bar in a terminal or a notebook while it saves; or a function, as in
            `save`, which is called in the thread that saves. None: neither. The result has a
            `progress` in any case.
        timeout_seconds: the time to wait for other processes, in seconds, as in `save`.

    Returns:
        A handle of the save, with `wait(timeout_seconds=None)`, `done`, `exception` and
        `progress`.

    Raises:
        UnsupportedFormatError, UnsupportedLeafError, ValueError: as in `save`. Errors that only
            writing shows (a full disk, something at `path` that is not a checkpoint) are raised
            by `wait`.
        PendingSaveError: an earlier `save_async` failed, and its error was not read yet.

    >>> import numpy as np
    >>> tree = {"w": np.ones(3, np.float32)}
    >>> pending = save_async("example.safetensors", tree)
    >>> tree["w"] += 1  # a step of training
    >>> pending.wait()
    """
    require_page_cache_option(page_cache)
    options = SaveOptions(prefix, {}, compression, page_cache=page_cache)
    location = parse_location(path)
    pending = run_in_worker(
        lambda: start_save(
            location,
            tree,
            options,
            metadata,
            format=format_for_saving(location, format=format, prefix=prefix, exports=True),
            orbax=orbax,
            staging=checked_options(staging_bytes, device_copies),
            progress=progress,
            timeout_seconds=timeout_seconds,
        )
    )
    pending._let_begin()
    return pending


def start_save(
    location: Location,
    tree: Any,
    options: SaveOptions,
    metadata: Mapping[str, str] | None,
    *,
    format: Format,
    orbax: bool | str,
    staging: StagingOptions,
    progress: ProgressOption,
    timeout_seconds: float,
) -> PendingSave:
    """Begin a save in the background, as `save_async`; the caller lets it begin to write."""
    require_progress_option(progress)
    strings = with_orbax(metadata, orbax, format, location, item="")
    options = options._replace(metadata=strings)
    with (
        after_interrupted_saves(str(location)),
        rendezvous_for(location, format, options, timeout_seconds, background=True) as rendezvous,
    ):
        save = SnapshotSave(
            location, tree, format, rendezvous, options, staging=staging, progress=progress
        )
        pending = save.start(str(location), save.write)
        save.detach(pending)
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)
    return pending
