"""Directories of packs: planned, written, opened and cleaned."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cordwood.api.jobs import Fetch, Job, Linking
from cordwood.api.link_packs import NOTHING, Links, link_packs
from cordwood.api.local_leaves import LocalLeaves
from cordwood.api.snapshot import LeafParts, Snapshot, take_apart
from cordwood.api.stores import store_at
from cordwood.engine.apart import Check, go_on
from cordwood.engine.meeting import Meeting
from cordwood.engine.save_ids import new_save_id
from cordwood.engine.stores import Change, NewFile, StoreSave
from cordwood.engine.together import save_together
from cordwood.errors import CordwoodError, NotACheckpointError, StorageError
from cordwood.formats.packs.hugging_face import HUGGING_FACE_NAME, hugging_face_index
from cordwood.formats.packs.index_file import decode_index, encode_index
from cordwood.formats.packs.layout import (
    Layout,
    PackPlan,
    WrittenPack,
    decode_report,
    encode_item,
    encode_report,
    lay_out,
    own_packs,
)
from cordwood.formats.packs.rules import RULES, is_pack_name, names_in
from cordwood.formats.packs.scan import parse_items
from cordwood.formats.safetensors.layout import check_metadata
from cordwood.plan.linking import only, without
from cordwood.plan.packs import Pack, packs_of_process, packs_of_shares
from cordwood.plan.shares import FileSizes, bytes_of_leaves

__all__ = [
    "Plan",
    "change",
    "plan",
    "plan_job",
    "refuse_foreign",
    "write_packs",
]

_MAX_SHOWN = 3


class Plan(NamedTuple):
    """A save to a directory, before a byte of it is written."""

    layout: Layout  # equal on every process
    snapshot: Snapshot  # of the caller's leaves
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
) -> Plan:
    """Decide what of a tree goes where.

    Args:
        tree: what to save.
        prefix: under which name; None: none.
        metadata: the user's strings.
        process: this one's number.
        process_count: how many take part.
        sizes: how large files are to be where they go.

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
    return Plan(layout, snapshot, process, prefix or "", dict(metadata))


def _check_prefix(prefix: str | None) -> None:
    if prefix is None:
        return
    if type(prefix) is not str:
        raise TypeError(f"prefix: expected a str, found {type(prefix).__name__}")
    try:
        prefix.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"prefix: {prefix!r:.80} holds a lone surrogate") from e


def plan_job(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    prefix: str | None,
    metadata: Mapping[str, str],
    meeting: Meeting,
    linking: Linking | None = None,
    save_id: str | None = None,
) -> Job:
    """Plan the save of a tree by the processes of a meeting; `save_id` is for tests."""
    store = store_at(path)
    planned = plan(
        tree,
        prefix=prefix,
        metadata=metadata,
        process=meeting.index,
        process_count=meeting.count,
        sizes=store.file_sizes,
    )
    leaves = planned.snapshot.leaves
    # They are asked for when they are written: until then nothing here keeps them.
    snapshot = planned.snapshot._replace(leaves=())
    planned = planned._replace(snapshot=snapshot)

    def write(fetch: Fetch) -> None:
        leaves = LocalLeaves(snapshot, meeting, fetch)

        def write_own(save_id: str, base: str) -> bytes:
            links = NOTHING
            if linking is not None and base:
                links = link_packs(
                    save,
                    store.name,
                    base,
                    planned.layout,
                    prefix=planned.prefix,
                    process=planned.process,
                    look=lambda leaf: leaves.look(leaf, linking.look),
                    take=leaves.fetch,
                    check=meeting.check,
                )
                linking.linked_bytes = links.size_bytes
            return encode_report(
                write_packs(
                    save, planned, links, leaves.fetch, save_id=save_id, check=meeting.check
                )
            )

        def commit(save_id: str, reports: list[bytes]) -> None:
            written = [decode_report(report) for report in reports]
            save.commit(lambda old: change(planned, written, old, save_id, name=store.name))

        with meeting, store.saving(others_commit=meeting.index > 0) as save:
            save_together(
                meeting,
                save,
                where=store.name,
                save_id=save_id or new_save_id(),
                specs=snapshot.specs,
                tell=str if linking is None else linking.base,
                prints=leaves.prints,
                write=write_own,
                commit=commit,
            )

    return Job(leaves, write, bytes_of_leaves(planned.layout.shares, meeting.index, len(leaves)))


def write_packs(
    save: StoreSave,
    planned: Plan,
    links: Links,
    fetch: Fetch,
    *,
    save_id: str,
    check: Check = go_on,
) -> list[WrittenPack]:
    """Write the files of this process; what process 0 has to know of them.

    Args:
        save: under way.
        planned: what to write.
        links: what of it need not be written.
        fetch: gives a leaf, the caller's or a held one; called once for each.
        save_id: 16 hexadecimal digits, the same on every process, of this save alone.
        check: called now and then; what it raises ends the save.
    """
    tag = planned.metadata.get("format", "pt")
    contents = _left(planned, links)
    layout, process = planned.layout, planned.process
    packs = own_packs(layout, contents, process, save_id=save_id, format_tag=tag)
    parts = LeafParts(fetch, [leaf for pack in packs for leaf, _ in pack.parts])
    sealed = save.write(_new_files(packs, parts), check)
    written = [
        WrittenPack(pack.name, pack.plan.size_bytes, seal, content.parts)
        for pack, seal, content in zip(packs, sealed, contents, strict=True)
    ]
    if not links.packs and not links.settled:
        return [pack._replace(parts=None) for pack in written]  # which all can tell for themselves
    return [*links.packs, *written]


def _left(planned: Plan, links: Links) -> Sequence[Pack]:
    """The files to write: what has not changed in files of its own, which can be linked next."""
    shares = planned.layout.shares
    if not links.packs and not links.settled:
        return packs_of_process(shares, planned.process)
    own = without(shares, shares.of_process[planned.process], links.cells)
    return [
        *packs_of_shares(shares, only(shares, own, links.settled)),
        *packs_of_shares(shares, without(shares, own, links.settled)),
    ]


def _new_files(packs: list[PackPlan], parts: LeafParts) -> Iterator[NewFile]:
    for pack in packs:
        yield NewFile(pack.name, pack.plan, partial(_part_of, pack, parts))


def _part_of(pack: PackPlan, parts: LeafParts, number: int) -> Any:
    return parts.part(*pack.parts[number])


def change(
    planned: Plan,
    written: list[list[WrittenPack]],
    old: bytes | None,
    save_id: str,
    *,
    name: str,
) -> Change:
    """The index with this save in it, in place of the item of its prefix.

    Args:
        planned: the save.
        written: the files of each process.
        old: the index as it is; None: there is none.
        save_id: of the save.
        name: the directory's, for errors.

    Raises as `parse_items` does: the old index cannot be kept in part.
    """
    try:
        items = {} if old is None else decode_index(old)
        before = names_in(items)
    except CordwoodError as e:
        raise type(e)(f"{name}/{RULES.index_name}: {e}") from e
    items[planned.prefix] = encode_item(
        planned.layout, written, save_id=save_id, metadata=planned.metadata
    )
    data = encode_index(dict(sorted(items.items())))
    parsed = parse_items(data, name=f"{name}/{RULES.index_name}")
    added = {pack.name: pack.size_bytes for own in written for pack in own}
    kept = names_in(items)
    beside = {HUGGING_FACE_NAME: hugging_face_index(parsed)}
    return Change(data, added, beside, kept=kept, dropped=before - kept)


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise unless `path` is a place for a save: nothing, a checkpoint, or what a dead one left.

    Raises NotACheckpointError.
    """
    store = store_at(path)
    try:
        data = store.read_index()
        names = store.names() if data is None else []
        if RULES.index_name in names:  # another save has put it there meanwhile
            data = store.read_index()
        if data is not None:
            parse_items(data, name=f"{store.name}/{RULES.index_name}")
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
    if foreign:
        more = f" and {len(foreign) - _MAX_SHOWN} more" if len(foreign) > _MAX_SHOWN else ""
        raise NotACheckpointError(
            f"{store.name} is a directory that is no checkpoint: it has no {RULES.index_name}, "
            f"but {', '.join(foreign[:_MAX_SHOWN])}{more}; remove it, or save to another path"
        )


def _may_be_ours(name: str) -> bool:
    """Whether a save that died may have left a file of that name, or NFS keeps it for one."""
    return (
        is_pack_name(name)
        or (name.startswith(".") and ".cordwood-" in name)
        or name.startswith(".nfs")
    )
