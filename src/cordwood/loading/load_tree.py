"""A load from an open checkpoint: select, match, cast, assign shardings, restore, rebuild."""

from __future__ import annotations

from contextlib import ExitStack, closing
from operator import itemgetter
from typing import Any

from cordwood.errors import CordwoodError, MismatchError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.index import Arranged
from cordwood.io.progress import report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.stale_handles import retry_stale
from cordwood.loading.abstract_meshes import need_devices
from cordwood.loading.assign_shardings import assign_shardings
from cordwood.loading.cast import cast_targets
from cordwood.loading.check_x64 import check_x64
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import target_size_bytes
from cordwood.loading.load_without_like import match_without_like
from cordwood.loading.matching.match_by_position import match_by_position
from cordwood.loading.matching.match_like import match_like
from cordwood.loading.matching.match_result import Matching
from cordwood.loading.matching.nnx_like import warn_of_lost_ties, with_kinds_of_nnx
from cordwood.loading.migrations import migration_error
from cordwood.loading.open_reader import open_reader
from cordwood.loading.restore_targets import restore_targets
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.plan.keys_of_like import with_keys_of_like
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.storage.locations import Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.log import log
from cordwood.tree.flatten import flatten
from cordwood.tree.nnx_modules import has_nnx


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
    part, matching, options = _matched(reader, like, options)
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


def _matched(
    reader: LeafReader, like: Any, options: LoadOptions
) -> tuple[SelectedLeaves, Matching, LoadOptions]:
    """Return the leaves to load, what to make of them, and the options by which they fit `like`.

    Migrations are tried in order, if the checkpoint does not fit without them. Nothing is read.
    """
    problems = []
    for number, attempt in enumerate(options.attempts(), start=-1):
        try:
            result = _matched_by(reader, like, attempt)
        except MismatchError as e:
            problems.append(e)
            continue
        if number >= 0:
            log.info(
                "%s does not fit as it is, and is loaded by migrations[%d] = %.200r",
                reader.path,
                number,
                options.migrations[number],
            )
        return *result, attempt
    if options.migrations:
        raise migration_error(reader.path, options.migrations, problems)
    raise problems[0]


def _matched_by(
    reader: LeafReader, like: Any, options: LoadOptions
) -> tuple[SelectedLeaves, Matching]:
    cast, name = options.cast, reader.path
    part = _selected(reader, options)
    index = part.stored
    if like is None:
        matching = match_without_like(index, options, name=name)
    elif index.naming == "positions":
        matching = match_by_position(index, like, options, name=name)
    else:
        if part.moved or has_nnx():
            flat = flatten(like)
            warn_of_lost_ties(flat)
            part = with_kinds_of_nnx(part, flat)
            if part.moved and index.naming == "exact":
                part = with_keys_of_like(part, flat.structure, flat.paths)
        index = part.stored
        transposed = {leaf.key_path for leaf in index.leaves if type(leaf.storage) is Arranged}
        matching = match_like(
            index,
            like,
            options,
            name=name,
            left_out=part.left_out,
            transposed=transposed,
            moved=part.moved,
        )
    targets = matching.targets
    if "unreadable" in map(itemgetter(1), targets):
        require_readable([target.leaf for target in targets], index.naming, name=name)
    if cast is not None and not isinstance(cast, bool):
        paths = [target.leaf.key_path for target in targets]
        targets = cast_targets(targets, paths, cast, naming=index.naming, where=name)
    return part, matching._replace(targets=targets)


def _selected(reader: LeafReader, options: LoadOptions) -> SelectedLeaves:
    select, rename, transpose = options.select, options.rename, options.transpose
    if options.recipe is not None:
        from cordwood.recipes.map_index import map_selected

        return map_selected(reader.index, options.recipe, select=select, where=reader.path)
    if select is None and not rename and transpose is None:
        return SelectedLeaves(reader.index, ())
    if reader.index.naming == "positions":
        raise MismatchError(
            f"{reader.path} holds arrays without names, which select, rename and transpose need"
        )
    return select_leaves(
        reader.index, select=select, rename=rename, transpose=transpose, where=reader.path
    )


@gc_paused()  # until the index is freed: the collector would traverse all of it
def load_checkpoint(
    location: Location,
    like: Any,
    options: LoadOptions,
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
) -> Any:
    """Load a tree, as `load`."""
    # Data is freed once it is read.
    open_options = OpenOptions(max_bytes, read_once=not options.mmap)

    def read() -> Any:
        reader = open_reader(location, format=format, prefix=prefix, options=open_options)
        with closing(reader.opened):
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
