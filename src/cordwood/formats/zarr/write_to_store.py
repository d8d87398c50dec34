"""Save a tree as compressed zarr arrays in an object store, the index last.

Until the index is there the arrays are no checkpoint: each `.zarray` says that an index covers it.
An archive is never replaced, because zarr's names of chunks leave no room for a second one.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from typing import Any, NamedTuple

from cordwood.errors import NotACheckpointError, UnsupportedFormatError
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_files import array_files
from cordwood.formats.zarr.commit_item import chunk_sizes, item_members
from cordwood.formats.zarr.plan_item import ItemPlan, plan_item
from cordwood.formats.zarr.tensorstore_index import INDEX_NAME, Entry, encode_index, put_item
from cordwood.io.chunk_codecs import chunk_encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.message_text import first_names
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import Location, Url
from cordwood.storage.object_stores.conditional_writes import require_conditional_writes
from cordwood.storage.object_stores.list_objects import list_objects
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.upload_chunk_files import upload_chunk_files, write_new_object

_MAX_SHOWN = 3


class ArchiveSave(NamedTuple):
    """A planned save of a tree as the only one of a place in an object store."""

    url: Url
    item: ItemPlan
    compression: str


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the save of a tree. Raises as `plan_item` does.

    Raises UnsupportedFormatError without compression, and for several processes.
    """
    del format
    assert isinstance(location, Url)
    if options.compression is None:
        raise UnsupportedFormatError(
            f"{location}: in an object store, the format 'zarr' is compressed: pass "
            'compression="archive" (--archive), "zstd" or "blosc"; without format= the tree is '
            "saved uncompressed, and loads faster"
        )
    if rendezvous.count > 1:
        raise UnsupportedFormatError(
            f"{location}: zarr arrays in an object store are written by one process, and this "
            f"save has {rendezvous.count}: leave format= out, and convert what was saved "
            "(cordwood convert --archive)"
        )
    item = plan_item(
        tree,
        prefix="",
        compression=options.compression,
        metadata=options.metadata,
        covered=True,
        rendezvous=rendezvous,
    )
    leaves = item.tree.leaves
    item = item._replace(tree=item.tree._replace(leaves=()))
    return SavePlan(leaves, ArchiveSave(location, item, options.compression))


def write(save: ArchiveSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Upload the arrays, and then the index.

    What an interrupted call has left is kept where it has the bytes of this one.

    Raises FileExistsError for another object under one of the names, and NotACheckpointError for
    objects under other names.
    """
    item = save.item
    store = ObjectStore(save.url)
    with rendezvous:
        require_conditional_writes(store, INDEX_NAME)
        names = {each.name for each in list_objects(store)}
        _refuse_others(save.url, names - {file.path for file in item.files} - {INDEX_NAME})
        written = upload_chunk_files(store, item.files, leaves, chunk_encoder(save.compression))
        members = item_members(item, chunk_sizes(item, written), written)
        arrays = zip(item.arrays, item.paths, strict=True)
        entries = [Entry(path, array.shape, array.dtype) for array, path in arrays]
        index = put_item(None, "", entries, members)
        write_new_object(store, INDEX_NAME, encode_index(index))


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise FileExistsError for an archive, and NotACheckpointError for anything else there.

    What an interrupted call has left is accepted.
    """
    del format
    assert isinstance(location, Url)
    names = {each.name for each in list_objects(ObjectStore(location))}
    if INDEX_NAME in names:
        raise FileExistsError(
            errno.EEXIST,
            "there are zarr arrays with an index already; in an object store they are never "
            "replaced: write to another path, or remove them first (cordwood rm)",
            str(location),
        )
    _refuse_others(location, names - array_files([*names]))


def _refuse_others(url: Url, names: Collection[str]) -> None:
    if names:
        raise NotACheckpointError(
            errno.EEXIST,
            "there are other objects, which are not replaced: "
            f"{first_names(sorted(names), _MAX_SHOWN)}; write to another path",
            str(url),
        )
