"""Object stores that ignore conditions, found out before anything is saved there.

Two savers of one directory lose each other's trees where the index is replaced without regard to
the condition, and nobody would notice.
"""

from __future__ import annotations

from contextlib import suppress

from cordwood.errors import CordwoodError, StorageError, UnsupportedFormatError
from cordwood.storage.object_store_client import ObjectStore
from cordwood.storage.save_ids import new_save_id

_obeying: set[str] = set()  # stores that were found to, by this process


def require_conditions(store: ObjectStore, index_name: str) -> None:
    """Raise UnsupportedFormatError for a store that ignores, or lacks, conditional writes.

    Four small writes tell, once for each bucket and process; none where the store is this
    process's memory, or a local disk.
    """
    if store.url.scheme not in ("gs", "s3") or store.location in _obeying:
        return
    name = f".{index_name}.cordwood-{new_save_id()}.tmp"
    try:
        problem = _problem(store, name)
    except StorageError as e:
        if "UNIMPLEMENTED" not in str(e) and "'501'" not in str(e):
            raise
        problem = "has none (501)"
    finally:
        with suppress(OSError, CordwoodError):  # gc removes it
            store.delete([name])
    if problem:
        raise UnsupportedFormatError(
            f"{store.url}: this store ({store.location}) {problem}: saves need conditional writes "
            "(PUT with If-Match and If-None-Match), or savers of one path would lose each other's "
            "trees in silence. Save to a store that has them; or save to a local directory and "
            "copy that to this store as it is: loads work from any"
        )
    _obeying.add(store.location)


def _problem(store: ObjectStore, name: str) -> str:
    """Return what is wrong with the conditional writes of a store, "" if nothing is."""
    absent = store.generation(name)
    first = _write_if(store, name, b"1", absent)
    if first is None:
        return "does not write an object on the condition that there is none"
    try:
        if store.replace_if(name, b"2", absent) is not None:
            return "ignores If-None-Match"
        if _write_if(store, name, b"3", first) is None:
            return "does not replace an object on the condition that it has not changed"
        if store.replace_if(name, b"4", first) is not None:
            return "ignores If-Match"
    except PermissionError:
        pass  # nothing can be replaced there, so nothing is lost
    return ""


def _write_if(store: ObjectStore, name: str, data: bytes, generation: bytes) -> bytes | None:
    """Return the new generation where the condition held, also if the answer was lost."""
    new = store.replace_if(name, data, generation)
    if new is None:
        found = store.read(name, limit_bytes=len(data))
        new = found.generation if found.data == data else None
    return new
