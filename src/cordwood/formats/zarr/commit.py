"""Commit a written item into its directory; the other items keep their paths."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cordwood.errors import CordwoodError, NotACheckpointError
from cordwood.formats.format_for_saving import refuse_other_tools
from cordwood.formats.zarr.array_metadata import METADATA_NAME
from cordwood.formats.zarr.array_paths import array_paths
from cordwood.formats.zarr.plan_save import entries
from cordwood.formats.zarr.plan_tree import Draft
from cordwood.formats.zarr.read_index import read_index_file
from cordwood.formats.zarr.tensorstore_index import (
    INDEX_NAME,
    IndexFile,
    drop_item,
    encode_index,
    entries_of,
    item_names,
    put_item,
)
from cordwood.message_text import first_names
from cordwood.storage.directories import count_files, scan_directory
from cordwood.storage.directory_reader import LocalDirectory
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.staging_directory import StagingDirectory, link_unchanged

MAX_FOREIGN_FILES = 10_000  # that a directory without an index may hold
_OTHER_INDEX = "cordwood.json"  # of packs
_MAX_SHOWN = 3
_CHUNK_NAME = re.compile(r"[0-9]+(\.[0-9]+)*")


def place(
    stage: StagingDirectory, existing: str | None, item: Draft, members: Mapping[str, Any] | None
) -> Callable[[str], None]:
    """Complete a stage that holds the arrays of an item, under the lock of its parent.

    Args:
        stage: the staging directory, about to replace the old directory.
        existing: the old directory; None: there is none.
        item: the item that was written.
        members: cordwood's part of the index; None leaves the item out of it.

    Returns:
        A function that links files which came into the old directory meanwhile.
    """
    index = None if existing is None else _index_of(existing, stage.asked)
    prefix = item.prefix
    others = [] if index is None else [name for name in item_names(index) if name != prefix]
    taken = [entry.path for name in others for entry in entries_of(index, name)] if index else []
    dropped: list[str] = []
    if index is not None and prefix in item_names(index):
        dropped = [entry.path for entry in entries_of(index, prefix)]
    paths = array_paths(item.key_paths, prefix, taken=taken)
    for staged, path in zip(item.paths, paths, strict=True):
        if staged != path:
            stage.move(staged, path)
    replaced = _replaced({*dropped}, {*paths}, index_too=members is not None or index is not None)
    if existing is not None:
        link_unchanged(existing, stage, replaced)
    if members is not None:
        index = put_item(index, prefix, entries(item.plan, paths), members)
    elif index is not None:
        index = drop_item(index, prefix)
    if index is not None:
        stage.write(INDEX_NAME, [encode_index(index)])
    return lambda old: link_unchanged(old, stage, replaced, missing_only=True)


def _replaced(
    dropped: set[str], ours: set[str], *, index_too: bool
) -> Callable[[str, set[str]], set[str]]:
    """Return a function that gives the names of an old directory that the new one drops."""

    def names_of(path: str, names: set[str]) -> set[str]:
        gone = {INDEX_NAME} if index_too and not path else set()
        # The path of an array, and of an old one that no index lists any more.
        if (path or ".") in dropped or (path in ours and METADATA_NAME in names):
            gone |= {name for name in names if name == METADATA_NAME or _CHUNK_NAME.fullmatch(name)}
        return gone

    return names_of


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError for a directory that a save must not take over."""
    text = os.fspath(path)
    if _index_of(text, text) is None:
        refuse_other_tools(text, asked=text)


def refuse_to_fill(path: str | os.PathLike[str]) -> None:
    """Raise as `refuse_foreign`, and for any directory without an index that is not empty.

    eFormer's calls add to such a directory; `cordwood.save` does not.
    """
    text = os.fspath(path)
    if _index_of(text, text) is not None:
        return
    refuse_other_tools(text, asked=text)
    names = sorted([entry.name for entry in scan_directory(text)])
    if names and _index_of(text, text) is None:  # no other save has put it there meanwhile
        raise NotACheckpointError(
            errno.EEXIST,
            f"it is a directory, but not a checkpoint: it has no {INDEX_NAME}, and contains "
            f"{first_names(names, _MAX_SHOWN)}; remove it, save to another path, or add "
            "to it with tree_serialize_leaves",
            text,
        )


def _index_of(directory_path: str, asked: str) -> IndexFile | None:
    """Return the index of a directory; None if it has none."""
    return retry_reading(partial(_index_now, directory_path, asked))


def _index_now(directory_path: str, asked: str) -> IndexFile | None:
    """Return the same from one look at the directory.

    Raises ReplacedError if another save has replaced the directory meanwhile.
    """
    try:
        directory = LocalDirectory(directory_path)
    except (FileNotFoundError, NotADirectoryError):
        return None  # the stage says what is wrong with a file
    with directory:
        if directory.has(_OTHER_INDEX):
            raise NotACheckpointError(
                errno.EEXIST,
                f"it is a checkpoint of another layout (it has a {_OTHER_INDEX}); remove it, or "
                "save to another path",
                asked,
            )
        if directory.has(INDEX_NAME):
            try:
                return read_index_file(directory)
            except CordwoodError as e:
                if not directory.has(INDEX_NAME):
                    text = "other saves keep replacing it; save again"
                    raise ReplacedError(NotACheckpointError(errno.EBUSY, text, asked)) from e
                raise NotACheckpointError(
                    errno.EEXIST,
                    f"the checkpoint there cannot be read, so that what it holds could not be kept "
                    f"({e}); remove it, or save to another path",
                    asked,
                ) from e
        if count_files(directory_path, at_most=MAX_FOREIGN_FILES) > MAX_FOREIGN_FILES:
            raise NotACheckpointError(
                errno.EEXIST,
                f"it is no checkpoint and holds more than {MAX_FOREIGN_FILES} files; save to a "
                "directory of its own",
                asked,
            )
        return None
