"""Save one item into a directory of the zarr layout, all others kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.api.jobs import Job
from cordwood.api.local_leaves import LocalLeaves
from cordwood.api.snapshot import Snapshot, take_apart
from cordwood.engine.apart import Check, run_apart
from cordwood.engine.carry import carry
from cordwood.engine.directory import LocalDirectory
from cordwood.engine.encode import encoder
from cordwood.engine.folders import count_files
from cordwood.engine.meeting import Meeting
from cordwood.engine.new_files import Written
from cordwood.engine.save_ids import new_save_id
from cordwood.engine.shared_stage import SharedStage
from cordwood.engine.stage import Stage
from cordwood.engine.together import save_together
from cordwood.errors import CordwoodError, NotACheckpointError
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
from cordwood.plan.chunks import ChunkFile, NewFile
from cordwood.plan.writers import bytes_of_leaves, joined, writers
from cordwood.tree.leaves import ARRAY_KINDS

__all__ = [
    "Draft",
    "draft",
    "finish",
    "place",
    "plan_job",
    "refuse_foreign",
    "save_draft",
    "write_together",
]

MAX_FOREIGN_FILES = 10_000  # that a directory without an index may hold
_OTHER_INDEX = "cordwood.json"  # of the layout of packs


class Draft(NamedTuple):
    """A tree, taken apart and planned. Nothing of it depends on the caller's containers."""

    plan: ItemPlan
    key_paths: Sequence[KeyPath]  # of its arrays
    snapshot: Snapshot  # of the caller's leaves
    prefix: str
    metadata: Mapping[str, str]
    covered: bool  # the index is to say what its files must be
    paths: list[str]  # of its arrays, if no other item is in the way
    files: Sequence[NewFile]
    writers: Sequence[int]  # of each file, the process that writes it


def plan_job(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    prefix: str | None,
    metadata: Mapping[str, str],
    meeting: Meeting,
    compression: str | None = None,
) -> Job:
    """Plan the save of a tree by the processes of a meeting; raises as `draft` does."""
    item = draft(
        tree,
        prefix=prefix or "",
        compression=compression,
        metadata=metadata,
        covered=True,
        meeting=meeting,
    )
    leaves = item.snapshot.leaves
    sizes = bytes_of_leaves(item.files, item.writers, meeting.index, len(leaves))
    # They are asked for when they are written: until then nothing here keeps them.
    item = item._replace(snapshot=item.snapshot._replace(leaves=()))
    return Job(leaves, lambda fetch: save_draft(path, item, fetch, meeting), sizes)


def draft(
    tree: Any,
    *,
    prefix: str,
    compression: str | None,
    metadata: Mapping[str, str],
    covered: bool,
    meeting: Meeting,
) -> Draft:
    """Take a tree apart, plan its arrays, and share their files out.

    Args:
        tree: what to save.
        prefix: the item's; '' for none.
        compression: "zstd", "blosc" or None.
        metadata: the user's strings.
        covered: False leaves the item out of the index.
        meeting: of the processes that save it.

    Raises UnsupportedLeafError, which names the leaf's key path; ValueError for the options.
    """
    if compression is not None and compression not in COMPRESSORS:
        known = ", ".join(map(repr, COMPRESSORS))
        raise ValueError(f"compression={compression!r}: expected None or one of {known}")
    snapshot = take_apart(tree, process=meeting.index, process_count=meeting.count)
    specs = snapshot.specs
    shards = [
        joined(each, dtypes.itemsize(spec.dtype)) if spec.kind in ARRAY_KINDS else each
        for spec, each in zip(specs, snapshot.shards, strict=True)
    ]
    cuts = {i: shards[i].cuts for i, spec in enumerate(specs) if spec.kind in ARRAY_KINDS}
    plan = plan_save(
        snapshot.structure, specs, cuts, compression=compression, metadata=metadata, marked=covered
    )
    key_paths = [specs[array.leaf].key_path for array in plan.arrays]
    paths = array_paths(key_paths, prefix)
    files = new_files(plan, paths)
    shared = writers(files, shards, process_count=meeting.count)
    return Draft(plan, key_paths, snapshot, prefix, metadata, covered, paths, files, shared)


def save_draft(
    path: str | os.PathLike[str],
    item: Draft,
    fetch: Callable[[int], Any],
    meeting: Meeting,
) -> None:
    """Save a tree as one item of a directory, durably and atomically.

    Items of other prefixes stay, and so do files that are no part of the checkpoint.

    Args:
        path: the directory; made where it is missing.
        item: what to save.
        fetch: gives a leaf by its position in the tree: called once for each array.
        meeting: of the processes that save it; not entered yet.

    Raises as `cordwood.save`.
    """

    def commit(stage: Stage, written: list[Written]) -> None:
        own = finish(item, written)
        stage.commit(lambda there: place(stage, there, item, own), meeting.check)

    write_together(path, item, range(len(item.files)), fetch, meeting, commit)


def write_together(
    path: str | os.PathLike[str],
    item: Draft,
    chosen: Sequence[int],
    fetch: Callable[[int], Any],
    meeting: Meeting,
    then: Callable[[Stage, list[Written]], None],
) -> Stage:
    """Write files of an item into a stage, each process of a meeting its own.

    Args:
        path, item, fetch, meeting: as `save_draft` has them.
        chosen: which of `item.files`.
        then: called on process 0 with the stage and what became of them, before any process goes
            on. An exception is every process's, and the stage goes.

    Returns:
        The stage, which process 0 is to put in place or abandon, if `then` has not.
    """
    if meeting.index == 0:
        refuse_foreign(path)
    shared = SharedStage(path, meeting)
    leaves = LocalLeaves(item.snapshot, meeting, fetch)
    encode = None if item.plan.compression is None else encoder(item.plan.compression)
    own: list[list[NewFile]] = [[] for _ in range(meeting.count)]
    for number in chosen:
        own[item.writers[number]].append(item.files[number])

    def commit(_: str, reports: list[bytes]) -> None:
        found = list(map(iter, shared.gather(reports, own)))
        then(shared.stage, [next(found[item.writers[number]]) for number in chosen])

    def run(check: Check) -> None:
        meeting.heed(check)
        with shared.saving():
            save_together(
                meeting,
                shared,
                where=os.fspath(path),
                save_id=new_save_id(),
                prints=leaves.prints,
                specs=item.snapshot.specs,
                write=lambda _: shared.fill(own[meeting.index], leaves.fetch, encode),
                commit=commit,
            )

    try:
        run_apart(run)
    except BaseException:
        if meeting.index == 0:
            shared.stage.abandon()  # an interrupt may have come after all had gone well
        raise
    return shared.stage


def finish(item: Draft, written: Sequence[Written]) -> dict[str, Any] | None:
    """cordwood's part of the index, if there is to be one."""
    if not item.covered:
        return None
    sizes = None
    if item.plan.compression is not None:
        files = zip(item.files, written, strict=True)
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
