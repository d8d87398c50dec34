"""A load from an open checkpoint: select, match, cast, assign shardings, restore, rebuild."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.errors import MismatchError
from cordwood.index import Index
from cordwood.io.progress import report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.threads import gc_paused
from cordwood.keypath import KeyPath, format_path
from cordwood.loading.assign_shardings import assign_shardings
from cordwood.loading.cast import cast_targets
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.leaf_target import Target, check_x64, default_targets, target_size_bytes
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.match_containers import SEPARATORS, nest_names
from cordwood.loading.match_like import Matching, match_by_position, match_like
from cordwood.loading.restore_targets import restore_targets
from cordwood.message_text import counted
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.tree.flatten import build_tree


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


def match_without_like(index: Index, options: LoadOptions, *, name: str) -> Matching:
    """Return targets for all leaves of the index, of the kinds that were saved.

    Args:
        index: the stored leaves.
        options: `to` and `nest` are used.
        name: the checkpoint's name in errors.

    Raises:
        MismatchError: leaves have no names, so only a `like` could give the structure.
        ValueError: `nest` is true and the names to split are in containers, or `rename` has
            turned them into paths.
    """
    if index.naming == "positions":
        raise MismatchError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: pass "
            "like=, a tree like the one that was saved (equinox.filter_eval_shape makes one that "
            "takes no memory)"
        )
    paths = [leaf.key_path for leaf in index.leaves]
    targets = default_targets(index.leaves, options.to)
    separator = SEPARATORS.get(index.naming)
    if options.nest and separator is None:
        separator = _separator_of(paths, name)
    if not options.nest or separator is None:
        return Matching(targets, paths, lambda values: build_tree(index.structure, values))
    if any(len(path) > 1 for path in paths):
        raise ValueError("nest=True is for names as they are; rename has made paths of some")
    paths = [tuple(separator.join(map(str, path)).split(separator)) for path in paths]

    def rebuild(values: Sequence[Any]) -> Any:
        return nest_names(build_tree(index.structure, values), separator, name)

    return Matching(targets, paths, rebuild)


def _separator_of(paths: Sequence[KeyPath], name: str) -> str | None:
    """Return the separator of the joined keys of a flat dict; None if no keys are joined.

    Raises ValueError if keys are joined by '.' and the dict is not flat.
    """
    joined = [path for path in paths if any(isinstance(key, str) and "." in key for key in path)]
    if not all(len(path) == 1 and isinstance(path[0], str) for path in paths):
        if joined:
            raise ValueError(
                f"nest=True: {name} holds containers already, and {format_path(joined[0])} has a "
                "key that is joined by '.': only the keys of one flat dict are taken apart; load "
                "it without nest=True, or with rename="
            )
        return None
    if joined:
        return "."
    return "/" if any("/" in str(path[0]) for path in paths) else None
