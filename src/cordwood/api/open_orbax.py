"""Open one tree of an Orbax checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cordwood.api.contents import Checked, Contents
from cordwood.engine.directory import LocalDirectory, OwnedFile
from cordwood.engine.files import MemoryFile, ReadableFile
from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.orbax import FORMAT, Scanned, scan
from cordwood.formats.orbax.places import is_unfinished, look, pick, trees_of

__all__ = ["is_at", "open_contents", "refuse_unfinished", "steps_at", "verify_all"]


def is_at(path: str | os.PathLike[str]) -> bool:
    """Whether a directory of Orbax's is there: a checkpoint, steps, or an unfinished save."""
    text = os.fspath(path)
    try:
        directory = LocalDirectory(text)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with directory:
        return is_unfinished(text.rstrip("/")) or look(directory).anything


def steps_at(path: str | os.PathLike[str]) -> Sequence[str]:
    """The steps of a run whose root a directory is, the newest last; () where it is none."""
    try:
        directory = LocalDirectory(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    with directory:
        return look(directory).steps


def refuse_unfinished(path: str | os.PathLike[str]) -> None:
    """Raise IncompleteCheckpointError where nothing is at `path` but what a save was to become."""
    folder, _, name = os.fspath(path).rstrip("/").rpartition("/")
    try:
        with LocalDirectory(folder or ("/" if os.fspath(path).startswith("/") else ".")) as above:
            there = above.sizes(".")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for each in sorted(there):
        if each.startswith(f"{name}.") and is_unfinished(each):
            raise IncompleteCheckpointError(
                f"{os.fspath(path)}: Orbax did not finish this save, and left {each}; load an "
                "earlier step, or save again"
            )


def open_contents(path: str | os.PathLike[str], prefix: str | None) -> Contents:
    """A tree, for `cordwood.open`.

    Args:
        path: the checkpoint, or the directory of one of its items.
        prefix: the item's name. None: the checkpoint itself, or its only item that is a tree.

    Raises:
        IncompleteCheckpointError: the save did not finish, or the directory is a root of steps;
            names the newest.
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError, CorruptionError: as `formats.orbax.scan`.
    """
    text = os.fspath(path)
    with LocalDirectory(text) as place:
        item = pick(look(place), prefix, name=text)
    directory = LocalDirectory(f"{text.rstrip('/')}/{item}" if item else text)
    try:
        scanned = scan(directory)
        return Contents(FORMAT, scanned.stored, _files(directory, scanned))
    except BaseException:
        directory.close()
        raise


def _files(directory: LocalDirectory, scanned: Scanned) -> list[ReadableFile]:
    files: list[ReadableFile] = []
    for number, source in enumerate(scanned.stored.sources):
        if number in scanned.memory:
            files.append(MemoryFile(scanned.memory[number], f"{directory.name}: {source.name}"))
        else:
            files.append(OwnedFile(directory, source.name, source.size_bytes))
    if len(files) == len(scanned.memory):
        directory.close()  # nothing more will be read, and no file closes it
    return files


def verify_all(path: str | os.PathLike[str]) -> Checked:
    """Look at all trees of a checkpoint. What Orbax writes carries no digests, but for the nodes
    of databases.

    Raises as `open_contents`, where there is a save that did not finish, or a root of steps.
    """
    text = os.fspath(path)
    leaves = verified = unverified = 0
    with LocalDirectory(text) as place:
        items = trees_of(look(place), name=text)
    for item in items:
        with LocalDirectory(f"{text.rstrip('/')}/{item}" if item else text) as directory:
            scanned = scan(directory)
        leaves += len(scanned.stored.leaves)
        verified += scanned.checked_bytes
        unverified -= scanned.checked_bytes
        for number, source in enumerate(scanned.stored.sources):
            if number not in scanned.memory:
                unverified += source.size_bytes
    return Checked(leaves, verified, unverified)
