"""Every byte of a directory of packs against its digest, and every file against the index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from cordwood.api.verify import range_text
from cordwood.errors import CordwoodError, CorruptionError, counted
from cordwood.formats.opened import Checked
from cordwood.formats.packs.file_names import RULES
from cordwood.formats.packs.hub_index import HUGGING_FACE_NAME, hugging_face_index
from cordwood.formats.packs.index_item import PACK_NAME, Item
from cordwood.formats.packs.locate import store_at
from cordwood.formats.packs.open import read_index_bytes
from cordwood.formats.packs.read_index import cells_of_file, parse_items
from cordwood.formats.safetensors.stored_digests import sealed_digests
from cordwood.io.check_digests import check_file
from cordwood.io.gc_pause import gc_paused
from cordwood.keypath import format_path
from cordwood.manager.foreign_steps import step_in_name
from cordwood.manager.step_record import KEY, decode_record, wrong_step
from cordwood.storage.open_files import DISK_ERRORS
from cordwood.storage.storage_protocol import Storage
from cordwood.tree.structure import leaf_paths

_ATTEMPTS = 20  # each lost to a save that came in between
_MAX_LINES = 50
_MAX_NAMES = 5


def verify_all(path: str | os.PathLike[str]) -> Checked:
    """Check all items of a directory.

    Raises:
        IncompleteCheckpointError: there is no index.
        CorruptionError: the index or files are damaged, missing, of another size or no regular
            files, or there are more of a save than it wrote; names each leaf, file and range.
        FormatError: the index is not what docs/format.md says.
    """
    store = store_at(path)
    data = read_index_bytes(store)
    for _ in range(_ATTEMPTS):
        try:
            return _check(store, data)
        except CordwoodError:
            again = read_index_bytes(store)
            if again == data:
                raise
            data = again
    return _check(store, data)


def _of_another_step(store: Storage, items: Mapping[str, Item]) -> list[str]:
    """Return a line if the directory is named as one step, and a manager's record names another."""
    name = store.name.rstrip("/").rpartition("/")[2]
    text = items[""].metadata.get(KEY) if "" in items else None
    step = step_in_name(name)
    if text is None or step is None:
        return []
    try:
        record = decode_record(text, KEY)
    except CordwoodError:  # not a manager's, or a newer one's
        return []
    return [] if record.step == step else [f"  {wrong_step(record, name)}"]


def _check(store: Storage, data: bytes) -> Checked:
    items = parse_items(data, name=f"{store.name}/{RULES.index_name}")
    lines = [line for item in items.values() for line in _damage(store, item)]
    lines += _surplus(store, items)
    lines += _of_another_step(store, items)
    if not _fits_other_readers(store, items) and store.read_index() == data:
        lines.append(
            f"  {HUGGING_FACE_NAME} is not the one of this index: save again, or remove it"
        )
    if lines:
        shown = lines[:_MAX_LINES]
        if len(lines) > _MAX_LINES:
            shown.append(f"  ... and {len(lines) - _MAX_LINES} more")
        what = counted(len(lines), "damaged range or file", "damaged ranges or files")
        raise CorruptionError(f"{store.name}: {what}:\n" + "\n".join(shown))
    sources = {pack.source for item in items.values() for pack in item.packs}
    size = len(data) + sum(source.size_bytes for source in sources)
    return Checked(sum(len(item.leaf_types) for item in items.values()), size)


def _fits_other_readers(store: Storage, items: Mapping[str, Item]) -> bool:
    """Whether the index for other readers, if there is one, is that of these items."""
    fitting = (None, hugging_face_index(items))
    if store.read_sidecar(HUGGING_FACE_NAME) in fitting:
        return True
    store.wait_for_commit()  # it is replaced right after the index
    return store.read_sidecar(HUGGING_FACE_NAME) in fitting


def _damage(store: Storage, item: Item) -> Iterator[str]:
    """Return what is wrong with the files of an item."""
    for number, pack in enumerate(item.packs):
        source = pack.source
        assert source.header_digest is not None
        try:
            (file,) = store.open([source])
            with file:
                digests = sealed_digests(file, source.header_digest)
                bad = check_file(file, digests)
        except (CordwoodError, OSError) as e:
            if not isinstance(e, CordwoodError) and e.errno not in DISK_ERRORS:
                raise
            names = _leaves_within(item, number, 0, source.size_bytes)
            yield f"  {source.name} (leaves: {names}): {e}"
            continue
        for damage in bad:
            names = _leaves_within(item, number, *damage)
            yield f"  {range_text(damage, source.name)}: {names}"


def _leaves_within(item: Item, number: int, start: int, stop: int) -> str:
    with gc_paused():
        paths = leaf_paths(item.structure)
        leaves = dict.fromkeys(
            leaf
            for leaf, _, offset, length in cells_of_file(item, number)
            if offset < stop and offset + length > start
        )
    names = [format_path(paths[leaf]) or "the root" for leaf in leaves]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(names[:_MAX_NAMES]) or "none") + more


def _surplus(store: Storage, items: Mapping[str, Item]) -> Iterator[str]:
    """Data files of the saves that the items are of, which these do not refer to.

    Those of other saves are none of its business: they may be under way, or dead.
    """
    referenced = {pack.source.name for item in items.values() for pack in item.packs}
    saves = {item.save_id for item in items.values()}
    for name in store.names():
        found = PACK_NAME.fullmatch(name)
        if found is not None and found[1] in saves and name not in referenced:
            yield f"  {name}: the index does not refer to it, but to others of the same save"
