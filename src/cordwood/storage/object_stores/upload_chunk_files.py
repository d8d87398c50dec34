"""Uploads of the many small objects of a new checkpoint, each of which is written once.

Each is written on the condition that there is no object of its name. One that is there already, of
a save that was interrupted, must have the bytes that would be written. So saves to one place cannot
mix their objects, and a save that is repeated goes on where the last one ended.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from cordwood.errors import LimitError
from cordwood.io.chunk_codecs import Encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import ChunkFile, PlannedFile
from cordwood.storage.object_stores.conditional_writes import replace_object
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.stored_objects import StoredObject
from cordwood.storage.write_chunk_files import WrittenFile, bytes_of_chunk, encoded_chunk
from cordwood.storage.write_units import UNIT_BYTES, block_digests
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import default_threads, reading_threads
from cordwood.threads.thread_pool import map_in_threads

_NOTHING = StoredObject(None, None)


def upload_chunk_files(
    store: ObjectStore, files: Sequence[PlannedFile], leaves: Leaves, encode: Encoder
) -> list[WrittenFile]:
    """Upload new objects; all are stored when this returns.

    Args:
        store: the store.
        files: the objects; the chunks of one leaf follow one another.
        leaves: the leaves; each is released after its last chunk.
        encode: compresses a chunk. Each is sent as a whole.

    Raises OSError, FileExistsError as `write_new_object`, and what `check_stop` raises.
    """
    leaves.expect([file.leaf for file in files if isinstance(file, ChunkFile)])
    results = [WrittenFile(0, b"")] * len(files)
    large = [(number,) for number, file in enumerate(files) if bytes_of_chunk(file) >= UNIT_BYTES]
    small = [(number,) for number, file in enumerate(files) if bytes_of_chunk(file) < UNIT_BYTES]

    def upload(number: int) -> None:
        check_stop()
        file = files[number]
        data = encoded_chunk(file, leaves, encode) if isinstance(file, ChunkFile) else file.data
        write_new_object(store, file.path, data)
        units = [data[start : start + UNIT_BYTES] for start in range(0, len(data), UNIT_BYTES)]
        digests = b"".join([block_digests(memoryview(unit)) for unit in units])
        results[number] = WrittenFile(len(data), digests)

    # Each thread has a chunk in memory twice: few for large ones, many for those that only wait.
    map_in_threads(upload, large, threads=default_threads())
    map_in_threads(upload, small, threads=reading_threads(latency_bound=True))
    return results


def write_new_object(store: ObjectStore, name: str, data: bytes) -> None:
    """Write an object that is never replaced.

    Raises FileExistsError if there is an object of that name with other bytes.
    """

    def unless_there(current: bytes | None) -> bytes:
        if current is not None and current != data:
            raise _exists(store, name)
        return data

    try:
        replace_object(store, name, unless_there, limit_bytes=len(data), stored=_NOTHING)
    except LimitError as e:
        raise _exists(store, name) from e


def _exists(store: ObjectStore, name: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST,
        "there is another object already, of another save that is running or was interrupted; "
        "objects of such a checkpoint are never replaced: write to another path, or remove what is "
        f"there: cordwood rm {store.url}",
        store.url_of(name),
    )
