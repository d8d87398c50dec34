"""Open one tree of an Orbax checkpoint."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.format_protocol import Opened
from cordwood.formats.orbax.locate_trees import (
    OrbaxDirectory,
    inspect_directory,
    is_unfinished,
    item_kind,
    select_tree,
    tree_directories,
)
from cordwood.formats.orbax.read_index import FORMAT, OrbaxIndex, read_index
from cordwood.keypath import path_label
from cordwood.message_text import first_names, printable
from cordwood.storage.directory_reader import FileOwningDirectory, LocalDirectory
from cordwood.storage.open_files import MemoryFile, ReadableFile
from cordwood.storage.paths import kind_at


def is_at(path: str | os.PathLike[str]) -> bool:
    """Return whether Orbax wrote a directory: a checkpoint, steps, or an unfinished save."""
    return _is_unfinished(path) or _inspect(path).is_orbax


def is_checkpoint_at(path: str | os.PathLike[str]) -> bool:
    """Return whether Orbax wrote a directory that is not a directory of steps."""
    directory = _inspect(path)
    return not directory.steps and (directory.is_orbax or _is_unfinished(path))


def steps_at(path: str | os.PathLike[str]) -> Sequence[str]:
    """Return the steps in a root directory of a run, the newest last; () for other directories."""
    return _inspect(path).steps


def _inspect(path: str | os.PathLike[str]) -> OrbaxDirectory:
    try:
        with LocalDirectory(path) as directory:
            return inspect_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return OrbaxDirectory()


def _is_unfinished(path: str | os.PathLike[str]) -> bool:
    text = os.fspath(path)
    return is_unfinished(text.rstrip("/")) and kind_at(text) == "a folder"


def refuse_unfinished(path: str | os.PathLike[str]) -> None:
    """Raise IncompleteCheckpointError if there is only an unfinished save of `path`."""
    folder, _, name = os.fspath(path).rstrip("/").rpartition("/")
    try:
        with LocalDirectory(folder or ("/" if os.fspath(path).startswith("/") else ".")) as above:
            sizes = above.sizes(".")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for each in sorted(sizes):
        if each.startswith(f"{name}.") and is_unfinished(each):
            raise IncompleteCheckpointError(
                f"{os.fspath(path)}: Orbax did not finish this save, and left {each}; load an "
                "earlier step, or save again"
            )


def open_item(path: str | os.PathLike[str], prefix: str | None, *, warn: bool = True) -> Opened:
    """Open a tree.

    Args:
        path: the checkpoint, or the directory of one of its items.
        prefix: the item's name. None: the checkpoint itself, or its only item that is a tree.
        warn: warn of arrays that may be lost, see `_warn_of_assumed`.

    Raises:
        IncompleteCheckpointError: the save did not finish, or the directory is a root of steps;
            names the newest.
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError, CorruptionError: as `read_index`.
    """
    text = os.fspath(path)
    place = LocalDirectory(text)
    try:
        inspected = inspect_directory(place)
        # A prefix that is not the name of an item could be a path to anywhere: it is not opened.
        kind = item_kind(place, prefix) if prefix is not None and prefix in inspected.others else ""
        item = select_tree(inspected, prefix, name=text, kind=kind)
        directory = _tree(place, item)
    except BaseException:
        place.close()
        raise
    try:
        orbax_index = read_index(directory)
        if warn:
            _warn_of_assumed(directory.name, orbax_index)
        sources = enumerate(orbax_index.tree.sources)
        size = sum([each.size_bytes for n, each in sources if n not in orbax_index.memory])
        return Opened(
            FORMAT,
            orbax_index.tree,
            _files(directory, orbax_index),
            checked_bytes=orbax_index.checked_bytes,
            stored_bytes=size,
            unstored=orbax_index.unstored,
        )
    except BaseException:
        directory.close()
        raise


def item_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the items that are trees; '' for a checkpoint that is one itself.

    Raises IncompleteCheckpointError and FormatError as `open_item`.
    """
    text = os.fspath(path)
    with LocalDirectory(text) as place:
        return tree_directories(inspect_directory(place), name=text)


def other_items(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the items that are no trees, such as JSON, metrics and iterators: the kind of each."""
    try:
        with LocalDirectory(path) as directory:
            return {
                name: item_kind(directory, name) for name in inspect_directory(directory).others
            }
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _tree(place: LocalDirectory, item: str) -> LocalDirectory:
    """Return the directory of an item and close the checkpoint's; '' is the checkpoint itself."""
    if not item:
        return place
    with place:
        return place.folder(item)


def _warn_of_assumed(name: str, orbax_index: OrbaxIndex) -> None:
    """Zeros that nothing vouches for must not pass in silence."""
    paths = [printable(path_label(path)) for path in orbax_index.assumed]
    if paths:
        warnings.warn(
            f"{name}: no chunk of {first_names(paths, 1)} is stored: zeros, which older "
            "versions of Orbax left out without saying so, or files that are lost; "
            "cordwood.verify lists them",
            RuntimeWarning,
            stacklevel=2,
        )


def _files(directory: LocalDirectory, orbax_index: OrbaxIndex) -> list[ReadableFile]:
    files: list[ReadableFile] = []
    for number, source in enumerate(orbax_index.tree.sources):
        if number in orbax_index.memory:
            files.append(MemoryFile(orbax_index.memory[number], f"{directory.name}: {source.name}"))
        else:
            files.append(FileOwningDirectory(directory, source.name, source.size_bytes))
    if len(files) == len(orbax_index.memory):
        directory.close()  # nothing more will be read, and no file closes it
    return files
