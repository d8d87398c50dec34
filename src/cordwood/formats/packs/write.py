"""Save trees into a directory of packs: their plan, the files of each process, and the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.encoding.leaf_table import BYTE_KINDS
from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import CordwoodError, NotACheckpointError, StorageError, UnsupportedLeafError
from cordwood.formats.format_protocol import Linking, SaveOptions, SavePlan
from cordwood.formats.packs.cordwood_json import (
    HUGGING_FACE_NAME,
    RULES,
    Grid,
    Tensor,
    decode_index,
    encode_index,
    is_pack_name,
    names_in,
    tensor_of,
)
from cordwood.formats.packs.hub_index import hugging_face_index
from cordwood.formats.packs.index_item import (
    PackedTree,
    WrittenPack,
    check_items,
    encode_item,
    parse_items,
    written_pack,
)
from cordwood.formats.packs.link_unchanged import NOTHING, Links, link_packs
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.packs.share_unchanged import (
    CellDigests,
    cell_digests_file,
    digests_of_cells,
    share_packs,
)
from cordwood.formats.safetensors.plan_file import check_metadata, plan_file
from cordwood.index import LEAF, Box, LeafSpec, Node
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import naming
from cordwood.keypath import KeyPath
from cordwood.message_text import first_names
from cordwood.plan.cells import FileSizes, ShardedLeaf, assign_cells, cell_bytes_of_leaves
from cordwood.plan.file_plan import FilePlan, LeafPart, leaves_of
from cordwood.plan.links import select_cells
from cordwood.plan.packs import Pack, packs_of_process, packs_of_ranges
from cordwood.processes.begin_together import begin_together
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprints import tree_fingerprints
from cordwood.sharding.boxes import shape_of, single_process_grid
from cordwood.storage.atomic_file import storage_error
from cordwood.storage.locations import Location
from cordwood.storage.paths import new_save_id, pooled_name
from cordwood.storage.storage_protocol import IndexChange, NewDataFile, Storage, StorageTransaction
from cordwood.tree.flatten import DescribedTree, describe_tree

if TYPE_CHECKING:
    from cordwood.formats.table import Format

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
        save_id: for tests; None: a new one is drawn.
    """

    store: Storage
    trees: Sequence[PackedTree]
    linking: Linking | None
    is_whole: bool
    page_cache: bool
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
    prefix, metadata, _, max_shard_bytes, linking, items, _, page_cache = options
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
            tree_to_save = pack_tree(
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
        packed.append(tree_to_save)
        leaves += described.leaves
        sizes += cell_bytes_of_leaves(tree_to_save.shares, rendezvous.index, len(described.leaves))

    save = PacksSave(store, packed, linking, items is not None, page_cache, save_id)
    return SavePlan(leaves, save, sizes)


def write(save: PacksSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the files of this process and commit the save, as one of the processes that save.

    Process 0 commits once all others have reported the files that they have written.
    """
    store, packed, linking = save.store, save.trees, save.linking
    transaction = store.transaction(
        others_commit=rendezvous.index > 0,
        timeout_seconds=rendezvous.timeout_seconds,
        page_cache=save.page_cache,
    )
    with rendezvous, transaction as files:
        common_id, base = save.save_id or new_save_id(), "" if linking is None else linking.base
        if rendezvous.count > 1:
            described = [each.described for each in packed]
            common_id, base = begin_together(
                rendezvous,
                files,
                path=store.name,
                save_id=common_id,
                base=base,
                fingerprints=lambda: tree_fingerprints(described, leaves, rendezvous.index),
                specs=_specs(packed),
            )
        process = rendezvous.index
        in_pool = linking is not None and store.has_pool
        digests = [digests_of_cells(each, leaves, process) for each in packed if in_pool]
        links = [NOTHING] * len(packed)
        if base and in_pool:
            links = [
                share_packs(store, base, each, known, process=process, leaves=leaves)
                for each, known in zip(packed, digests, strict=True)
            ]
        elif base:
            links = [
                link_packs(files, store, base, each, process=process, leaves=leaves)
                for each in packed
            ]
        if linking is not None:
            linking.linked_bytes += sum([each.size_bytes for each in links])
        written = _write_packs(
            files, packed, links, leaves, digests, process=process, save_id=common_id
        )
        rendezvous.exchange(written, partial(_commit, files, save, common_id))


def _commit(
    files: StorageTransaction,
    save: PacksSave,
    save_id: str,
    reports: list[list[list[WrittenPack]]],
) -> None:
    """Commit the files of all processes, given what each process has written by tree."""
    by_tree = list(zip(save.trees, zip(*reports, strict=True), strict=True))
    files.commit(
        lambda old: _change(by_tree, old, save_id, name=save.store.name, alone=save.is_whole)
    )


def pack_tree(
    tree: DescribedTree,
    *,
    process_count: int,
    sizes: FileSizes,
    prefix: str = "",
    metadata: Mapping[str, str] = MappingProxyType({}),
    first_leaf: int = 0,
) -> PackedTree:
    """Assign the leaves of a tree to files and processes.

    Args:
        tree: the tree. Of a PRNG key array, shape and dtype are those of its key data; of a leaf
            that is no array, the shards may be anything.
        process_count: how many processes take part.
        sizes: how large the files are to be.
        prefix: the name of the tree in the directory.
        metadata: the user's strings; `format` stands in each file too, where some readers want it.
        first_leaf: the position of its first leaf among the leaves of the save.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored.
    """
    tensor_of_type: dict[tuple[Any, ...], Tensor | None] = {}
    tensors = tuple([_known_tensor(spec, tensor_of_type) for spec in tree.specs])
    stored = []
    for leaf, (spec, tensor) in enumerate(zip(tree.specs, tensors, strict=True)):
        if tensor is not None:
            is_array = spec.kind not in BYTE_KINDS
            shards = tree.shards[leaf] if is_array else single_process_grid(tensor.shape)
            stored.append(ShardedLeaf(leaf, tensor.itemsize, shards))
    shares = assign_cells(stored, process_count=process_count, sizes=sizes)
    grids: list[Grid | None] = [None] * len(tree.specs)
    for group in shares.groups:
        grid = Grid.of(group.shape, group.cuts)
        for leaf in group.leaves:
            grids[leaf] = grid
    # Leaves are taken when they are written; until then nothing here holds them.
    described = tree._replace(leaves=())
    return PackedTree(described, tensors, tuple(grids), shares, prefix, metadata, first_leaf)


def _known_tensor(
    spec: LeafSpec, tensor_of_type: dict[tuple[Any, ...], Tensor | None]
) -> Tensor | None:
    """Return `tensor_of(spec)`, computed once for leaves of one kind, shape and dtype."""
    if spec[6] is not None:  # a value
        return tensor_of(spec)
    alike = spec[1:4]  # kind, shape, dtype
    if alike not in tensor_of_type:
        tensor_of_type[alike] = tensor_of(spec)
    return tensor_of_type[alike]


def pack_name(save_id: str, process: int, number: int, *, in_pool: bool = False) -> str:
    """Return the name of a data file, which no other save uses."""
    name = f"data-{save_id}-{process}-{number}.safetensors"
    return pooled_name(save_id, name) if in_pool else name


def own_packs(
    tree: PackedTree, packs: Sequence[Pack], process: int, *, save_id: str, in_pool: bool = False
) -> list[NewDataFile]:
    """Return the files that a process writes.

    Args:
        tree: the tree.
        packs: their contents, from `cordwood.plan.packs`.
        process: the number of the process.
        save_id: 16 hexadecimal digits, of this save alone.
        in_pool: True to write them to the pool of the run.
    """
    stored = [leaf for leaf, tensor in enumerate(tree.tensors) if tensor is not None]
    paths = [tree.described.specs[leaf].key_path for leaf in stored]
    names = dict(zip(stored, tensor_names(paths).names, strict=True))
    return [
        NewDataFile(pack_name(save_id, process, n, in_pool=in_pool), _plan_pack(tree, pack, names))
        for n, pack in enumerate(packs)
    ]


def _plan_pack(tree: PackedTree, pack: Pack, names: Mapping[int, str]) -> FilePlan:
    dtypes = {leaf: tensor.dtype for leaf, tensor in enumerate(tree.tensors) if tensor}
    stored: list[int] = []
    parts: list[LeafPart] = []
    labels: list[KeyPath] = []
    shapes: list[tuple[int, ...]] = []
    for leaves, cell in pack.parts:
        for leaf in leaves:
            grid = tree.grids[leaf]
            assert grid is not None
            stored.append(leaf)
            if grid.cell_count == 1:
                parts.append((tree.first_leaf + leaf, None))
                labels.append((names[leaf],))
                shapes.append(grid.shape)
                continue
            box = grid.box(cell)
            parts.append((tree.first_leaf + leaf, box))
            labels.append((f"{names[leaf]}{_suffix(box)}",))
            shapes.append(shape_of(box))
    keys = tuple(tensor_names(labels).names)  # a leaf may be called like a part of another
    specs = [
        LeafSpec((key,), "numpy", shape, dtypes[leaf])
        for key, leaf, shape in zip(keys, stored, shapes, strict=True)
    ]
    structure = (Node("dict", len(keys), keys), *[LEAF] * len(keys))
    metadata = {"format": tree.metadata.get("format", "pt")}
    return plan_file(structure, specs, metadata=metadata, parts=parts)


def _suffix(box: Box) -> str:
    ranges = zip(box.start, box.stop, strict=True)
    return f"[{','.join([f'{start}:{stop}' for start, stop in ranges])}]"


def _specs(trees: Sequence[PackedTree]) -> Sequence[LeafSpec]:
    """Return the leaves of all trees; of several trees, with the prefix in front of key paths."""
    if len(trees) == 1:
        return trees[0].described.specs
    return [
        spec._replace(key_path=(each.prefix, *spec.key_path)) if each.prefix else spec
        for each in trees
        for spec in each.described.specs
    ]


def _save_id_of(save_id: str, number: int) -> str:
    """Return the save id of one of several trees, so that the names of their files differ."""
    return f"{(int(save_id, 16) + number) % 2**64:016x}"


def _write_packs(
    save: StorageTransaction,
    trees: Sequence[PackedTree],
    links: Sequence[Links],
    leaves: Leaves,
    digests: Sequence[CellDigests],
    *,
    process: int,
    save_id: str,
) -> list[list[WrittenPack]]:
    """Write the files of this process; return them by tree, as process 0 needs them.

    Args:
        save: the transaction, which has begun.
        trees: the trees.
        links: of each tree, the files that are linked.
        leaves: the leaves of all trees.
        digests: of the cells of each tree, if the files go to the pool of a run; else empty.
        process: the number of this process.
        save_id: 16 hexadecimal digits, the same on every process, of this save alone.
    """
    packs = [_files_to_write(*each, process) for each in zip(trees, links, strict=True)]
    save_ids = [_save_id_of(save_id, number) for number in range(len(trees))]
    files = [
        own_packs(tree, contents, process, save_id=each, in_pool=bool(digests))
        for tree, contents, each in zip(trees, packs, save_ids, strict=True)
    ]
    every_file = list(chain.from_iterable(files))
    for number, known in enumerate(digests):
        if files[number]:
            every_file.append(
                cell_digests_file(
                    trees[number],
                    packs[number],
                    files[number],
                    known,
                    process=process,
                    save_id=save_ids[number],
                )
            )
    leaves.expect([leaf for file in every_file for leaf in leaves_of(file.plan.segments)])
    sealed = iter(save.write(every_file, leaves))
    written = []
    for linked, contents, new_files in zip(links, packs, files, strict=True):
        # Every process can compute the contents of files itself, unless it links some.
        is_known = not linked.packs and not linked.settled
        new_packs = [
            written_pack(
                file.name, file.plan.size_bytes, next(sealed), None if is_known else pack.parts
            )
            for file, pack in zip(new_files, contents, strict=True)
        ]
        written.append([*linked.packs, *new_packs])
    return written


def _files_to_write(tree: PackedTree, links: Links, process: int) -> Sequence[Pack]:
    """Return the files to write. Unchanged cells get files of their own, to be linked next time."""
    shares = tree.shares
    if not links.packs and not links.settled:
        return packs_of_process(shares, process)
    cells = select_cells(shares, shares.by_process[process], links.cells, keep=False)
    return [
        *packs_of_ranges(shares, select_cells(shares, cells, links.settled, keep=True)),
        *packs_of_ranges(shares, select_cells(shares, cells, links.settled, keep=False)),
    ]


def _change(
    saved: Sequence[tuple[PackedTree, Sequence[Sequence[WrittenPack]]]],
    old: bytes | None,
    save_id: str,
    *,
    name: str,
    alone: bool,
) -> IndexChange:
    """Return the index with this save in it, in place of the items of its prefixes.

    Args:
        saved: the trees, with the files of each process.
        old: the current index; None: there is none.
        save_id: the id of the save.
        name: the name of the directory, for errors.
        alone: drop the items of other prefixes.

    Raises as `parse_items` does: the old index cannot be kept in part.
    """
    with naming(f"{name}/{RULES.index_name}"):
        items = {} if old is None else decode_index(old)
        before = names_in(items)
    if alone:
        items = {}
    added = {}
    for number, (tree, written) in enumerate(saved):
        items[tree.prefix] = encode_item(tree, written, save_id=_save_id_of(save_id, number))
        added.update({name: size for packs in written for name, size, *_ in packs})
    items = dict(sorted(items.items()))
    data = encode_index(items)
    with naming(f"{name}/{RULES.index_name}"):
        beside = {HUGGING_FACE_NAME: hugging_face_index(check_items(items, index_bytes=len(data)))}
    kept = names_in(items)
    return IndexChange(data, added, beside, kept=kept, dropped=before - kept)


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError unless a save may write to a location.

    It may if there is nothing, a checkpoint, or only files that dead saves have left.
    """
    del format
    store = store_at(location, to_save=True)
    try:
        # In an object store, whose steps are mostly new, one request is enough for a new one.
        data = None if store.has_pool else store.read_index()
        names = store.names() if data is None else []
        if RULES.index_name in names:  # in a directory, another save has put it there meanwhile
            data = store.read_index()
        if data is not None:
            parse_items(data, name=store.name)
            return
        # In a store an index without bytes is none.
        foreign = [name for name in names if not _may_be_ours(name) and name != RULES.index_name]
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
        doing = f"reading {RULES.index_name}"
        raise storage_error(e, store.name, doing, what="checkpoint", in_place=False) from e
    if foreign:
        raise NotACheckpointError(
            f"{store.name} is a directory, but not a checkpoint: it has no {RULES.index_name}, and "
            f"contains {first_names(foreign, _MAX_SHOWN)}; remove it, or save to another path"
        )


def _may_be_ours(name: str) -> bool:
    """Return whether a dead save, or NFS on its behalf, may have left a file of that name."""
    return (
        is_pack_name(name)
        or (name.startswith(".") and ".cordwood-" in name)
        or name.startswith(".nfs")
    )
