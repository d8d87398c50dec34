"""The choice of a tree of a checkpoint by the name of its item, and its errors."""

from __future__ import annotations

from cordwood.errors import (
    FormatError,
    IncompleteCheckpointError,
    PrefixError,
    absent_prefix_message,
    no_prefix_message,
)
from cordwood.formats.orbax.orbax_directory import OrbaxDirectory, inspect_checkpoint
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.formats.orbax.unfinished_saves import COMMIT_NAME, is_unfinished_name
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at

_MAX_SHOWN = 20


def item_names(location: Location) -> list[str]:
    """Return the names of the items that are trees; '' for a checkpoint that is one itself.

    Raises IncompleteCheckpointError and FormatError as `open_item`.
    """
    with directory_at(location) as directory:
        return tree_directories(inspect_checkpoint(directory), name=str(location))


def tree_directories(entries: OrbaxDirectory, *, name: str) -> list[str]:
    """Return the directories of the trees, relative to the checkpoint.

    Args:
        entries: the result of `inspect_directory`.
        name: the path of the checkpoint, for errors.

    Raises:
        IncompleteCheckpointError: the save is unfinished, or the directory holds steps of a run.
        FormatError: there is no tree.
    """
    if is_unfinished_name(name.rstrip("/")):
        raise IncompleteCheckpointError(
            f"{name}: Orbax did not finish this save; load an earlier step, or save again"
        )
    if not entries.committed:
        raise IncompleteCheckpointError(
            f"{name}: Orbax did not finish this save: there is no {COMMIT_NAME}, which it writes "
            "last; load an earlier step, or save again (if you copied it here, and it is complete, "
            f"put an empty file {COMMIT_NAME} into it)"
        )
    if entries.steps:
        newest = entries.steps[-1]
        raise IncompleteCheckpointError(
            f"{name} is not a checkpoint. It holds the steps {_shown(entries.steps)} of a run: "
            f"load one of them, the newest with {name.rstrip('/')}/{newest}"
        )
    trees = list(entries.trees)
    if not trees and entries.unfinished:
        raise IncompleteCheckpointError(
            f"{name} holds no finished save of Orbax, only {_shown(entries.unfinished)}: "
            "load an earlier step, or save again"
        )
    if not trees:
        raise FormatError(
            f"{name}: expected {TREE_NAME}, or items that have one, found "
            f"{_shown(entries.others) or 'none'}: it holds no tree that is read here; load "
            f"and save it again with orbax-checkpoint{_not_followed(entries)}"
        )
    return trees


def select_tree(
    entries: OrbaxDirectory, prefix: str | None, *, name: str, kind: str = "something else"
) -> str:
    """Return the directory of the requested tree, relative to the checkpoint.

    Args:
        entries: the result of `inspect_directory`.
        prefix: the name of the item, or None.
        name: the path of the checkpoint, for errors.
        kind: the kind of the item of that name, if it is not a tree.

    Raises as `tree_directories`; PrefixError if there is no item of that name, or if no name was
    passed and there are several.
    """
    trees = tree_directories(entries, name=name)
    if prefix is None:
        if len(trees) == 1:
            return trees[0]
        raise PrefixError(f"{name}: {no_prefix_message(trees)}")
    if trees == [""]:
        if prefix:
            raise PrefixError(
                f"{name}: Prefix {prefix!r} not found. It is one tree, without items; leave the "
                "prefix out"
            )
        return ""
    if prefix in entries.others:
        root, _, step = name.rstrip("/").rpartition("/")
        number = step if step.isdecimal() else "step"
        raise PrefixError(
            f"{name}: the item {prefix!r} is {kind}, not a tree. Trees: {trees}. To get the item: "
            f"cordwood.StepReader({root!r}).restore({number}, prefix={trees[0]!r}, "
            f"items={{{prefix!r}: None}}).items[{prefix!r}]"
        )
    if prefix not in trees:
        hint = _not_followed(entries) if prefix in entries.links else ""
        raise PrefixError(f"{name}: {absent_prefix_message(prefix, trees)}{hint}")
    return prefix


def _not_followed(entries: OrbaxDirectory) -> str:
    if not entries.links:
        return ""
    return (
        f". {_shown(entries.links)}: symbolic links are not followed; copy the checkpoint with "
        "links followed (cp -rL)"
    )


def _shown(names: tuple[str, ...]) -> str:
    omitted = f"{len(names) - _MAX_SHOWN} more, " if len(names) > _MAX_SHOWN else ""
    return omitted + ", ".join(names[-_MAX_SHOWN:])
