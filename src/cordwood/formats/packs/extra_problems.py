"""Problems of a directory of packs that its items do not show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from cordwood.encoding.step_record import KEY, decode_record, wrong_step
from cordwood.errors import CordwoodError
from cordwood.formats.packs.file_names import RULES
from cordwood.formats.packs.hub_index import HUGGING_FACE_NAME, hugging_face_index
from cordwood.formats.packs.index_item import PACK_NAME, Item
from cordwood.formats.packs.locate import store_at
from cordwood.formats.packs.open import read_index_bytes
from cordwood.formats.packs.read_index import parse_items
from cordwood.formats.step_directories import step_in_name
from cordwood.storage.storage_protocol import Storage


def extra_problems(path: str | os.PathLike[str]) -> list[str]:
    """Return a line for each problem: surplus files, and an index or record of something else.

    Raises FormatError for an index that is not what docs/format.md says.
    """
    store = store_at(path)
    data = read_index_bytes(store)
    items = parse_items(data, name=f"{store.name}/{RULES.index_name}")
    problems = [*_surplus(store, items), *_of_another_step(store, items)]
    if not _fits_other_readers(store, items) and store.read_index() == data:
        problems.append(
            f"{HUGGING_FACE_NAME} is not the one of this index: save again, or remove it"
        )
    return problems


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
    return [] if record.step == step else [wrong_step(record, name)]


def _fits_other_readers(store: Storage, items: Mapping[str, Item]) -> bool:
    """Return whether the index for other readers, if there is one, is that of these items."""
    fitting = (None, hugging_face_index(items))
    if store.read_sidecar(HUGGING_FACE_NAME) in fitting:
        return True
    store.wait_for_commit()  # it is replaced right after the index
    return store.read_sidecar(HUGGING_FACE_NAME) in fitting


def _surplus(store: Storage, items: Mapping[str, Item]) -> Iterator[str]:
    """Return the data files of the items' own saves that no item refers to.

    Files of other saves are passed over: such a save may be under way, or dead.
    """
    referenced = {pack.source.name for item in items.values() for pack in item.packs}
    saves = {item.save_id for item in items.values()}
    for name in store.names():
        match = PACK_NAME.fullmatch(name)
        if match is not None and match[1] in saves and name not in referenced:
            yield f"{name}: the index does not refer to it, but to others of the same save"
