"""Which trees lie in a directory: a checkpoint is one, has some as its items, or is a step.

checkpoint/_METADATA                    one tree
checkpoint/{default,state,...}/_METADATA    items
root/{1,2,...}/...                      steps, each a checkpoint
*.orbax-checkpoint-tmp                  a save that did not finish
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    PrefixError,
    no_prefix_message,
)
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.storage.directory_reader import FOLDER, OTHER, ReadableDirectory

_CHECKPOINT_NAME = "_CHECKPOINT_METADATA"
_MARKERS = frozenset({_CHECKPOINT_NAME, "orbax.checkpoint", "_ROOT_METADATA"})
_UNFINISHED = re.compile(r"\.(orbax-checkpoint-tmp(-[0-9]+)?|partial_save)$")
_STEP = re.compile(r"(?:.*_)?([0-9]{1,18})")  # 100, or model_100 with a step_prefix
_STATE = re.compile(r"process_[0-9]+-of-[0-9]+\.json")
_MAX_SHOWN = 20

# What an item is, in words.
TREE = "a tree"
JSON = "JSON"
JAX_KEY = "a random key of jax"
NUMPY_KEY = "a random state of numpy"
STATES = "the state of an iterator"
_UNKNOWN = "of no kind that cordwood reads"


class OrbaxDirectory(NamedTuple):
    """What a directory has of Orbax's."""

    trees: tuple[str, ...] = ()  # the items that are trees; '' for the directory itself
    others: tuple[str, ...] = ()  # items that are none: JSON, metrics
    steps: tuple[str, ...] = ()  # checkpoints in it, the newest last
    unfinished: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # symbolic links and the like, which are not followed
    marked: bool = False  # has a file that only Orbax writes

    @property
    def anything(self) -> bool:
        return self.marked or bool(self.trees or self.steps or self.unfinished)


def is_unfinished(name: str) -> bool:
    """Whether Orbax gives the directory of a save under way such a name."""
    return _UNFINISHED.search(name) is not None


def inspect_directory(directory: ReadableDirectory) -> OrbaxDirectory:
    """Look at a directory and those in it. Reads no file."""
    if directory.has(TREE_NAME):  # beside a directory for every leaf, perhaps
        return OrbaxDirectory(trees=("",), marked=True)
    there = directory.sizes(".")
    marked = not _MARKERS.isdisjoint(there)
    folders = [name for name, size in sorted(there.items()) if size == FOLDER]
    links = [name for name, size in sorted(there.items()) if size == OTHER]
    unfinished = [name for name in folders if is_unfinished(name)]
    trees, others, steps = [], [], []
    for name in folders:
        if name in unfinished:
            continue
        if _CHECKPOINT_NAME not in there and _is_step(directory, name):
            steps.append(name)
        elif _has(directory, f"{name}/{TREE_NAME}"):
            trees.append(name)
        else:
            others.append(name)
    steps.sort(key=_number)
    if steps:
        trees = []
    return OrbaxDirectory(
        tuple(trees), tuple(others), tuple(steps), tuple(unfinished), tuple(links), marked
    )


def item_kind(directory: ReadableDirectory, item: str) -> str:
    """Return what an item of a checkpoint is, by the names of the files in it."""
    try:
        names = directory.sizes(item)
    except (CorruptionError, PermissionError):  # it has gone meanwhile, or is not for us
        return _UNKNOWN
    if TREE_NAME in names:
        return TREE
    if "jax_random_key" in names:
        return JAX_KEY
    if "np_random_key" in names:
        return NUMPY_KEY
    if any(map(_STATE.fullmatch, names)):
        return STATES
    if "metadata" in names or item in names:  # `metrics/metrics`
        return JSON
    return _UNKNOWN


def _is_step(directory: ReadableDirectory, name: str) -> bool:
    if _has(directory, f"{name}/{_CHECKPOINT_NAME}"):
        return True
    if _STEP.fullmatch(name) is None:
        return False
    if _has(directory, f"{name}/{TREE_NAME}"):
        return True
    try:
        inside = directory.sizes(name)
    except (CorruptionError, PermissionError):  # it has gone meanwhile, or is not for us
        return False
    return any(
        size == FOLDER and _has(directory, f"{name}/{item}/{TREE_NAME}")
        for item, size in inside.items()
    )


def _has(directory: ReadableDirectory, path: str) -> bool:
    """As `has`; nothing is in a directory that may not be read, such as lost+found."""
    try:
        return directory.has(path)
    except PermissionError:
        return False


def _number(name: str) -> tuple[int, str]:
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else -1, name


def tree_directories(found: OrbaxDirectory, *, name: str) -> list[str]:
    """The directories of the trees, relative to that of the checkpoint, which is called `name`.

    Raises:
        IncompleteCheckpointError: a save did not finish, or these are steps of a run.
        FormatError: there are no trees.
    """
    if is_unfinished(name.rstrip("/")):
        raise IncompleteCheckpointError(
            f"{name}: Orbax did not finish this save; load an earlier step, or save again"
        )
    if found.steps:
        newest = found.steps[-1]
        raise IncompleteCheckpointError(
            f"{name} is no checkpoint, but holds the steps {_shown(found.steps)} of a run: load "
            f"one of them, the newest with {name.rstrip('/')}/{newest}"
        )
    trees = list(found.trees)
    if not trees and found.unfinished:
        raise IncompleteCheckpointError(
            f"{name} holds no save of Orbax's that has finished, but {_shown(found.unfinished)}: "
            "load an earlier step, or save again"
        )
    if not trees:
        raise FormatError(
            f"{name}: expected {TREE_NAME}, or items that have one, found "
            f"{_shown(found.others) or 'none'}: it holds no tree, or an Orbax from before "
            f"{TREE_NAME} wrote it; load and save it again with orbax-checkpoint"
            f"{_not_followed(found)}"
        )
    return trees


def select_tree(
    found: OrbaxDirectory, prefix: str | None, *, name: str, kind: str = "no tree"
) -> str:
    """Return the directory of the tree that is meant, relative to that of the checkpoint.

    Args:
        found: what is there.
        prefix: the item's name; None where none is asked for.
        name: the checkpoint's, for errors.
        kind: what the item of that name is, if it is no tree.

    Raises as `tree_directories`; PrefixError if there is no item of that name, or if no name was
    passed and there are several.
    """
    trees = tree_directories(found, name=name)
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
    if prefix in found.others:
        root, _, step = name.rstrip("/").rpartition("/")
        number = step if step.isdecimal() else "step"
        raise PrefixError(
            f"{name}: the item {prefix!r} is {kind}, and no tree. Trees: {trees}. To get the item: "
            f"cordwood.StepReader({root!r}).restore({number}, prefix={trees[0]!r}, "
            f"items={{{prefix!r}: None}}).items[{prefix!r}]"
        )
    if prefix not in trees:
        hint = _not_followed(found) if prefix in found.links else ""
        raise PrefixError(f"{name}: Prefix {prefix!r} not found. Available: {trees}{hint}")
    return prefix


def _not_followed(found: OrbaxDirectory) -> str:
    if not found.links:
        return ""
    return (
        f". {_shown(found.links)}: symbolic links are not followed; copy the checkpoint with links "
        "followed (cp -rL)"
    )


def _shown(names: tuple[str, ...]) -> str:
    left_out = f"{len(names) - _MAX_SHOWN} more, " if len(names) > _MAX_SHOWN else ""
    return left_out + ", ".join(names[-_MAX_SHOWN:])
