"""Conditional writes: the replacement of an object that several writers replace.

A data object is written once, whole, under a name that no other save uses, and never changed. The
index is the only object that is replaced. Each object has a tag (on S3 its ETag, on GCS its
generation), which every write changes. A write that names the tag of the last read takes effect
only if the object still has it. Where a store ignores the condition, two savers of one directory
lose each other's trees, and nobody notices. So `require_conditional_writes` tests a store before
anything is saved there.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from contextlib import suppress

from cordwood.errors import CordwoodError, LimitError, StorageError, UnsupportedFormatError
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_store_errors import failure_of
from cordwood.storage.object_stores.stored_objects import StoredObject, Tag
from cordwood.storage.paths import new_save_id

_MAX_ATTEMPTS = 200  # each is lost to another writer; more means a store that ignores conditions
_MAX_SECONDS_BETWEEN = 2.0


def replace_object(
    store: ObjectStore,
    name: str,
    update: Callable[[bytes | None], bytes | None],
    *,
    limit_bytes: int,
    stored: StoredObject | None = None,
) -> Tag | None:
    """Replace an object by the result of `update`, again and again until no other writer is first.

    Where the answer to a write is lost, the object is read back: if it has the bytes that were
    written, the write has taken effect.

    Args:
        store: the store.
        name: the object.
        update: computes the new bytes from the current ones; None stands for no object, and an
            object without bytes for None: stores have no conditional deletion. Called again with
            the current bytes whenever another writer came first. It must accept its own result as
            input: a write may have taken effect without our knowledge.
        limit_bytes: the most bytes that the object may have.
        stored: the object, if it was read already.

    Returns the new tag.

    Raises StorageError where the store refuses, or after very many attempts; and what `update`
    raises.
    """
    written: bytes | None = None
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            seconds = min(_MAX_SECONDS_BETWEEN, 0.001 * 2 ** min(attempt, 16))
            time.sleep(random.uniform(0, seconds))  # noqa: S311  (not a secret)
        current, stored = stored or store.read(name, limit_bytes=limit_bytes), None
        if written is not None and current.data == written:
            return current.tag
        new = update(current.data or None)
        if new is None and not current.data:
            return current.tag
        data = new or b""
        try:
            tag = store.write_if(name, data, current.tag)
        except OSError:
            # The request was perhaps repeated: the error may be the answer to the repetition of a
            # write that has taken effect.
            stored = _read_back(store, name, limit_bytes)
            if stored is None or stored.data != data:
                raise
            return stored.tag
        if tag is not None:
            return tag
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
    memory of this process.
    """
    if store.url.scheme == "memory" or store.experience.has_conditions:
        return
    name = f".{index_name}.cordwood-{new_save_id()}.tmp"
    try:
        problem = find_problem_of_conditions(store, name)
    finally:
        with suppress(OSError, CordwoodError):  # gc removes it
            store.delete([name])
    if problem:
        raise UnsupportedFormatError(
            f"{store.url}: this store ({store.bucket.where}) {problem}: saves need conditional "
            "writes (PUT with If-Match and If-None-Match), or savers of one path would lose each "
            "other's trees in silence. Save to a store that has them; or save to a local directory "
            "and copy that to this store as it is: loads work from any"
        )
    store.experience.has_conditions = True


def find_problem_of_conditions(store: ObjectStore, name: str) -> str:
    """Return a description of how conditional writes of a store fail; "" if they work.

    It writes an object of that name, four times; the caller removes it. Some stores take the tag
    of a condition without its quotes only, against the standard: those are remembered.
    """
    try:
        first = _write_and_confirm(store, name, b"1", None)
        if first is None:
            return "does not write an object on the condition that there is none"
        try:
            if store.write_if(name, b"2", None) is not None:
                return "ignores If-None-Match"
            if _write_and_confirm(store, name, b"3", first) is None:
                store.experience.takes_bare_tags = True
                if _write_and_confirm(store, name, b"3", first) is None:
                    store.experience.takes_bare_tags = False
                    return "does not replace an object on the condition that it has not changed"
            if store.write_if(name, b"4", first) is not None:
                return "ignores If-Match"
        except PermissionError:
            pass  # nothing can be replaced there, so nothing is lost
    except StorageError as e:
        if failure_of(e.__cause__ or e).status != 501 and "NotSupported" not in repr(e.__cause__):
            raise
        return "has none (501)"
    return ""


def _write_and_confirm(store: ObjectStore, name: str, data: bytes, tag: Tag | None) -> Tag | None:
    """Return the new tag if the condition held, also if the answer was lost."""
    new = store.write_if(name, data, tag)
    if new is None:
        stored = store.read(name, limit_bytes=len(data))
        new = stored.tag if stored.data == data else None
    return new
