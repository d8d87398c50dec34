"""A load from an open checkpoint: select, match, cast, assign shardings, restore, rebuild."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

from cordwood.errors import CordwoodError, MismatchError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.io.progress import report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.stale_handles import retry_stale
from cordwood.loading.abstract_meshes import need_devices
from cordwood.loading.assign_shardings import assign_shardings
from cordwood.loading.check_x64 import check_x64
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import target_size_bytes
from cordwood.loading.migrations import match_or_migrate
from cordwood.loading.open_reader import open_reader
from cordwood.loading.refuse_delta import refuse_delta
from cordwood.loading.restore_targets import restore_targets
from cordwood.storage.locations import Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.threads.garbage_collector import gc_paused


@gc_paused()
def load_tree(reader: LeafReader, like: Any, options: LoadOptions) -> Any:
    """Return the tree of a checkpoint, or the selected part of it.

    Args:
        reader: the open checkpoint.
        like: as in `cordwood.load`.
        options: as in `cordwood.load`.

    Raises what `cordwood.load` documents.
    """
    options.require_valid(like)
    part, matching, options = match_or_migrate(reader, like, options)
    mmap, name, targets = options.mmap, reader.path, matching.targets
    if options.assigns_shardings or need_devices(targets):
        targets = assign_shardings(options, targets, matching.paths)
    check_x64(name, targets, has_like=like is not None, cast=options.cast)
    if part.stored is not reader.index:
        reader = reader.mapped(part)
    verify = not mmap if options.verify is None else options.verify
    with ExitStack() as stack:
        if options.progress is not None:
            report = stack.enter_context(progress_display(options.progress, "loading"))
            size_bytes = sum(map(target_size_bytes, targets))
            stack.enter_context(report_progress(size_bytes, report))
        values = restore_targets(reader, targets, mmap=mmap, verify=verify, alias=options.alias)
    return matching.rebuild(values)


@gc_paused()  # until the index is freed: the collector would traverse all of it
def load_checkpoint(
    location: Location,
    like: Any,
    options: LoadOptions,
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    is_published_refused: bool = True,
) -> Any:
    """Load a tree, as `load`; a delta is an error as `refuse_delta` says."""
    # Data is freed once it is read.
    open_options = OpenOptions(max_bytes, read_once=not options.mmap)

    def read() -> Any:
        reader = open_reader(location, format=format, prefix=prefix, options=open_options)
        with closing(reader.opened):
            refuse_delta(reader, is_published_refused=is_published_refused)
            try:
                return load_tree(reader, like, options)
            except CordwoodError as e:
                # A save may have replaced the checkpoint meanwhile, and removed files not open yet.
                if reader.opened.is_current():
                    raise
                raise ReplacedError(e) from e

    try:
        return retry_stale(lambda: retry_reading(read))
    except MismatchError as e:  # the message is enough; hide internal frames
        raise e.with_traceback(None) from e.__cause__
