"""Save trees into a directory of packs: the plan, and the writing by the processes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cordwood.errors import CordwoodError, NotACheckpointError, StorageError, UnsupportedLeafError
from cordwood.formats.format_protocol import Linking, SaveOptions, SavePlan
from cordwood.formats.packs.cell_digests import digests_of_cells
from cordwood.formats.packs.cordwood_json import INDEX_NAME, decode_index
from cordwood.formats.packs.encode_item import encode_item
from cordwood.formats.packs.file_names import is_pack_name
from cordwood.formats.packs.index_change import NewItems
from cordwood.formats.packs.packed_tree import PackedTree, pack_tree
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.shared_files import SharedFiles
from cordwood.formats.packs.unshared.sent_index import index_from_text, index_to_text
from cordwood.formats.packs.write_packs import share_unchanged, write_packs
from cordwood.formats.packs.written_packs import WrittenPack
from cordwood.formats.safetensors.plan_file import check_metadata
from cordwood.formats.step_record import ORBAX_KEY, UNSHARED_KEY
from cordwood.formats.table import Format
from cordwood.index import LeafSpec
from cordwood.io.leaves_to_write import Leaves
from cordwood.message_text import first_names
from cordwood.plan.cells import FileSizes, cell_bytes_of_leaves
from cordwood.processes.begin_shared_save import begin_shared_save
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprints import tree_fingerprints
from cordwood.storage.atomic_file import storage_error
from cordwood.storage.locations import Location
from cordwood.storage.paths import new_save_id
from cordwood.storage.removal.list_tree import Listing
from cordwood.storage.storage_protocol import Storage, StorageTransaction
from cordwood.tree.flatten import describe_tree

_MAX_SHOWN = 3
_MAX_PACKS = 99_999  # of a process, if the caller gives their size


def _check_prefix(prefix: str) -> None:
    if type(prefix) is not str:
        raise TypeError(f"prefix: expected a str, found {type(prefix).__name__}")
    try:
        prefix.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"prefix: {prefix!r:.80} holds a lone surrogate") from e


class PacksSave(NamedTuple):
    """A planned save of trees into one directory.

    Attributes:
        store: the directory.
        trees: the trees, whose leaves lie one after another in the leaves of the save.
        linking: what is needed to link files of an older checkpoint; None: all is written.
        is_whole: True if trees of other prefixes are dropped.
        page_cache: True if the files may stay in the page cache.
        is_unshared: True if each process writes to a directory of its own, and commits that.
        replaces: what is at the destination, of another tool; None: nothing is replaced.
        save_id: for tests; None: a new one is drawn.
    """

    store: Storage
    trees: Sequence[PackedTree]
    linking: Linking | None
    is_whole: bool
    page_cache: bool
    is_unshared: bool
    replaces: Listing | None
    save_id: str | None


def plan_save(
    format: Format,
    location: Location,
    tree: Any,
    options: SaveOptions,
    rendezvous: Rendezvous,
    *,
    save_id: str | None = None,
) -> SavePlan:
    """Plan the save of a tree by the processes of a rendezvous.

    Args:
        format: the row of packs.
        location: the directory.
        tree: the tree.
        options: the options.
        rendezvous: of the processes, not entered yet.
        save_id: for tests.
    """
    del format
    prefix, metadata, _, max_shard_bytes, linking, items, _, page_cache, replaces = options
    store = store_at(location, to_save=True)
    file_sizes = store.file_sizes
    if max_shard_bytes is not None:
        file_sizes = FileSizes(max_shard_bytes, _MAX_PACKS, file_sizes.part_bytes)
    trees: dict[str, Any] = {**(items or {}), prefix or "": tree}
    check_metadata(metadata)
    packed: list[PackedTree] = []
    leaves: list[Any] = []
    sizes: list[int] = []
    for name, each in sorted(trees.items()):
        is_item = name != (prefix or "")
        _check_prefix(name)
        try:
            described = describe_tree(
                each, process=rendezvous.index, process_count=rendezvous.count
            )
            packed_tree = pack_tree(
                described,
                process_count=rendezvous.count,
                sizes=file_sizes,
                prefix=name,
                metadata={} if is_item else dict(metadata),
                first_leaf=len(leaves),
            )
        except UnsupportedLeafError as e:
            if not is_item:
                raise
            raise UnsupportedLeafError(
                f"items: {name}: {e}. An item is a tree of arrays, or has get_state and "
                "set_state, or state_dict and load_state_dict"
            ) from e
        packed.append(packed_tree)
        leaves += described.leaves
        assignment, count = packed_tree.assignment, len(described.leaves)
        sizes += cell_bytes_of_leaves(assignment, rendezvous.index, count)

    if ORBAX_KEY in metadata:
        from cordwood.formats.packs.for_orbax.orbax_index import require_orbax

        if prefix:
            raise ValueError(f"{store.name}: orbax= is for a tree without a prefix")
        require_orbax(packed)
    is_unshared = UNSHARED_KEY in metadata
    is_whole = items is not None
    save = PacksSave(store, packed, linking, is_whole, page_cache, is_unshared, replaces, save_id)
    return SavePlan(leaves, save, sizes)


def write(save: PacksSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the files of this process and commit the save, as one of the processes that save.

    Process 0 commits once all others have reported the files that they have written. Where each
    process has a directory of its own, it then sends the index, and each commits that.
    """
    store, trees, linking = save.store, save.trees, save.linking
    process = rendezvous.index
    block = store.transaction(
        others_commit=process > 0 and not save.is_unshared,
        timeout_seconds=rendezvous.timeout_seconds,
        page_cache=save.page_cache,
        staged=any(ORBAX_KEY in tree.metadata for tree in trees),
        replaces=save.replaces,
    )
    with rendezvous, block as transaction:
        save_id, base = save.save_id or new_save_id(), "" if linking is None else linking.base
        if rendezvous.count > 1:
            described = [each.described for each in trees]
            save_id, base = begin_shared_save(
                rendezvous,
                transaction,
                path=store.name,
                save_id=save_id,
                base=base,
                fingerprints=lambda: tree_fingerprints(described, leaves, process),
                specs=_specs(trees),
                is_one_directory=not save.is_unshared,
            )
        in_pool = linking is not None and store.has_pool
        digests = [digests_of_cells(each, leaves, process) for each in trees if in_pool]
        shared = [SharedFiles()] * len(trees)
        if base:
            shared = [
                share_unchanged(
                    transaction,
                    store,
                    base,
                    tree,
                    digests[number] if in_pool else None,
                    leaves,
                    process,
                    is_unshared=save.is_unshared,
                )
                for number, tree in enumerate(trees)
            ]
        if linking is not None:
            linking.linked_bytes += sum([each.size_bytes for each in shared])
        commit = _Commit(transaction, save, _save_ids(save_id, len(trees)))
        written = write_packs(
            transaction, trees, shared, digests, leaves, process=process, save_ids=commit.save_ids
        )
        if save.is_unshared:
            index = index_from_text(rendezvous.exchange(written, commit.index_as_text))
            transaction.commit(_change_to(index, store.name, written).change)
        else:
            rendezvous.exchange(written, commit.commit)


class _Commit(NamedTuple):
    """The commit of a save, by process 0."""

    transaction: StorageTransaction
    save: PacksSave
    save_ids: Sequence[str]  # of each tree

    def commit(self, reports: Sequence[Sequence[Sequence[WrittenPack]]]) -> None:
        """Commit the files of all processes, given what each process has written by tree."""
        self.transaction.commit(self._items(reports).change)

    def index_as_text(self, reports: Sequence[Sequence[Sequence[WrittenPack]]]) -> str:
        """Return the index for the files of all processes, as it is sent to them."""
        return index_to_text(self._items(reports).change(None).new_index)

    def _items(self, reports: Sequence[Sequence[Sequence[WrittenPack]]]) -> NewItems:
        items = {}
        file_sizes: dict[str, int] = {}
        by_tree = zip(*reports, strict=True)
        for tree, save_id, written in zip(self.save.trees, self.save_ids, by_tree, strict=True):
            items[tree.prefix] = encode_item(tree, written, save_id=save_id)
            file_sizes.update({name: size for packs in written for name, size, *_ in packs})
        name, is_whole = self.save.store.name, self.save.is_whole
        return NewItems(name, items, file_sizes, is_whole)


def _change_to(index: bytes, name: str, written: Sequence[Sequence[Sequence[Any]]]) -> NewItems:
    """Return the items of an index of process 0, for a directory with the files of one process.

    Args:
        index: the index.
        name: the name of the directory.
        written: the files that this process has written, by tree.
    """
    sizes = {pack[0]: pack[1] for packs in written for pack in packs}
    return NewItems(name, decode_index(index), sizes, is_whole=True)


def _save_ids(save_id: str, count: int) -> list[str]:
    """Return a save id for each of several trees, so that the names of their files differ."""
    return [f"{(int(save_id, 16) + number) % 2**64:016x}" for number in range(count)]


def _specs(trees: Sequence[PackedTree]) -> Sequence[LeafSpec]:
    """Return the leaves of all trees; of several trees, with the prefix in front of key paths."""
    if len(trees) == 1:
        return trees[0].described.specs
    return [
        spec._replace(key_path=(each.prefix, *spec.key_path)) if each.prefix else spec
        for each in trees
        for spec in each.described.specs
    ]


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError unless a save may write to a location.

    It may if there is nothing, a checkpoint, or only files that killed saves have left.
    """
    del format
    store = store_at(location, to_save=True)
    try:
        # In an object store, whose steps are mostly new, one request is enough for a new one.
        data = None if store.has_pool else store.read_index()
        names = store.names() if data is None else []
        if INDEX_NAME in names:  # in a directory, another save has put it there meanwhile
            data = store.read_index()
        if data is not None:
            parse_items(data, name=store.name)
            return
        # In a store an index without bytes is none.
        foreign = [name for name in names if not _may_be_of_a_save(name) and name != INDEX_NAME]
    except NotADirectoryError as e:
        raise NotACheckpointError(
            f"{store.name} is a file; expected a directory, or nothing there yet"
        ) from e
    except StorageError:
        raise  # the disk's fault, not the checkpoint's
    except CordwoodError as e:
        raise NotACheckpointError(
            f"{store.name} is not a checkpoint that can be saved over ({e}); remove it, or save "
            "to another path"
        ) from e
    except OSError as e:
        if e.errno is None or not store.has_links:  # of an object store
            raise
        doing = f"reading {INDEX_NAME}"
        raise storage_error(e, store.name, doing, what="checkpoint", in_place=False) from e
    if foreign:
        raise NotACheckpointError(
            f"{store.name} is a directory, but not a checkpoint: it has no {INDEX_NAME}, and "
            f"contains {first_names(foreign, _MAX_SHOWN)}; remove it, or save to another path"
        )


def _may_be_of_a_save(name: str) -> bool:
    """Return whether a killed save, or NFS on its behalf, may have left a file of that name."""
    return (
        is_pack_name(name)
        or (name.startswith(".") and ".cordwood-" in name)
        or name.startswith(".nfs")
    )
