"""A save into a directory of packs whose packs workers write, each under its name once it is whole.

As with a copy, there is no checkpoint, or the old one, until the index names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from cordwood.encoding.digests import digest_of
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.packs.encode_item import encode_item
from cordwood.formats.packs.index_change import NewItems
from cordwood.formats.packs.new_packs import new_packs
from cordwood.formats.packs.write import PacksSave
from cordwood.formats.packs.written_packs import WrittenPack, written_pack
from cordwood.formats.step_record import ORBAX_KEY, UNSHARED_KEY
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import leaves_of
from cordwood.plan.packs import packs_of_process
from cordwood.storage.atomic_file import atomic_file
from cordwood.storage.locations import LocalPath
from cordwood.storage.storage_protocol import NewDataFile
from cordwood.storage.write_files import fill_file

FILES_LAST = True


class DividedPacks(NamedTuple):
    """A save whose packs workers write; `token` is in the names of its files."""

    save: PacksSave
    token: str

    def missing(self, reports: Sequence[Any]) -> Sequence[int]:
        return [n for n, report in enumerate(reports) if not self._is_there(WrittenPack(*report))]

    def _is_there(self, pack: WrittenPack) -> bool:
        with suppress(CorruptionError, FormatError, FileNotFoundError, NotADirectoryError):
            (file,) = self.save.store.open([Source(pack.name, pack.size_bytes)])
            with file:
                file.read(0, 0)  # compares its size
            return True
        return False

    def commit(self, reports: Sequence[Any]) -> None:
        (tree,), store = self.save.trees, self.save.store
        packs = [WrittenPack(*report) for report in reports]
        items = {tree.prefix: encode_item(tree, [packs], save_id=self.token)}
        sizes = {pack.name: pack.size_bytes for pack in packs}
        change = NewItems(store.name, items, sizes, self.save.is_whole).change
        with store.transaction(others_commit=False) as transaction:
            transaction.commit(change)


def unit_sizes(save: PacksSave) -> Sequence[int]:
    """Return the bytes of each pack."""
    (tree,) = save.trees
    return [pack.data_bytes for pack in packs_of_process(tree.assignment, 0)]


@contextmanager
def begin(save: PacksSave, save_id: str) -> Iterator[DividedPacks]:
    """Begin a save. Raises UnsupportedFormatError if one process must write all."""
    (tree,) = save.trees
    for key, reader in ((ORBAX_KEY, "Orbax"), (UNSHARED_KEY, "a manager of own roots")):
        if key in tree.metadata:
            raise UnsupportedFormatError(
                f"{save.store.name}: a checkpoint that {reader} reads too is written by one "
                "process: convert without executor=, or with metadata={}"
            )
    with save.store.transaction(others_commit=False):
        pass  # a store that cannot be saved to is refused before anything is read
    yield DividedPacks(save, save_id)


def write_units(
    save: PacksSave, token: str, leaves: Leaves, numbers: Sequence[int]
) -> Sequence[Any]:
    """Write packs, each of which has its name once it is whole; see `TaskWriter`."""
    (tree,) = save.trees
    packs = packs_of_process(tree.assignment, 0)
    files = new_packs(tree, packs, 0, save_id=token, numbers=numbers)
    leaves.expect([leaf for file in files for leaf in leaves_of(file.plan.segments)])
    headers = _write(save, files, leaves)
    return [
        [*written_pack(file.name, file.plan.size_bytes, header, None)]
        for file, header in zip(files, headers, strict=True)
    ]


def _write(save: PacksSave, files: Sequence[NewDataFile], leaves: Leaves) -> list[HeaderDigest]:
    """Write data files; each has its name once it is whole."""
    location = save.store.location
    if not isinstance(location, LocalPath):
        from cordwood.storage.object_stores.object_store_client import ObjectStore
        from cordwood.storage.object_stores.object_uploads import upload_objects

        return upload_objects(ObjectStore(location), files, leaves, are_new=False)
    headers = []
    for name, plan in files:
        with atomic_file(location.child(name)) as temporary:
            header = fill_file(temporary, plan, leaves, direct=True)
        headers.append(HeaderDigest(len(header), digest_of(header)))
    return headers
