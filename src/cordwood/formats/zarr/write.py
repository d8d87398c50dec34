"""Save one item into a directory of zarr arrays."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from cordwood.errors import NotACheckpointError
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.refuse_other_tools import refuse_other_tools
from cordwood.formats.table import Format
from cordwood.formats.zarr.commit_item import chunk_sizes, commit_item
from cordwood.formats.zarr.existing_index import existing_index
from cordwood.formats.zarr.fill_together import fill_together
from cordwood.formats.zarr.plan_item import ItemPlan, plan_item
from cordwood.formats.zarr.tensorstore_index import INDEX_NAME
from cordwood.io.chunk_codecs import chunk_encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.message_text import first_names
from cordwood.plan.chunk_files import chunk_bytes_of_leaves
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.directories import scan_directory
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile

_MAX_SHOWN = 3


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
    # Leaves are passed to `write`; until then nothing here holds them.
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
    commit = partial(commit_stage, stage, item)
    fill_together(stage, item, range(len(item.files)), leaves, rendezvous, commit)


def commit_stage(stage: StagingDirectory, item: ItemPlan, written: Sequence[WrittenFile]) -> None:
    """Put a staging directory in place, given what was written of each file of the plan."""
    commit_item(stage, item, chunk_sizes(item, written), written)


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise as `refuse_to_add`, and for any directory without an index that is not empty."""
    del format
    text = str(require_local(location))
    if existing_index(text, text) is not None:
        return
    refuse_other_tools(LocalPath(text), asked=text)
    names = sorted([entry.name for entry in scan_directory(text)])
    if names and existing_index(text, text) is None:  # no other save has put it there meanwhile
        raise NotACheckpointError(
            errno.EEXIST,
            f"it is a directory, but not a checkpoint: it has no {INDEX_NAME}, and contains "
            f"{first_names(names, _MAX_SHOWN)}; remove it, save to another path, or add "
            "to it with tree_serialize_leaves",
            text,
        )
