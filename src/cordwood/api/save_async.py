"""save_async: save a snapshot of a tree in the background."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from cordwood.api.save_rendezvous import announce_errors, rendezvous_for
from cordwood.devices.host_snapshot import snapshot_leaves
from cordwood.formats.format_for_saving import format_for_saving
from cordwood.formats.format_protocol import WritableFormat
from cordwood.formats.save_plan import Linking, SaveOptions, plan_save
from cordwood.io.background_save import PendingSave, raise_unreported_failures, save_in_background
from cordwood.io.pause_python_gc import gc_paused
from cordwood.io.progress import ProgressMeter, ProgressOption
from cordwood.io.progress_bar import progress_display, require_progress_option
from cordwood.io.reusable_memory import release_memory
from cordwood.processes.rendezvous import TIMEOUT_SECONDS, Rendezvous
from cordwood.storage.path_kind import absolute_path
from cordwood.storage.urls import local_or_url, parse_url


def save_async(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    format: str | None = None,
    layout: Literal["packs", "zarr"] | None = None,
    compression: Literal["zstd", "blosc"] | None = None,
    prefix: str | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: ProgressOption = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> PendingSave:
    """Save the tree as it is now, in the background; the caller may then change or donate it.

    Saves run one after another, in the order of the calls. The interpreter does not exit before
    they have ended. In an `atexit` handler this saves before it returns, or raises, as `save`
    does. A failure is raised by `wait`; if `wait` is not called, by the next save of any path,
    which then saves nothing. (With several processes that next save is made nevertheless, because
    other processes may have raised the failure already and take part in it.)

    jax arrays are not copied: a view of each keeps its memory until it is written, so a step that
    donates the array in the meantime allocates new memory. On an accelerator, the arrays are
    copied to pinned host memory one after another, when they are written. numpy arrays are copied
    before this returns. A jax array on CPU that was made from a numpy array without a copy
    (`jax.device_put`) shares its memory: do not write into the numpy array before `wait` has
    returned.

    Args:
        path: the destination, as in `save`.
        tree: the tree to save, as in `save`.
        format: the name of the format, as in `save`.
        layout: another name for `format`, for directories.
        compression: with format="zarr", "zstd" or "blosc", as in `save`.
        prefix: the name of this tree in a directory of several.
        metadata: strings to store beside the tree.
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
    path = local_or_url(path)
    saved_format = format_for_saving(path, format=format, layout=layout, prefix=prefix)
    require_progress_option(progress)
    with rendezvous_for(
        path,
        saved_format,
        prefix=prefix,
        compression=compression,
        timeout_seconds=timeout_seconds,
        background=True,
    ) as rendezvous:
        if rendezvous.count == 1:
            raise_unreported_failures()
        pending = begin_save(
            path,
            tree,
            saved_format,
            rendezvous,
            compression=compression,
            prefix=prefix,
            metadata=metadata,
            before_save=lambda: None,
            previous_step=None,
            on_commit=lambda *_: None,
            progress=progress,
        )
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)
    return pending


def begin_save(
    path: str | os.PathLike[str],
    tree: Any,
    format: WritableFormat,
    rendezvous: Rendezvous,
    *,
    compression: Literal["zstd", "blosc"] | None,
    prefix: str | None,
    metadata: Mapping[str, str] | Callable[[], Mapping[str, str]] | None,
    before_save: Callable[[], None],
    previous_step: Callable[[], str] | None,
    on_commit: Callable[[PendingSave, int], None],
    progress: ProgressOption,
    items: Mapping[str, Any] | None = None,
) -> PendingSave:
    """Begin a save in the background, as `save_async` does, with hooks for a manager.

    Args:
        path: the destination, as `local_or_url` returns it.
        tree: the tree to save.
        format: the format to write.
        rendezvous: the rendezvous of the processes that save together, not entered yet. The
            caller announces an error of this call to it; an error in the background is announced
            here.
        compression: as in `save`.
        prefix: as in `save`.
        metadata: the strings, or a function that returns them after `before_save`.
        before_save: called on process 0 before anything is begun; an error that it raises ends
            the save on all processes.
        previous_step: called in the background, as in `Linking`. None: the whole tree is written.
        on_commit: called on each process in the background after the commit, with the save and
            the number of bytes of arrays that were hard-linked.
        progress: as in `save_async`.
        items: more trees by prefix, for a directory of packs, which then holds no other trees.
    """
    original_path = path
    # The process may change its working directory before the background save has ended.
    path = original_path if parse_url(path) is not None else absolute_path(path)
    if rendezvous.index == 0:
        before_save()
    if callable(metadata):
        metadata = metadata()
    held: list[Any] = []
    linking = None if previous_step is None else Linking(previous_step, lambda leaf: held[leaf])
    with gc_paused():
        options = SaveOptions(
            prefix, {} if metadata is None else metadata, compression, None, linking, items
        )
        plan = plan_save(format, path, tree, options, rendezvous)
        held += snapshot_leaves(plan.leaves)
    sizes = plan.sizes or [getattr(leaf, "nbytes", 0) for leaf in held]
    write = plan.write
    del plan, options, tree, items
    display = progress_display(progress, "saving")

    def work(pending: PendingSave) -> None:
        release_memory()
        try:
            with announce_errors(rendezvous), display as report:
                meter = None if report is None else ProgressMeter(sum(sizes), report)

                def take(leaf: int) -> Any:
                    value, held[leaf] = held[leaf], None
                    pending._advance(sizes[leaf])
                    if meter is not None:
                        meter.advance(sizes[leaf])
                    return value

                if rendezvous.index == 0:
                    format.refuse_foreign(path)
                write(take)
        finally:
            held.clear()  # an exception's traceback would keep the arrays alive
        on_commit(pending, 0 if linking is None else linking.linked_bytes)

    return save_in_background(original_path, work, total_bytes=sum(sizes))
