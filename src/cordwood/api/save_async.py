"""save_async: save a snapshot of a tree in the background."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from cordwood.api.save import announce_errors, rendezvous_for
from cordwood.devices.host_snapshot import snapshot_leaves
from cordwood.formats.format_for_saving import format_for_saving
from cordwood.formats.format_protocol import Linking, SaveOptions, WritableFormat, plan_save
from cordwood.io.background_save import PendingSave, raise_unreported_failures, save_in_background
from cordwood.io.buffers import release_memory
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.progress import ProgressMeter, ProgressOption
from cordwood.io.progress_bar import progress_display, require_progress_option
from cordwood.io.threads import gc_paused
from cordwood.processes.rendezvous import TIMEOUT_SECONDS, Rendezvous
from cordwood.storage.paths import absolute_path, local_or_url, parse_url


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
        options = SaveOptions(prefix, {} if metadata is None else metadata, compression)
        save = SnapshotSave(path, tree, saved_format, rendezvous, options, progress=progress)
        pending = save_in_background(path, save.write, total_bytes=save.total_bytes)
    if rendezvous.count > 1:
        raise_unreported_failures(save_started=True)
    return pending


class SnapshotSave:
    """A planned save of a tree as it is now, which may be written later in another thread.

    Args:
        path: the destination, as `local_or_url` returns it.
        tree: the tree to save.
        format: the format to write.
        rendezvous: the rendezvous of the processes that save together, not entered yet. The
            caller announces an error of this call to it; `write` announces its own errors.
        options: the options of the format.
        base: the name of the checkpoint beside this one whose unchanged files are hard-linked, as
            process 0 knows it; "" on the others, or if there is none. None: no links.
        progress: as in `save_async`.

    Attributes:
        total_bytes: the number of bytes that this process writes or links.
        linked_bytes: of these, the bytes that were linked, once all is written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tree: Any,
        format: WritableFormat,
        rendezvous: Rendezvous,
        options: SaveOptions,
        *,
        base: str | None = None,
        progress: ProgressOption,
    ) -> None:
        # The process may change its working directory before the save has ended.
        self._path = path if parse_url(path) is not None else absolute_path(path)
        self._format = format
        self._rendezvous = rendezvous
        self._linking = None if base is None else Linking(base)
        with gc_paused():
            options = options._replace(linking=self._linking)
            plan = plan_save(format, self._path, tree, options, rendezvous)
            snapshot = snapshot_leaves(plan.leaves)
        self._leaves = Leaves(snapshot)
        self._sizes = plan.sizes or [getattr(leaf, "nbytes", 0) for leaf in snapshot]
        self._write = plan.write
        self._display = progress_display(progress, "saving")
        self.total_bytes = sum(self._sizes)

    @property
    def linked_bytes(self) -> int:
        return 0 if self._linking is None else self._linking.linked_bytes

    def write(self, pending: PendingSave) -> None:
        """Write and commit the save, and count in `pending` the bytes that are taken for it."""
        release_memory()
        leaves, sizes = self._leaves, self._sizes
        try:
            with announce_errors(self._rendezvous), self._display as report:
                meter = None if report is None else ProgressMeter(self.total_bytes, report)

                def advance(leaf: int) -> None:
                    pending._advance(sizes[leaf])
                    if meter is not None:
                        meter.advance(sizes[leaf])

                if self._rendezvous.index == 0:
                    self._format.refuse_foreign(self._path)
                leaves.on_take = advance
                self._write(leaves)
        finally:
            leaves.clear()  # an exception's traceback would keep the arrays alive
