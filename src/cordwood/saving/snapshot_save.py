"""A planned save of a tree as it is now, which may be written later in another thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cordwood.formats.format_protocol import Linking, SaveOptions
from cordwood.formats.load_format import writer_of
from cordwood.formats.plan_save import plan_save, write_save
from cordwood.formats.step_record import UNSHARED_KEY
from cordwood.formats.table import Format
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.memory_for_next_load import release_memory
from cordwood.io.memory.staging_memory import StagingOptions
from cordwood.io.progress import ProgressMeter, ProgressOption
from cordwood.io.progress_bar import progress_display
from cordwood.io.snapshot import snapshot_leaves
from cordwood.processes.rendezvous import Rendezvous
from cordwood.saving.background_saves import PendingSave, save_in_background
from cordwood.saving.save_rendezvous import announce_errors
from cordwood.storage.locations import Location, Url
from cordwood.storage.paths import absolute_path
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.stop_check import check_stop, current_stop_check, stop_check


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
        self._is_unshared = UNSHARED_KEY in options.metadata
        self._is_replacing = options.replaces is not None
        self._display = progress_display(progress, "saving")
        self.is_detached = self._leaves.host_copies is None
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
        copies = self._leaves.host_copies
        try:
            if copies is not None:
                copies.admit()
            return save_in_background(path, write, total_bytes=self.total_bytes)
        except BaseException:
            if copies is not None:
                copies.give_up()
            raise

    def detach(self, pending: PendingSave) -> None:
        """Wait until the caller may change the tree. If this is interrupted, give the save up.

        Only arrays on accelerators whose copies do not fit into the host memory make it wait.
        """
        if self._leaves.host_copies is None:
            return
        try:
            self._leaves.host_copies.detach()
        except BaseException:
            self._leaves.host_copies.give_up()
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
            if leaves.host_copies is not None:
                leaves.host_copies.check()

        try:
            with announce_errors(self._rendezvous), self._display as report, stop_check(check):
                meter = None if report is None else ProgressMeter(self.total_bytes, report)

                def advance(leaf: int) -> None:
                    pending._advance(sizes[leaf])
                    if meter is not None:
                        meter.advance(sizes[leaf])

                is_first = self._rendezvous.index == 0 or self._is_unshared
                if is_first and not self._is_replacing:
                    writer_of(self._format).refuse_foreign(self._format, self._location)
                leaves.on_take = advance
                write_save(self._format, self._save, leaves, self._rendezvous)
        finally:
            if leaves.host_copies is not None:
                pending._is_given_up = leaves.host_copies.is_given_up
            leaves.clear()  # an exception's traceback would keep the arrays alive
