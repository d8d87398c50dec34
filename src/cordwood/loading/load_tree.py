"""A load from an open checkpoint: select, match, cast, assign shardings, restore, rebuild."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.errors import MismatchError
from cordwood.io.pause_python_gc import gc_paused
from cordwood.io.progress import report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.loading.assign_shardings import assign_shardings
from cordwood.loading.cast import cast_targets
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.leaf_target import Target, check_x64, target_size_bytes
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.match_like import match_like
from cordwood.loading.match_positions import match_by_position
from cordwood.loading.match_without_like import match_without_like
from cordwood.loading.restore_targets import restore_targets
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves


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
    cast, mmap, name = options.cast, options.mmap, reader.path
    part = _selected(reader, options)
    index = part.stored
    if like is None:
        matching = match_without_like(index, options, name=name)
    elif index.naming == "positions":
        matching = match_by_position(index, like, options, name=name)
    else:
        transposed = {index.leaves[i].key_path for i in part.axes}
        matching = match_like(
            index, like, options, name=name, left_out=part.left_out, transposed=transposed
        )
    targets = matching.targets
    if not isinstance(cast, bool):
        paths = [target.leaf.key_path for target in targets]
        targets = cast_targets(targets, paths, cast, naming=index.naming, where=name)
    if options.assigns_shardings:
        targets = assign_shardings(options, targets, matching.paths)
    check_x64(name, targets, has_like=like is not None, cast=cast)
    if index is not reader.index:
        targets = _stored_targets(reader, part, targets)
    with progress_display(options.progress, "loading") as report:
        size_bytes = 0 if report is None else sum(map(target_size_bytes, targets))
        with report_progress(size_bytes, report):
            verify = not mmap if options.verify is None else options.verify
            values = restore_targets(reader, targets, mmap=mmap, verify=verify, alias=options.alias)
    return matching.rebuild(values)


def _selected(reader: LeafReader, options: LoadOptions) -> SelectedLeaves:
    select, rename, transpose = options.select, options.rename, options.transpose
    if select is None and not rename and transpose is None:
        return SelectedLeaves(reader.index, ())
    if reader.index.naming == "positions":
        raise MismatchError(
            f"{reader.path} holds arrays without names, which select, rename and transpose need"
        )
    return select_leaves(
        reader.index, select=select, rename=rename, transpose=transpose, where=reader.path
    )


def _stored_targets(
    reader: LeafReader, part: SelectedLeaves, targets: Sequence[Target]
) -> list[Target]:
    """Return the targets of selected leaves, with the leaves of the checkpoint itself."""
    leaves = reader.index.leaves
    position = {id(leaf): i for i, leaf in enumerate(part.stored.leaves)}
    positions = [position[id(target.leaf)] for target in targets]
    return [
        target._replace(leaf=leaves[part.numbers[i]], axes=part.axes.get(i))
        for target, i in zip(targets, positions, strict=True)
    ]
