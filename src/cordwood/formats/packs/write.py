"""Save trees into a directory of packs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.errors import CordwoodError, NotACheckpointError, StorageError, UnsupportedLeafError
from cordwood.formats.packs.cordwood_json import (
    HUGGING_FACE_NAME,
    RULES,
    decode_index,
    encode_index,
    is_pack_name,
    names_in,
    naming_index,
)
from cordwood.formats.packs.index_item import check_items, hugging_face_index, parse_items
from cordwood.formats.packs.link_unchanged import NOTHING, Links, link_packs
from cordwood.formats.packs.open import store_at
from cordwood.formats.packs.plan_save import (
    Layout,
    WrittenPack,
    encode_item,
    lay_out,
    own_packs,
    written_pack,
)
from cordwood.formats.safetensors.plan_save import check_metadata
from cordwood.formats.save_plan import (
    SaveOptions,
    SavePlan,
    Snapshot,
    snapshot_fingerprints,
    take_apart,
)
from cordwood.index import LeafSpec
from cordwood.io.leaves_to_write import Leaves
from cordwood.message_text import first_names
from cordwood.plan.assign_to_processes import FileSizes, cell_bytes_of_leaves
from cordwood.plan.choose_hard_links import exclude_cells, include_cells
from cordwood.plan.file_plan import leaves_of
from cordwood.plan.group_into_files import Pack, packs_of_process, packs_of_ranges
from cordwood.processes.collective_save import joined_fingerprints, save_together
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.atomic_file import storage_error
from cordwood.storage.storage_protocol import IndexChange, NewDataFile, Transaction, new_save_id

_MAX_SHOWN = 3
_MAX_PACKS = 99_999  # of a process, if the caller gives their size


class Plan(NamedTuple):
    """A save to a directory, before a byte of it is written."""

    layout: Layout  # equal on every process
    snapshot: Snapshot  # of the caller's leaves
    first_leaf: int  # the position of its first leaf among those of the save
    process: int  # this one's number
    prefix: str
    metadata: Mapping[str, str]


def plan(
    tree: Any,
    *,
    prefix: str | None,
    metadata: Mapping[str, str],
    process: int,
    process_count: int,
    sizes: FileSizes,
    first_leaf: int,
) -> Plan:
    """Plan the files of one tree.

    Args:
        tree: the tree.
        prefix: its name; None: none.
        metadata: the user's strings.
        process: the number of this process.
        process_count: the number of processes that save.
        sizes: the sizes of files that suit the storage.
        first_leaf: the position of its first leaf among those of the save.

    Raises as `cordwood.save` does, before it writes.
    """
    check_metadata(metadata)
    _check_prefix(prefix)
    snapshot = take_apart(tree, process=process, process_count=process_count)
    layout = lay_out(
        snapshot.structure,
        snapshot.specs,
        snapshot.shards,
        process_count=process_count,
        sizes=sizes,
    )
    return Plan(layout, snapshot, first_leaf, process, prefix or "", dict(metadata))


def _check_prefix(prefix: str | None) -> None:
    if prefix is None:
        return
    if type(prefix) is not str:
        raise TypeError(f"prefix: expected a str, found {type(prefix).__name__}")
    try:
        prefix.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"prefix: {prefix!r:.80} holds a lone surrogate") from e


def plan_save(
    path: str | os.PathLike[str],
    tree: Any,
    options: SaveOptions,
    rendezvous: Rendezvous,
    *,
    save_id: str | None = None,
) -> SavePlan:
    """Plan the save of a tree by the processes of a rendezvous.

    Args:
        path: the directory.
        tree: the tree.
        options: the options.
        rendezvous: of the processes, not entered yet.
        save_id: for tests.
    """
    prefix, metadata, _, max_shard_bytes, linking, items = options
    store = store_at(path)
    file_sizes = store.file_sizes
    if max_shard_bytes is not None:
        file_sizes = file_sizes._replace(pack_bytes=max_shard_bytes, max_packs=_MAX_PACKS)
    trees: dict[str, Any] = {**(items or {}), prefix or "": tree}
    plans = []
    leaves: list[Any] = []
    sizes: list[int] = []
    for name, each in sorted(trees.items()):
        is_item = name != (prefix or "")
        try:
            planned = plan(
                each,
                prefix=name,
                metadata={} if is_item else metadata,
                process=rendezvous.index,
                process_count=rendezvous.count,
                sizes=file_sizes,
                first_leaf=len(leaves),
            )
        except UnsupportedLeafError as e:
            if not is_item:
                raise
            raise UnsupportedLeafError(
                f"items: {name}: {e}. An item is a tree of arrays, or has get_state and "
                "set_state, or state_dict and load_state_dict"
            ) from e
        leaves += planned.snapshot.leaves
        shares, count = planned.layout.shares, len(planned.snapshot.leaves)
        sizes += cell_bytes_of_leaves(shares, rendezvous.index, count)
        # Leaves are taken when they are written; until then nothing here holds them.
        plans.append(planned._replace(snapshot=planned.snapshot._replace(leaves=())))

    def write(leaves: Leaves) -> None:
        def fingerprints() -> Sequence[bytes]:
            keep = rendezvous.index == 0
            return joined_fingerprints(
                [
                    snapshot_fingerprints(
                        each.snapshot, leaves, first_leaf=each.first_leaf, keep=keep
                    )
                    for each in plans
                ]
            )

        def write_own(save_id: str, base: str) -> list[list[WrittenPack]]:
            todo = []
            for planned in plans:
                links = NOTHING
                if linking is not None and base:
                    links = link_packs(
                        save,
                        store.name,
                        base,
                        planned.layout,
                        prefix=planned.prefix,
                        process=planned.process,
                        leaves=leaves,
                        first_leaf=planned.first_leaf,
                    )
                    linking.linked_bytes += links.size_bytes
                todo.append((planned, links))
            return _write_packs(save, todo, leaves, save_id=save_id)

        def commit(save_id: str, reports: list[list[list[WrittenPack]]]) -> None:
            by_tree = [list(each) for each in zip(*reports, strict=True)]
            saved = list(zip(plans, by_tree, strict=True))
            alone = items is not None
            save.commit(lambda old: _change(saved, old, save_id, name=store.name, alone=alone))

        saving = store.transaction(
            others_commit=rendezvous.index > 0, timeout_seconds=rendezvous.timeout_seconds
        )
        with rendezvous, saving as save:
            save_together(
                rendezvous,
                save,
                path=store.name,
                save_id=save_id or new_save_id(),
                specs=_specs(plans),
                base="" if linking is None else linking.base,
                fingerprints=fingerprints,
                write=write_own,
                commit=commit,
            )

    return SavePlan(leaves, write, sizes)


def _specs(plans: Sequence[Plan]) -> Sequence[LeafSpec]:
    """Return the leaves of all trees; of several trees, with the prefix in front of key paths."""
    if len(plans) == 1:
        return plans[0].snapshot.specs
    return [
        spec._replace(key_path=(each.prefix, *spec.key_path)) if each.prefix else spec
        for each in plans
        for spec in each.snapshot.specs
    ]


def _save_id_of(save_id: str, number: int) -> str:
    """Return the save id of one of several trees, so that the names of their files differ."""
    return f"{(int(save_id, 16) + number) % 2**64:016x}"


def _write_packs(
    save: Transaction,
    todo: Sequence[tuple[Plan, Links]],
    leaves: Leaves,
    *,
    save_id: str,
) -> list[list[WrittenPack]]:
    """Write the files of this process; return them by tree, as process 0 needs them.

    Args:
        save: the transaction, which has begun.
        todo: for each tree its plan, and the files that are linked.
        leaves: the leaves of all trees.
        save_id: 16 hexadecimal digits, the same on every process, of this save alone.
    """
    packs_of: list[tuple[Sequence[Pack], list[NewDataFile]]] = []
    for number, (planned, links) in enumerate(todo):
        contents = _files_to_write(planned, links)
        packs = own_packs(
            planned.layout,
            contents,
            planned.process,
            save_id=_save_id_of(save_id, number),
            format_tag=planned.metadata.get("format", "pt"),
            first_leaf=planned.first_leaf,
        )
        packs_of.append((contents, packs))
    files = [pack for _, packs in packs_of for pack in packs]
    leaves.expect([leaf for file in files for leaf in leaves_of(file.plan.segments)])
    sealed = iter(save.write(files, leaves))
    packs_of_trees = []
    for (_, links), (contents, packs) in zip(todo, packs_of, strict=True):
        # Every process can compute the contents of files itself, unless it links some.
        is_known = not links.packs and not links.settled
        written = [
            written_pack(
                pack.name, pack.plan.size_bytes, next(sealed), None if is_known else content.parts
            )
            for pack, content in zip(packs, contents, strict=True)
        ]
        packs_of_trees.append([*links.packs, *written])
    return packs_of_trees


def _files_to_write(planned: Plan, links: Links) -> Sequence[Pack]:
    """Return the files to write. Unchanged cells get files of their own, to be linked next time."""
    shares = planned.layout.shares
    if not links.packs and not links.settled:
        return packs_of_process(shares, planned.process)
    cells = exclude_cells(shares, shares.by_process[planned.process], links.cells)
    return [
        *packs_of_ranges(shares, include_cells(shares, cells, links.settled)),
        *packs_of_ranges(shares, exclude_cells(shares, cells, links.settled)),
    ]


def _change(
    saved: Sequence[tuple[Plan, list[list[WrittenPack]]]],
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
    with naming_index(name):
        items = {} if old is None else decode_index(old)
        before = names_in(items)
    if alone:
        items = {}
    added = {}
    for number, (planned, written) in enumerate(saved):
        items[planned.prefix] = encode_item(
            planned.layout,
            written,
            save_id=_save_id_of(save_id, number),
            metadata=planned.metadata,
        )
        added.update({name: size for packs in written for name, size, *_ in packs})
    items = dict(sorted(items.items()))
    data = encode_index(items)
    with naming_index(name):
        beside = {HUGGING_FACE_NAME: hugging_face_index(check_items(items, index_bytes=len(data)))}
    kept = names_in(items)
    return IndexChange(data, added, beside, kept=kept, dropped=before - kept)


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise NotACheckpointError unless a save may write to `path`.

    It may if there is nothing, a checkpoint, or only files that dead saves have left.
    """
    store = store_at(path)
    try:
        data = store.read_index()
        names = store.names() if data is None else []
        if RULES.index_name in names:  # another save has put it there meanwhile
            data = store.read_index()
        if data is not None:
            parse_items(data, name=store.name)
            return
        foreign = [name for name in names if not _may_be_ours(name)]
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
