"""The storage of a directory of packs: on a disk, in an object store or on the hub."""

from __future__ import annotations

import errno

from cordwood.errors import IncompleteCheckpointError, UnsupportedFormatError
from cordwood.formats.packs.cordwood_json import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    asks_for_orbax,
    decode_index,
    names_in,
)
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME, is_pack_name
from cordwood.formats.step_names import MAX_STEPS_OPENED, sorted_steps, step_in_name
from cordwood.message_text import counted, listed
from cordwood.storage.hub.hub_address import hub_is_read_only
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.storage_protocol import NamingRules, Storage


def _paths_for_orbax(index: bytes) -> frozenset[str]:
    items = decode_index(index)
    if not asks_for_orbax(items):
        return frozenset()
    from cordwood.formats.packs.for_orbax.orbax_index import orbax_paths

    return orbax_paths(items)


RULES = NamingRules(
    INDEX_NAME,
    MAX_INDEX_BYTES,
    (HUGGING_FACE_NAME,),
    is_pack_name,
    lambda index: frozenset() if index is None else names_in(decode_index(index)),
    _paths_for_orbax,
)


def store_at(location: Location, *, to_save: bool = False) -> Storage:
    """Return the directory of packs at a path or URL, which need not exist yet.

    Raises UnsupportedFormatError with `to_save` for what can only be read.
    """
    if isinstance(location, LocalPath) and location.held is not None:
        from cordwood.storage.peers.held_storage import HeldStorage, held_is_read_only

        if to_save:
            raise held_is_read_only(location)
        return HeldStorage(location, location.held, RULES)
    if isinstance(location, LocalPath):
        from cordwood.storage.local_storage import LocalStorage

        return LocalStorage(location, RULES)
    if location.is_hub:
        from cordwood.storage.hub.hub_storage import HubStorage

        if to_save:
            raise hub_is_read_only(location)
        return HubStorage(location, RULES)
    if to_save and location.is_web:
        raise UnsupportedFormatError(
            f"{location.address}: {location.scheme}:// can only be read; expected a path, or a URL "
            "of s3://, gs:// or az:// to save to"
        )
    from cordwood.storage.object_stores.object_storage import ObjectStorage

    return ObjectStorage(location, RULES)


def _absence(location: Location) -> str:
    """Return what it means that a store shows nothing at a location."""
    what = "there is no checkpoint"
    if not (isinstance(location, Url) and location.is_web):
        return what
    is_rank = location.name.partition(":")[0] in ("latest", "best")
    example = (location.parent if is_rank else location).child("100")
    if is_rank or not location.name:
        return f"{what}, and a web server lists no steps: name one of them, as in {example}"
    if step_in_name(location.name) is not None:
        return f"{what} at this address"
    return (
        f"{what} at this address; a web server lists no steps: if it holds some, name one of them, "
        f"as in {example}"
    )


def require_index(store: Storage) -> bytes:
    """Return the bytes of an index that must be there. Raises as `open_item` does."""
    data = store.read_index()
    if data is not None:
        return data
    names = store.names()
    if not names:
        raise FileNotFoundError(errno.ENOENT, _absence(store.location), store.name)
    steps = sorted_steps(names)
    if not steps:
        raise IncompleteCheckpointError(
            f"{store.name} has no {INDEX_NAME}: no save to it has finished, or it is no checkpoint"
        )
    newest = steps[-1]
    for step in reversed(steps[-MAX_STEPS_OPENED:]):
        if store_at(store.location.child(step)).read_index() is not None:
            newest = step
            break
    raise IncompleteCheckpointError(
        f"{store.name} is a directory of {counted(len(steps), 'step')} ({listed(steps)}), and no "
        f"checkpoint itself: load one of them; the newest is {store.name}/{newest}"
    )
