"""Conditional writes to object stores: an object is replaced only if nobody has changed it since.

Each object has a generation (on S3 its ETag), which every write changes. A write that names the
generation of the last read takes effect only if the object still has it: PUT with If-Match, or
If-None-Match where there was no object. This is how the index of a checkpoint is replaced.

Where a store ignores the condition, two savers of one directory lose each other's trees, and
nobody notices. So `require_conditional_writes` tests a store before anything is saved there.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from contextlib import suppress

from cordwood.errors import CordwoodError, LimitError, StorageError, UnsupportedFormatError
from cordwood.storage.object_store_client import ObjectStore, StoredObject, storage_error
from cordwood.storage.save_ids import new_save_id

_MAX_ATTEMPTS = 200  # each is lost to another writer; more means a store that ignores conditions
_MAX_SECONDS_BETWEEN = 2.0

_tested: set[str] = set()  # locations of stores that have passed the test in this process


def write_if_unchanged(
    store: ObjectStore, name: str, data: bytes | None, generation: bytes
) -> bytes | None:
    """Write an object, or with None remove it, if it still has that generation.

    Returns the new generation; None if the object has another one. Raises OSError.
    """
    try:
        stamp = store.start_write(name, data, if_generation=generation).result()
    except ValueError as e:
        raise storage_error(e, store.url_of(name), "replacing it") from e
    new: bytes = stamp.generation  # empty: the condition did not hold
    return new or None


def replace_object(
    store: ObjectStore,
    name: str,
    update: Callable[[bytes | None], bytes | None],
    *,
    limit_bytes: int,
) -> bytes:
    """Replace an object by the result of `update`, again and again until no other writer is first.

    Where the answer to a write is lost, the object is read back: if it has the bytes that were
    written, the write has taken effect.

    Args:
        store: the store.
        name: the object.
        update: computes the new bytes from the current ones; None stands for no object. Called
            again with the current bytes whenever another writer came first. It must accept its
            own result as input: a write may have taken effect without our knowledge.
        limit_bytes: the most bytes that the object may have.

    Returns the new generation.

    Raises StorageError where the store refuses, or after very many attempts; and what `update`
    raises.
    """
    written: bytes | None = None
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            seconds = min(_MAX_SECONDS_BETWEEN, 0.001 * 2 ** min(attempt, 16))
            time.sleep(random.uniform(0, seconds))  # noqa: S311  (not a secret)
        current = store.read(name, limit_bytes=limit_bytes)
        if written is not None and current.data == written:
            return current.generation
        data = update(current.data)
        if data is None and current.data is None:
            return current.generation
        try:
            generation = write_if_unchanged(store, name, data, current.generation)
        except OSError:
            # TensorStore repeats requests: the error may be the answer to the repetition of a
            # write that has taken effect.
            stored = None if data is None else _read_back(store, name, limit_bytes)
            if stored is None or stored.data != data:
                raise
            return stored.generation
        if generation is not None:
            return generation
        written = data
    raise StorageError(
        errno.EBUSY,
        f"other writers replaced it {_MAX_ATTEMPTS} times meanwhile; save again",
        store.url_of(name),
    )


def _read_back(store: ObjectStore, name: str, limit_bytes: int) -> StoredObject | None:
    try:
        return store.read(name, limit_bytes=limit_bytes)
    except (OSError, LimitError):
        return None


def require_conditional_writes(store: ObjectStore, index_name: str) -> None:
    """Raise UnsupportedFormatError for a store that ignores, or lacks, conditional writes.

    This needs four small writes, once for each store and process; none where the store is the
    memory of this process, or a local disk.
    """
    if store.url.scheme not in ("gs", "s3") or store.location in _tested:
        return
    name = f".{index_name}.cordwood-{new_save_id()}.tmp"
    try:
        problem = _find_problem(store, name)
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
    _tested.add(store.location)


def _find_problem(store: ObjectStore, name: str) -> str:
    """Return a description of how conditional writes of a store fail; "" if they work."""
    absent = store.generation(name)
    first = _write_and_confirm(store, name, b"1", absent)
    if first is None:
        return "does not write an object on the condition that there is none"
    try:
        if write_if_unchanged(store, name, b"2", absent) is not None:
            return "ignores If-None-Match"
        if _write_and_confirm(store, name, b"3", first) is None:
            return "does not replace an object on the condition that it has not changed"
        if write_if_unchanged(store, name, b"4", first) is not None:
            return "ignores If-Match"
    except PermissionError:
        pass  # nothing can be replaced there, so nothing is lost
    return ""


def _write_and_confirm(
    store: ObjectStore, name: str, data: bytes, generation: bytes
) -> bytes | None:
    """Return the new generation if the condition held, also if the answer was lost."""
    new = write_if_unchanged(store, name, data, generation)
    if new is None:
        stored = store.read(name, limit_bytes=len(data))
        new = stored.generation if stored.data == data else None
    return new
