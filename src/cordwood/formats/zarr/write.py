"""Save one item into a directory of zarr arrays; all other items are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.zarr.commit import place, refuse_foreign
from cordwood.formats.zarr.plan_tree import Draft, draft, finish
from cordwood.io.encode_chunk import chunk_encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.assign_to_files import chunk_bytes_of_leaves
from cordwood.plan.chunk_files import PlannedFile
from cordwood.processes.agreement import begin_together, tree_fingerprints
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.multiprocess_staging import MultiprocessStaging
from cordwood.storage.staging_directory import StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile


def plan_save(
    path: str | os.PathLike[str], tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the save of a tree by the processes of a rendezvous; raises as `draft` does."""
    item = draft(
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
    return SavePlan(leaves, lambda leaves: save_draft(path, item, leaves, rendezvous), sizes)


def save_draft(
    path: str | os.PathLike[str],
    item: Draft,
    leaves: Leaves,
    rendezvous: Rendezvous,
) -> None:
    """Save a tree as one item of a directory, durably and atomically.

    Items of other prefixes stay, and so do files that are no part of the checkpoint.

    Args:
        path: the directory; made where it is missing.
        item: the plan of the tree.
        leaves: the leaves of the tree.
        rendezvous: of the processes that save it; not entered yet.

    Raises as `cordwood.save`.
    """

    def commit(stage: StagingDirectory, written: list[WrittenFile]) -> None:
        members = finish(item, written)
        stage.commit(lambda existing: place(stage, existing, item, members))

    write_together(path, item, range(len(item.files)), leaves, rendezvous, commit)


def write_together(
    path: str | os.PathLike[str],
    item: Draft,
    chosen: Sequence[int],
    leaves: Leaves,
    rendezvous: Rendezvous,
    then: Callable[[StagingDirectory, list[WrittenFile]], None],
) -> StagingDirectory:
    """Write files of an item into a staging directory, each process its own files.

    Args:
        path: the directory; made where it is missing.
        item: the plan of the tree.
        chosen: the positions in `item.files` of the files to write.
        leaves: the leaves of the tree.
        rendezvous: of the processes that save it; not entered yet.
        then: called on process 0 with the staging directory and the written files, before any
            process continues. If it raises, every process raises, and the staging directory is
            removed.

    Returns:
        The staging directory. Process 0 must commit or abandon it, if `then` has not.
    """
    if rendezvous.index == 0:
        refuse_foreign(path)
    shared = MultiprocessStaging(path, rendezvous)
    encode = None if item.plan.compression is None else chunk_encoder(item.plan.compression)
    process_files: list[list[PlannedFile]] = [[] for _ in range(rendezvous.count)]
    for number in chosen:
        process_files[item.writers[number]].append(item.files[number])

    def commit(reports: list[tuple[int, str]]) -> None:
        written_files = list(map(iter, shared.collect_written(reports, process_files)))
        then(shared.stage, [next(written_files[item.writers[number]]) for number in chosen])

    with shared.transaction():
        if rendezvous.count > 1:
            begin_together(
                rendezvous,
                shared,
                path=os.fspath(path),
                fingerprints=lambda: tree_fingerprints([item.tree], leaves, rendezvous.index),
                specs=item.tree.specs,
            )
        report = shared.write_files(process_files[rendezvous.index], leaves, encode)
        rendezvous.exchange(report, commit)
    return shared.stage
