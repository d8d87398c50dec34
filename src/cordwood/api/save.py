"""save and save_async: write a tree to a file or a directory, durably and atomically."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.format_protocol import (
    Linking,
    SaveOptions,
)
from cordwood.formats.load_format import writer_of
from cordwood.formats.plan_save import plan_save, write_save
from cordwood.formats.table import DEFAULT, Format
from cordwood.io.buffers import release_memory, release_memory_if_short
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.page_cache import require_page_cache_option
from cordwood.io.progress import ProgressMeter, ProgressOption
from cordwood.io.progress_bar import progress_display, require_progress_option
from cordwood.io.snapshot import snapshot_leaves
from cordwood.io.staging_memory import StagingOptions, checked_options
from cordwood.processes.key_value_store import SINGLE_PROCESS, current_processes
from cordwood.processes.rendezvous import TIMEOUT_SECONDS, Rendezvous
from cordwood.saving.background_saves import (
    PendingSave,
    raise_unreported_failures,
    save_in_background,
    wait_for_saves,
)
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.storage.locations import Location, Url, parse_location
from cordwood.storage.paths import absolute_path
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.run_in_worker import in_worker, run_in_worker
from cordwood.threads.stop_check import check_stop, current_stop_check, stop_check


@in_worker
def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    format: str | None = None,
    compression: Literal["zstd", "blosc"] | None = None,
    prefix: str | None = None,
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
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
            Hugging Face hub, of arrays alone, named by their key paths joined with dots, which one
            process writes. None: the suffix decides, or the checkpoint that is in the directory; a
            new directory has the format "packs".
        compression: with format="zarr", "zstd", or "blosc", which is faster and compresses less;
            useful on slow disks. None: no compression; such chunks load at the speed of the disk.
        prefix: the name of this tree in a directory of several; trees of other prefixes stay.
        max_shard_bytes: with format="packs" or "hugging_face", the number of bytes of arrays in
            one file; a larger array has its own file. None: 1 GiB, or more if a process would write
            more than 16 files; for the hub, all in one file.
        metadata: strings to store beside the tree (safetensors and directories only).
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
    strings = {} if metadata is None else metadata
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


def save_async(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    format: str | None = None,
    compression: Literal["zstd", "blosc"] | None = None,
    prefix: str | None = None,
    metadata: Mapping[str, str] | None = None,
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
        compression: with format="zarr", "zstd" or "blosc", as in `save`.
        prefix: the name of this tree in a directory of several.
        metadata: strings to store beside the tree.
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
    strings = {} if metadata is None else metadata
    options = SaveOptions(prefix, strings, compression, page_cache=page_cache)
    pending = run_in_worker(
        lambda: _save_async(
            parse_location(path),
            tree,
            options,
            format=format,
            staging=checked_options(staging_bytes, device_copies),
            progress=progress,
            timeout_seconds=timeout_seconds,
        )
    )
    pending._let_begin()
    return pending


def _save_async(
    location: Location,
    tree: Any,
    options: SaveOptions,
    *,
    format: str | None,
    staging: StagingOptions,
    progress: ProgressOption,
    timeout_seconds: float,
) -> PendingSave:
    saved_format = format_for_saving(location, format=format, prefix=options.prefix, exports=True)
    require_progress_option(progress)
    with (
        after_interrupted_saves(str(location)),
        rendezvous_for(
            location, saved_format, options, timeout_seconds, background=True
        ) as rendezvous,
    ):
        save = SnapshotSave(
            location, tree, saved_format, rendezvous, options, staging=staging, progress=progress
        )
        pending = save.start(str(location), save.write)
        save.detach(pending)
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)
    return pending


class SnapshotSave:
    """A planned save of a tree as it is now, which may be written later in another thread.

    Args:
        location: the destination.
        tree: the tree to save.
        format: the format to write.
        rendezvous: the rendezvous of the processes that save together, not entered yet. The
            caller announces an error of this call to it; `write` announces its own errors.
        options: the options of the format.
        base: the name of the checkpoint beside this one whose unchanged files are hard-linked, as
            process 0 knows it; "" on the others, or if there is none. None: no links.
        staging: the options for arrays on accelerators.
        progress: as in `save_async`.

    Attributes:
        total_bytes: the number of bytes that this process writes or links.
        linked_bytes: of these, the bytes that were linked, once all is written.
        is_detached: True once the caller may change the tree.
    """

    def __init__(
        self,
        location: Location,
        tree: Any,
        format: Format,
        rendezvous: Rendezvous,
        options: SaveOptions,
        *,
        base: str | None = None,
        staging: StagingOptions,
        progress: ProgressOption,
    ) -> None:
        # The process may change its working directory before the save has ended.
        self._location = location if isinstance(location, Url) else absolute_path(location)
        self._format = format
        self._rendezvous = rendezvous
        self._linking = None if base is None else Linking(base)
        with gc_paused():
            options = options._replace(linking=self._linking)
            plan = plan_save(format, self._location, tree, options, rendezvous)
            check_stop()
            snapshot = snapshot_leaves(plan.leaves)
        self._leaves = Leaves(snapshot, staging=staging)
        self._sizes = plan.sizes or [getattr(leaf, "nbytes", 0) for leaf in snapshot]
        self._save = plan.save
        self._display = progress_display(progress, "saving")
        self.is_detached = self._leaves.staging is None
        self.total_bytes = sum(self._sizes)

    @property
    def linked_bytes(self) -> int:
        return 0 if self._linking is None else self._linking.linked_bytes

    def start(self, path: str, write: Callable[[PendingSave], None]) -> PendingSave:
        """Queue the save in the background; `detach` is to be called next.

        Args:
            path: the destination, as the caller calls it.
            write: calls `write`.
        """
        if isinstance(self._location, Url):
            from cordwood.storage.object_stores.request_loop import start_threads

            start_threads()
        staging = self._leaves.staging
        try:
            if staging is not None:
                staging.admit()
            return save_in_background(path, write, total_bytes=self.total_bytes)
        except BaseException:
            if staging is not None:
                staging.give_up()
            raise

    def detach(self, pending: PendingSave) -> None:
        """Wait until the caller may change the tree. If this is interrupted, give the save up.

        Only arrays on accelerators whose copies do not fit into the host memory make it wait.
        """
        if self._leaves.staging is None:
            return
        try:
            self._leaves.staging.detach()
        except BaseException:
            self._leaves.staging.give_up()
            raise
        pending.begun_seconds = time.monotonic()
        self.is_detached = True

    def write(self, pending: PendingSave) -> None:
        """Write and commit the save, and count in `pending` the bytes that are taken for it."""
        release_memory()
        leaves, sizes = self._leaves, self._sizes
        outer_check = current_stop_check()

        def check() -> None:
            outer_check()
            if leaves.staging is not None:
                leaves.staging.check()

        try:
            with announce_errors(self._rendezvous), self._display as report, stop_check(check):
                meter = None if report is None else ProgressMeter(self.total_bytes, report)

                def advance(leaf: int) -> None:
                    pending._advance(sizes[leaf])
                    if meter is not None:
                        meter.advance(sizes[leaf])

                if self._rendezvous.index == 0:
                    writer_of(self._format).refuse_foreign(self._format, self._location)
                leaves.on_take = advance
                write_save(self._format, self._save, leaves, self._rendezvous)
        finally:
            if leaves.staging is not None:
                pending._is_given_up = leaves.staging.is_given_up
            leaves.clear()  # an exception's traceback would keep the arrays alive


@contextmanager
def rendezvous_for(
    location: Location,
    format: Format,
    options: SaveOptions,
    timeout_seconds: float,
    *,
    how: str = "",
    background: bool = False,
) -> Iterator[Rendezvous]:
    """Make the rendezvous of a save, not entered yet; announce an error of the block to it.

    Args:
        location: the destination.
        format: the format to write.
        options: the options of the format.
        timeout_seconds: the time to wait for the other processes.
        how: further options that must be the same on every process, as text.
        background: the rendezvous is entered in the background.

    Raises PendingSaveError if an earlier save has failed, and this is the only process.
    """
    # Everything that must be the same on every process and that the trees do not show.
    purpose = f"save {location}" + (f" ({options.prefix})" if options.prefix else "")
    if format is not DEFAULT and format.is_directory:
        compression = f" with {options.compression}" if options.compression else ""
        purpose += f" as {format.name}{compression}"
    if options.max_shard_bytes is not None:
        purpose += f" in files of {options.max_shard_bytes} bytes"
    purpose += how
    rendezvous = Rendezvous(
        current_processes() if format.is_directory else SINGLE_PROCESS,
        purpose,
        timeout_seconds=timeout_seconds,
        background=background,
    )
    with announce_errors(rendezvous):
        if rendezvous.count == 1:  # of several processes, others may have reported it already
            raise_unreported_failures()
        yield rendezvous


@contextmanager
def announce_errors(rendezvous: Rendezvous) -> Iterator[None]:
    """Tell the other processes of an error that leaves the block."""
    try:
        yield
    except BaseException as e:
        rendezvous.leave(e)
        raise
