"""Save a tree as compressed zarr arrays in an object store, the index last.

Until the index is there the arrays are no checkpoint: each `.zarray` says that an index covers it.
An archive is never replaced, because zarr's names of chunks leave no room for a second one.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
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
from cordwood.storage.write_chunk_files import WrittenFile, bytes_of_chunk

FILES_LAST = True

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
    with rendezvous, begin(save, "") as divided:
        reports = write_units(save, divided.token, leaves, range(len(save.item.files)))
        divided.commit(reports)


class DividedArchive(NamedTuple):
    """A save whose objects workers write."""

    save: ArchiveSave
    token: str

    def missing(self, reports: Sequence[Any]) -> Sequence[int]:
        """Return the numbers of the objects that have been removed since they were written."""
        sizes = {each.name: each.size_bytes for each in list_objects(ObjectStore(self.save.url))}
        files = zip(self.save.item.files, reports, strict=True)
        return [n for n, (file, (size, _)) in enumerate(files) if sizes.get(file.path) != size]

    def commit(self, reports: Sequence[Any]) -> None:
        """Write the index, given what was written of each object."""
        item = self.save.item
        written = [WrittenFile(size, bytes.fromhex(digests)) for size, digests in reports]
        members = item_members(item, chunk_sizes(item, written), written)
        arrays = zip(item.arrays, item.paths, strict=True)
        entries = [Entry(path, array.shape, array.dtype) for array, path in arrays]
        index = put_item(None, "", entries, members)
        write_new_object(ObjectStore(self.save.url), INDEX_NAME, encode_index(index))


def unit_sizes(save: ArchiveSave) -> Sequence[int]:
    """Return the bytes of each object, before compression."""
    return [bytes_of_chunk(file) for file in save.item.files]


@contextmanager
def begin(save: ArchiveSave, save_id: str) -> Iterator[DividedArchive]:
    """Begin a save. Raises NotACheckpointError for objects under other names than its own."""
    store = ObjectStore(save.url)
    require_conditional_writes(store, INDEX_NAME)
    names = {each.name for each in list_objects(store)}
    _refuse_others(save.url, names - {file.path for file in save.item.files} - {INDEX_NAME})
    yield DividedArchive(save, save_id)


def write_units(
    save: ArchiveSave, token: str, leaves: Leaves, numbers: Sequence[int]
) -> Sequence[Any]:
    """Write objects, each of which stays if it is there already; see `TaskWriter`."""
    del token
    files = [save.item.files[number] for number in numbers]
    encode = chunk_encoder(save.compression)
    written = upload_chunk_files(ObjectStore(save.url), files, leaves, encode)
    return [[file.size_bytes, file.digests.hex()] for file in written]


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
