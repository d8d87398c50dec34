"""Save one item into a directory of zarr arrays; all other items keep their paths.

The processes of a save fill one staging directory, each with its own files. Each other process
writes a report on its files, with their digests, to a file there, which is removed before the
commit: the digests of many chunks are too large for a rendezvous.

A failure is announced before the staging directory is removed. So a process that is still writing,
and finds no directory any more, knows why; it stops, and removes what it has created since. A
process that has reported no longer touches the directory: process 0 may be putting it in place.

One file, because the processes that write, the one that commits, and what a save refuses to take
over are read together.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    LimitError,
    NotACheckpointError,
    ProcessError,
    StorageError,
)
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.other_tools import refuse_other_tools
from cordwood.formats.zarr.array_metadata import METADATA_NAME
from cordwood.formats.zarr.array_paths import array_paths
from cordwood.formats.zarr.plan_save import ItemPlan, plan_item
from cordwood.formats.zarr.read_index import read_index_file
from cordwood.formats.zarr.tensorstore_index import (
    INDEX_NAME,
    Entry,
    IndexFile,
    drop_item,
    encode_index,
    encode_item,
    entries_of,
    prefixes_of,
    put_item,
)
from cordwood.io.chunk_codecs import chunk_encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.message_text import first_names
from cordwood.plan.chunk_files import chunk_bytes_of_leaves
from cordwood.plan.file_plan import ChunkFile, PlannedFile
from cordwood.processes.begin_together import begin_together
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprints import tree_fingerprints
from cordwood.storage.directories import count_files, scan_directory
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.staging_directory import DirectoryChange, StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile

if TYPE_CHECKING:
    from cordwood.formats.table import Format

MAX_FOREIGN_FILES = 10_000  # that a directory without an index may hold
_OTHER_INDEX = "cordwood.json"  # of packs
_MAX_SHOWN = 3
_CHUNK_NAME = re.compile(r"[0-9]+(\.[0-9]+)*")
_REPORT = "report.{}"  # never the path of an array: a dot in a name becomes a slash
_SIZE = struct.Struct("<Q")


class ZarrSave(NamedTuple):
    """A planned save of a tree as one item of a directory."""

    path: LocalPath
    item: ItemPlan
    page_cache: bool


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the save of a tree by the processes of a rendezvous; raises as `plan_item` does."""
    del format
    item = plan_item(
        tree,
        prefix=options.prefix or "",
        compression=options.compression,
        metadata=options.metadata,
        covered=True,
        rendezvous=rendezvous,
    )
    leaves = item.tree.leaves
    sizes = chunk_bytes_of_leaves(item.files, item.writers, rendezvous.index, len(leaves))
    # Leaves are taken when they are written; until then nothing here holds them.
    item = item._replace(tree=item.tree._replace(leaves=()))
    return SavePlan(leaves, ZarrSave(require_local(location), item, options.page_cache), sizes)


def write(save: ZarrSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write and commit the item. Raises as `save_item`."""
    save_item(save.path, save.item, leaves, rendezvous, page_cache=save.page_cache)


def save_item(
    path: str | os.PathLike[str],
    item: ItemPlan,
    leaves: Leaves,
    rendezvous: Rendezvous,
    *,
    page_cache: bool = False,
) -> None:
    """Save a tree as one item of a directory, durably and atomically.

    Items of other prefixes stay, and so do files that are no part of the checkpoint.

    Args:
        path: the directory; made where it is missing.
        item: the plan of the tree.
        leaves: the leaves of the tree.
        rendezvous: of the processes that save it; not entered yet.
        page_cache: True if the files may stay in the page cache.

    Raises as `cordwood.save`.
    """
    encode = None if item.compression is None else chunk_encoder(item.compression)
    stage = StagingDirectory(
        path,
        encode=encode,
        timeout_seconds=rendezvous.timeout_seconds,
        page_cache=page_cache,
    )

    def commit(written: list[WrittenFile]) -> None:
        files = zip(item.files, written, strict=True)
        sizes = [done.size_bytes for file, done in files if isinstance(file, ChunkFile)]
        commit_item(stage, item, None if item.compression is None else sizes, written)

    fill_together(stage, item, range(len(item.files)), leaves, rendezvous, commit)


def fill_together(
    stage: StagingDirectory,
    item: ItemPlan,
    chosen: Sequence[int],
    leaves: Leaves,
    rendezvous: Rendezvous,
    then: Callable[[list[WrittenFile]], None],
) -> None:
    """Write files of an item into a staging directory, each process its own files.

    Args:
        stage: a new one; its probe and its path are those of process 0 afterwards.
        item: the plan of the tree.
        chosen: the positions in `item.files` of the files to write.
        leaves: the leaves of the tree.
        rendezvous: of the processes that save it; not entered yet.
        then: called on process 0 with the written files, before any process continues. If it
            raises, every process raises, and the staging directory is removed. If it does not
            commit the staging directory, process 0 must do so or abandon it.
    """
    process = rendezvous.index
    if process == 0:
        refuse_to_add(stage.asked)
    files: list[list[PlannedFile]] = [[] for _ in range(rendezvous.count)]
    for number in chosen:
        files[item.writers[number]].append(item.files[number])
    reported = False
    own: list[WrittenFile] = []

    def collect(reports: list[tuple[int, str]]) -> None:
        written = [own]
        for other in range(1, rendezvous.count):
            stage.doing = "looking for what the other processes have written"
            rendezvous.poll()
            written.append(_take_report(stage, other, reports[other], files[other]))
        by_process = list(map(iter, written))
        then([next(by_process[item.writers[number]]) for number in chosen])

    try:
        with rendezvous, stage.explain_errors(stage.asked, what="directory"):
            if rendezvous.count > 1:
                begin_together(
                    rendezvous,
                    stage,
                    path=stage.asked,
                    fingerprints=lambda: tree_fingerprints([item.tree], leaves, process),
                    specs=item.tree.specs,
                )
            try:
                own.extend(stage.write(files[process], leaves))
                report = (0, "") if process == 0 else _write_report(stage, process, own)
                rendezvous.poll_now()
            except OSError:
                rendezvous.poll_now()  # another process failed, so the staging directory is gone
                raise
            reported = True
            rendezvous.exchange(report, collect)
    except BaseException as e:
        # Process 0 may have removed the staging directory before another one stopped. If no
        # failure has been announced yet, it will remove everything that exists now.
        if process == 0 or (
            not reported and (isinstance(e, ProcessError) or rendezvous.has_failed())
        ):
            stage.abandon()
        raise


def _write_report(
    stage: StagingDirectory, process: int, written: Sequence[WrittenFile]
) -> tuple[int, str]:
    """Write the report of a process; return its size and digest, for `_take_report`."""
    sizes = [_SIZE.pack(file.size_bytes) for file in written]
    report = b"".join([*sizes, *[file.digests for file in written]])
    stage.create_file(_REPORT.format(process), [report])
    stage.doing = "flushing its directories to the disk"
    stage.sync_directories()
    return len(report), digest_of(report).hex()


def _take_report(
    stage: StagingDirectory, process: int, report: tuple[int, str], files: Sequence[PlannedFile]
) -> list[WrittenFile]:
    """Read and remove the report of a process; return the sizes and digests of its files.

    Raises StorageError if a file is not as its process wrote it.
    """
    name = _REPORT.format(process)
    size_bytes, digest = report
    try:
        with LocalDirectory(stage.path) as directory:
            data = directory.read(name, limit_bytes=size_bytes)
    except (CorruptionError, LimitError) as e:
        raise _lost(stage, name, process) from e
    if digest_of(data).hex() != digest:
        raise _lost(stage, name, process)
    at = len(files) * _SIZE.size
    written = []
    for file, (size,) in zip(files, _SIZE.iter_unpack(data[:at]), strict=True):
        stop = at + block_count(size, BLOCK_BYTES) * DIGEST_BYTES
        written.append(WrittenFile(size, data[at:stop]))
        at = stop
        if stage.size_of(file.path) != size:
            raise _lost(stage, file.path, process)
    stage.remove(name)
    return written


def _lost(stage: StagingDirectory, name: str, process: int) -> StorageError:
    return StorageError(
        errno.EIO,
        f"{name} is not there as process {process} wrote it: something else changes the "
        "directory, or the file system is at fault; what was there before is untouched",
        stage.asked,
    )


def commit_item(
    stage: StagingDirectory,
    item: ItemPlan,
    sizes: Sequence[int] | None,
    written: Sequence[WrittenFile],
) -> None:
    """Put a staging directory in place that holds the arrays of an item.

    Args:
        stage: the staging directory.
        item: the item that was written.
        sizes: of its chunk files, in bytes; None where all are raw.
        written: all its files, one array after another.
    """
    members: dict[str, Any] | None = None
    if item.covered:
        digests = b"".join([file.digests for file in written])
        leaves = [array.leaf for array in item.arrays]
        members = encode_item(item.structure, leaves, sizes, digests, item.metadata)
    stage.commit(lambda existing: _change(existing, stage.asked, item, members))


def _change(
    existing: str | None, asked: str, item: ItemPlan, members: Mapping[str, Any] | None
) -> DirectoryChange:
    """Return the paths and the index of an item beside the items of the old directory.

    Args:
        existing: the old directory; None: there is none.
        asked: its path, for errors.
        item: the item that was written.
        members: cordwood's part of the index; None leaves the item out of it.
    """
    index = None if existing is None else _index_of(existing, asked)
    prefix = item.prefix
    others = [] if index is None else [name for name in prefixes_of(index) if name != prefix]
    taken = [entry.path for name in others for entry in entries_of(index, name)] if index else []
    dropped: list[str] = []
    if index is not None and prefix in prefixes_of(index):
        dropped = [entry.path for entry in entries_of(index, prefix)]
    paths = array_paths(item.key_paths, prefix, taken=taken)
    moves = [
        (staged, path) for staged, path in zip(item.paths, paths, strict=True) if staged != path
    ]
    replaced = _replaced({*dropped}, {*paths}, index_too=members is not None or index is not None)
    if members is not None:
        arrays = zip(item.arrays, paths, strict=True)
        entries = [Entry(path, array.shape, array.dtype) for array, path in arrays]
        index = put_item(index, prefix, entries, members)
    elif index is not None:
        index = drop_item(index, prefix)
    index_file = None if index is None else (INDEX_NAME, encode_index(index))
    return DirectoryChange(replaced, moves, index_file)


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


def refuse_to_add(path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError for a directory that a save must not take over.

    Files in a directory without an index are no reason: eFormer's calls add to such a directory.
    """
    text = os.fspath(path)
    if _index_of(text, text) is None:
        refuse_other_tools(LocalPath(text), asked=text)


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise as `refuse_to_add`, and for any directory without an index that is not empty."""
    del format
    text = str(require_local(location))
    if _index_of(text, text) is not None:
        return
    refuse_other_tools(LocalPath(text), asked=text)
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
