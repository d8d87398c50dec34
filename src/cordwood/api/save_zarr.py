"""Save one item into a directory of the zarr layout, all others kept."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.api.jobs import Job
from cordwood.engine.apart import Check, run_apart
from cordwood.engine.carry import carry
from cordwood.engine.directory import LocalDirectory
from cordwood.engine.encode import encoder
from cordwood.engine.folders import count_files
from cordwood.engine.meeting import Meeting
from cordwood.engine.new_files import Written, write_new_files
from cordwood.engine.stage import Stage
from cordwood.errors import CordwoodError, NotACheckpointError, UnsupportedFormatError
from cordwood.formats.zarr.index_file import (
    INDEX_NAME,
    IndexFile,
    drop_item,
    encode_index,
    entries_of,
    item_names,
    put_item,
)
from cordwood.formats.zarr.layout import ItemPlan, entries, finish_item, new_files, plan_save
from cordwood.formats.zarr.metadata import COMPRESSORS, METADATA_NAME
from cordwood.formats.zarr.paths import array_paths
from cordwood.formats.zarr.scan import is_chunk_name, read_index
from cordwood.keypath import KeyPath
from cordwood.plan.chunks import ChunkFile
from cordwood.tree.cuts import leaf_cuts
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import ARRAY_KINDS, describe

__all__ = [
    "Draft",
    "draft",
    "finish",
    "place",
    "plan_job",
    "refuse_foreign",
    "refuse_processes",
    "save_draft",
    "write_arrays",
]

MAX_FOREIGN_FILES = 10_000  # that a directory without an index may hold
_OTHER_INDEX = "cordwood.json"  # of the layout of packs


class Draft(NamedTuple):
    """A tree, taken apart and planned. Nothing of it depends on the caller's containers."""

    plan: ItemPlan
    key_paths: Sequence[KeyPath]  # of its arrays
    leaves: Sequence[Any]
    prefix: str
    metadata: Mapping[str, str]
    covered: bool  # the index is to say what its files must be
    paths: list[str]  # of its arrays, if no other item is in the way
    size_bytes: int


def plan_job(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    prefix: str | None,
    metadata: Mapping[str, str],
    meeting: Meeting,
    compression: str | None = None,
) -> Job:
    """Plan the save of a tree; raises as `draft` does, and where several processes would save."""
    refuse_processes(path, meeting.count)
    item = draft(
        tree, prefix=prefix or "", compression=compression, metadata=metadata, covered=True
    )
    leaves, item = item.leaves, item._replace(leaves=())  # asked for again when they are written
    return Job(leaves, lambda fetch: save_draft(path, item, fetch))


def refuse_processes(path: str | os.PathLike[str], count: int) -> None:
    """Raise UnsupportedFormatError where several processes would save together."""
    if count > 1:
        raise UnsupportedFormatError(
            f"{os.fspath(path)}: the zarr layout is written by one process, and "
            f'{count} save together; save with cordwood.save and layout="packs"'
        )


def draft(
    tree: Any,
    *,
    prefix: str,
    compression: str | None,
    metadata: Mapping[str, str],
    covered: bool,
) -> Draft:
    """Take a tree apart and plan its arrays.

    Args:
        tree: what to save.
        prefix: the item's; '' for none.
        compression: "zstd", "blosc" or None.
        metadata: the user's strings.
        covered: False leaves the item out of the index.

    Raises UnsupportedLeafError, which names the leaf's key path; ValueError for the options.
    """
    if compression is not None and compression not in COMPRESSORS:
        known = ", ".join(map(repr, COMPRESSORS))
        raise ValueError(f"compression={compression!r}: expected None or one of {known}")
    flat = flatten(tree)
    specs = [describe(path, leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)]
    cuts = {
        i: leaf_cuts(spec, leaf)
        for i, (spec, leaf) in enumerate(zip(specs, flat.leaves, strict=True))
        if spec.kind in ARRAY_KINDS
    }
    plan = plan_save(
        flat.structure, specs, cuts, compression=compression, metadata=metadata, marked=covered
    )
    key_paths = [specs[array.leaf].key_path for array in plan.arrays]
    paths = array_paths(key_paths, prefix)
    sizes = [math.prod(specs[a.leaf].shape) * a.itemsize for a in plan.arrays]
    return Draft(plan, key_paths, flat.leaves, prefix, metadata, covered, paths, sum(sizes))


def save_draft(path: str | os.PathLike[str], item: Draft, fetch: Callable[[int], Any]) -> None:
    """Save a tree as one item of a directory, durably and atomically.

    Items of other prefixes stay, and so do files that are no part of the checkpoint.

    Args:
        path: the directory; made where it is missing.
        item: what to save.
        fetch: gives a leaf by its position in `item.leaves`: called once for each array.

    Raises as `cordwood.save`.
    """
    refuse_foreign(path)
    stage = Stage(path)

    def run(check: Check) -> None:
        with stage.reporting():
            stage.begin()
            written = write_arrays(stage, item, fetch, check)
            own = finish(item, written)
            stage.commit(lambda there: place(stage, there, item, own))

    run_apart(run)


def write_arrays(
    stage: Stage, item: Draft, fetch: Callable[[int], Any], check: Check
) -> list[Written]:
    """Write the files of an item into a stage; what became of each."""
    stage.make_folders(item.paths)
    encode = None if item.plan.compression is None else encoder(item.plan.compression)
    files = new_files(item.plan, item.paths)
    return write_new_files(stage.path, files, fetch, encode, check=check)


def finish(item: Draft, written: Sequence[Written]) -> dict[str, Any] | None:
    """cordwood's part of the index, if there is to be one."""
    if not item.covered:
        return None
    sizes = None
    if item.plan.compression is not None:
        files = zip(new_files(item.plan, item.paths), written, strict=True)
        sizes = [found.size_bytes for file, found in files if isinstance(file, ChunkFile)]
    digests = b"".join([found.digests for found in written])
    return finish_item(item.plan, sizes, digests, item.metadata)


def place(
    stage: Stage, there: str | None, item: Draft, own: Mapping[str, Any] | None
) -> Callable[[str], None]:
    """Complete a stage that holds the arrays of an item, under the lock of its parent.

    Args:
        stage: about to be put in place.
        there: the directory that it replaces.
        item: what was written.
        own: cordwood's part of the index; None leaves the item out of it.

    Returns:
        What brings in files that came to the old directory meanwhile.
    """
    index = None if there is None else _index_of(there, stage.asked)
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
    replaced = _replaced({*dropped}, {*paths}, index_too=own is not None or index is not None)
    if there is not None:
        carry(there, stage, replaced)
    if own is not None:
        index = put_item(index, prefix, entries(item.plan, paths), own)
    elif index is not None:
        index = drop_item(index, prefix)
    if index is not None:
        stage.write(INDEX_NAME, [encode_index(index)])
    return lambda old: carry(old, stage, replaced, late=True)


def _replaced(
    dropped: set[str], ours: set[str], *, index_too: bool
) -> Callable[[str, set[str]], set[str]]:
    """Which names of an old directory the new one replaces, or has no use for."""

    def names_of(path: str, names: set[str]) -> set[str]:
        gone = {INDEX_NAME} if index_too and not path else set()
        # Where an array is, and where one was that no index lists any more.
        if (path or ".") in dropped or (path in ours and METADATA_NAME in names):
            gone |= {name for name in names if name == METADATA_NAME or is_chunk_name(name)}
        return gone

    return names_of


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError for a directory that a save must not take over."""
    there = os.fspath(path)
    _index_of(there, there)


def _index_of(there: str, asked: str) -> IndexFile | None:
    """The index of a directory, if it has one."""
    try:
        directory = LocalDirectory(there)
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
                return read_index(directory)
            except CordwoodError as e:
                raise NotACheckpointError(
                    errno.EEXIST,
                    f"the checkpoint there cannot be read, so that what it holds could not be kept "
                    f"({e}); remove it, or save to another path",
                    asked,
                ) from e
        if count_files(there, at_most=MAX_FOREIGN_FILES) > MAX_FOREIGN_FILES:
            raise NotACheckpointError(
                errno.EEXIST,
                f"it is no checkpoint and holds more than {MAX_FOREIGN_FILES} files; save to a "
                "directory of its own",
                asked,
            )
        return None
