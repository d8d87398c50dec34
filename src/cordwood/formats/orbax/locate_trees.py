"""Trees in a directory of Orbax: a checkpoint is one tree, or has trees as items, or is a step.

checkpoint/_METADATA                    one tree (before 0.3: checkpoint/checkpoint)
checkpoint/{default,state,...}/_METADATA    items
root/{1,2,...}/...                      steps, each a checkpoint
*.orbax-checkpoint-tmp                  an unfinished save

Below gs://, and where it is told so, Orbax does not rename: a step without `commit_success.txt` is
an unfinished save, if its items have that file or `_CHECKPOINT_METADATA` has no time of a commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    PrefixError,
    absent_prefix_message,
    no_prefix_message,
)
from cordwood.formats.format_protocol import Match, Place
from cordwood.formats.orbax.aggregate_file import is_aggregate_at
from cordwood.formats.orbax.array_item import (
    CHECKPOINT_NAME,
    is_array_at,
    read_checkpoint_metadata,
)
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.paths import kind_at
from cordwood.storage.readable_directory import FOLDER, OTHER, ReadableDirectory

if TYPE_CHECKING:
    from cordwood.formats.table import Format

_COMMIT_NAME = "commit_success.txt"
_IN_PLACE = "gs://"  # where Orbax renames nothing
_MARKERS = frozenset({CHECKPOINT_NAME, "orbax.checkpoint", "_ROOT_METADATA"})
_UNFINISHED = re.compile(r"\.(orbax-checkpoint-tmp(-[0-9]+)?|partial_save)$")
_STEP = re.compile(r"(?:.*_)?([0-9]{1,18})")  # 100, or model_100 with a step_prefix
_STATE = re.compile(r"process_[0-9]+-of-[0-9]+\.json")
_MAX_SHOWN = 20

# The kinds of items, as error messages call them.
TREE = "a tree"
JSON = "JSON"
JAX_KEY = "a random key of jax"
NUMPY_KEY = "a random state of numpy"
STATES = "the state of an iterator"
_UNKNOWN = "of a kind that cordwood does not read"


class OrbaxDirectory(NamedTuple):
    """The trees, steps and unfinished saves of Orbax in a directory."""

    trees: tuple[str, ...] = ()  # items that are trees; '' is the directory itself
    others: tuple[str, ...] = ()  # items that are not trees: JSON, metrics
    steps: tuple[str, ...] = ()  # directories of checkpoints, the newest last
    unfinished: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # symbolic links and special files, which are not followed
    marked: bool = False  # True if there is a file that only Orbax writes
    committed: bool = True  # False for a checkpoint whose save did not end

    @property
    def is_orbax(self) -> bool:
        """True if Orbax wrote something here."""
        return self.marked or bool(self.trees or self.steps or self.unfinished)


def matches(format: Format, place: Place) -> Match:
    """Return LIKELY if an item of the directory has the index, and the directory has none."""
    if place.file is not None or place.search_below:
        return Match.NO
    if format.index_name in place.names:
        return Match.YES
    return Match.LIKELY if is_checkpoint_at(place) else Match.NO


def is_at(place: Place) -> bool:
    """Return whether Orbax wrote a directory: a checkpoint, steps, or an unfinished save."""
    return _is_named_unfinished(place) or _inspect(place).is_orbax


def is_checkpoint_at(place: Place) -> bool:
    """Return whether Orbax wrote a directory that is not a directory of steps."""
    directory = _inspect(place)
    return not directory.steps and (directory.is_orbax or _is_named_unfinished(place))


def steps_at(place: Place) -> Sequence[str]:
    """Return the steps in a root directory of a run, the newest last; () for other directories."""
    return _inspect(place).steps


def is_unfinished_at(place: Place) -> bool:
    """Return whether a directory is a checkpoint whose save did not end."""
    if _is_named_unfinished(place):
        return True
    with suppress(FileNotFoundError, NotADirectoryError), place.opened() as directory:
        return not is_committed(directory, inspect_directory(directory))
    return False


def is_committed(directory: ReadableDirectory, entries: OrbaxDirectory) -> bool:
    """Return False if the save of a checkpoint is known not to have ended. Read one small file.

    Orbax has written the time of the commit since 0.5, before a rename and before the commit file.
    """
    if not entries.committed or entries.steps:
        return entries.committed
    if _has(directory, _COMMIT_NAME):
        return True
    about = read_checkpoint_metadata(directory)
    is_begun = about.get("init_timestamp_nsecs") is not None
    return not is_begun or about.get("commit_timestamp_nsecs") is not None


def _inspect(place: Place) -> OrbaxDirectory:
    with suppress(FileNotFoundError, NotADirectoryError), place.opened() as directory:
        return inspect_directory(directory)
    return OrbaxDirectory()


def _is_named_unfinished(place: Place) -> bool:
    return is_unfinished(place.path.rstrip("/")) and (
        place.directory is not None or kind_at(place.path) == "a folder"
    )


def refuse_unfinished(path: LocalPath) -> None:
    """Raise IncompleteCheckpointError if there is only an unfinished save of a path."""
    try:
        with LocalDirectory(path.parent) as above:
            sizes = above.sizes(".")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for each in sorted(sizes):
        if each.startswith(f"{path.name}.") and is_unfinished(each):
            raise IncompleteCheckpointError(
                f"{path}: Orbax did not finish this save, and left {each}; load an "
                "earlier step, or save again"
            )


def item_names(location: Location) -> list[str]:
    """Return the names of the items that are trees; '' for a checkpoint that is one itself.

    Raises IncompleteCheckpointError and FormatError as `open_item`.
    """
    text = str(location)
    with directory_at(location) as directory:
        return tree_directories(inspect_tree(directory), name=text)


def other_items(location: Location) -> dict[str, str]:
    """Return the items that are no trees, such as JSON, metrics and iterators: the kind of each."""
    with suppress(FileNotFoundError, NotADirectoryError), directory_at(location) as directory:
        return {name: item_kind(directory, name) for name in inspect_directory(directory).others}
    return {}


def is_unfinished(name: str) -> bool:
    """Return whether `name` is the name of a directory of an unfinished save."""
    return _UNFINISHED.search(name) is not None


def inspect_tree(directory: ReadableDirectory) -> OrbaxDirectory:
    """List the trees of a checkpoint that is to be read, and look for its commit."""
    entries = inspect_directory(directory)
    return entries._replace(committed=is_committed(directory, entries))


def inspect_directory(directory: ReadableDirectory) -> OrbaxDirectory:
    """List the trees and steps in a directory by the names of its files.

    Of a file `checkpoint`, which may be a tree of an old version, the first byte is read.
    """
    if _has_tree(directory, ""):  # there may be a directory for every leaf beside it
        committed = not directory.name.startswith(_IN_PLACE) or _has(directory, _COMMIT_NAME)
        return OrbaxDirectory(trees=("",), marked=True, committed=committed)
    sizes = directory.sizes(".")
    marked = not _MARKERS.isdisjoint(sizes)
    folders = [name for name, size in sorted(sizes.items()) if size == FOLDER]
    links = [name for name, size in sorted(sizes.items()) if size == OTHER]
    unfinished = [name for name in folders if is_unfinished(name)]
    trees: list[str] = []
    others: list[str] = []
    steps: list[str] = []
    for name in folders:
        if is_unfinished(name):
            continue
        if CHECKPOINT_NAME not in sizes and _is_step(directory, name):
            (steps if _has_commit(directory, name) else unfinished).append(name)
        elif _has_tree(directory, name):
            trees.append(name)
        else:
            others.append(name)
    steps.sort(key=_number)
    if steps:
        trees = []
    committed = not trees or _has_commit(directory, "")
    return OrbaxDirectory(
        tuple(trees),
        tuple(others),
        tuple(steps),
        tuple(unfinished),
        tuple(links),
        marked,
        committed,
    )


def item_kind(directory: ReadableDirectory, item: str) -> str:
    """Return the kind of an item of a checkpoint, judged by the names of its files."""
    names = _sizes(directory, item)
    if TREE_NAME in names or _has_tree(directory, item):
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


def _has_commit(directory: ReadableDirectory, folder: str) -> bool:
    """Return False for a directory of items that by its names was not committed."""
    path = f"{folder}/" if folder else ""
    if _has(directory, path + _COMMIT_NAME):
        return True
    if directory.name.startswith(_IN_PLACE):
        return False
    return not any(
        size == FOLDER and _has(directory, f"{path}{item}/{_COMMIT_NAME}")
        for item, size in _sizes(directory, folder or ".").items()
    )


def _is_step(directory: ReadableDirectory, name: str) -> bool:
    if _has(directory, f"{name}/{CHECKPOINT_NAME}"):
        return True
    if _STEP.fullmatch(name) is None:
        return False
    if _has_tree(directory, name):
        return True
    return any(
        size == FOLDER and _has_tree(directory, f"{name}/{item}")
        for item, size in _sizes(directory, name).items()
    )


def _sizes(directory: ReadableDirectory, path: str) -> Mapping[str, int]:
    """Return the entries of a directory; {} if it has been removed, or is not readable."""
    with suppress(CorruptionError, PermissionError):
        return directory.sizes(path)
    return {}


def _has_tree(directory: ReadableDirectory, folder: str) -> bool:
    """Return whether a directory is a tree: by `_METADATA`, or the file that was its forerunner."""
    if _has(directory, f"{folder}/{TREE_NAME}" if folder else TREE_NAME):
        return True
    with suppress(CorruptionError, PermissionError):
        return is_aggregate_at(directory, folder) or is_array_at(directory, folder)
    return False


def _has(directory: ReadableDirectory, path: str) -> bool:
    """Return whether a file exists; False in an unreadable directory such as lost+found."""
    try:
        return directory.has(path)
    except PermissionError:
        return False


def _number(name: str) -> tuple[int, str]:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else -1, name


def tree_directories(entries: OrbaxDirectory, *, name: str) -> list[str]:
    """Return the directories of the trees, relative to the checkpoint.

    Args:
        entries: the result of `inspect_directory`.
        name: the path of the checkpoint, for errors.

    Raises:
        IncompleteCheckpointError: the save is unfinished, or the directory holds steps of a run.
        FormatError: there is no tree.
    """
    if is_unfinished(name.rstrip("/")):
        raise IncompleteCheckpointError(
            f"{name}: Orbax did not finish this save; load an earlier step, or save again"
        )
    if not entries.committed:
        raise IncompleteCheckpointError(
            f"{name}: Orbax did not finish this save: there is no {_COMMIT_NAME}, which it writes "
            "last; load an earlier step, or save again (if you copied it here, and it is complete, "
            f"put an empty file {_COMMIT_NAME} into it)"
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
