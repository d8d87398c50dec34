"""The objects beside an index: sidecars, and the list of objects to be removed."""

from __future__ import annotations

import re
from contextlib import suppress

from cordwood.storage.object_stores.conditional_writes import replace_object
from cordwood.storage.object_stores.object_pool import (
    MAX_LIST_BYTES,
)
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.stored_objects import StoredObject, Tag
from cordwood.storage.paths import new_save_id
from cordwood.storage.storage_protocol import (
    NamingRules,
)

PROBE, REMOVAL_LIST = "tmp", "gc"  # the kinds of temporary objects, by the end of their names


def name_beside(rules: NamingRules, kind: str) -> str:
    """Return a new name for a temporary object beside the index."""
    return f".{rules.index_name}.cordwood-{new_save_id()}.{kind}"


def is_beside(rules: NamingRules, kind: str, name: str) -> bool:
    """Return True for the name of a temporary object of that kind."""
    pattern = rf"\.{re.escape(rules.index_name)}\.cordwood-[0-9a-f]{{16}}\.{kind}"
    return re.fullmatch(pattern, name) is not None


def read_removal_list(store: ObjectStore, name: str) -> list[str] | None:
    """Return the names in a list of removals; None if the list is gone: that has ended."""
    data = store.read(name, limit_bytes=MAX_LIST_BYTES).data
    return None if data is None else data.decode("utf-8", "replace").split("\n")


def write_sidecar(
    store: ObjectStore,
    rules: NamingRules,
    name: str,
    data: bytes | None,
    tag: Tag | None,
    sidecar: StoredObject,
    index: StoredObject | Exception | None = None,
) -> None:
    """Update a sidecar object to match the index, unless a later save has replaced the index.

    The index is checked between the read of the object and its conditional replacement. So of two
    saves the one that replaced the index last also writes the sidecar last.

    Args:
        store: the store.
        rules: the naming rules.
        name: the object.
        data: what it has to contain; None: there is to be none.
        tag: the tag of the index that it belongs to.
        sidecar: the object, as it was read before the index.
        index: the index, as it was read after that, or why it was not; None: it is read now.
    """
    if isinstance(index, Exception):
        raise index
    limit_bytes = rules.max_index_bytes
    first = index

    class Overtaken(Exception):
        pass

    def update(_: bytes | None) -> bytes | None:
        nonlocal first
        current, first = first or store.read(rules.index_name, limit_bytes=limit_bytes), None
        if current.tag is None or tag is None or current.tag.e_tag != tag.e_tag:
            raise Overtaken
        return data

    with suppress(Overtaken):
        if data is not None:
            replace_object(store, name, update, limit_bytes=limit_bytes, stored=sidecar)
        elif sidecar.tag is not None:
            update(None)
            store.delete([name])  # without a condition: it may be absent at any time
