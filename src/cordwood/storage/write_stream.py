"""Writing of a file from a stream of bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cordwood.storage.atomic_file import WritableFile, atomic_file
from cordwood.threads.stop_check import check_stop

_STREAM_BYTES = 1 << 20


def write_stream(
    path: str | os.PathLike[str], chunks: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Write `chunks` one after another to `path`, durably and atomically.

    Each chunk is used before the next one is requested. Raises as `atomic_file` does; an exception
    of `chunks` is passed on, and the old file at `path` stays.
    """
    with atomic_file(path) as temporary:
        write_chunks(temporary, chunks)


def write_chunks(file: WritableFile, chunks: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write `chunks` one after another to a new file, as `write_stream`; the small ones together.

    Raises OSError, also if the file then has another size.
    """
    offset = 0
    small = bytearray()
    for chunk in chunks:
        check_stop()
        view = memoryview(chunk).cast("B")
        if len(small) + len(view) < _STREAM_BYTES:
            small += view
            continue
        for part in (small, view):
            file.write(memoryview(part), offset)
            offset += len(part)
        small = bytearray()
    file.write(memoryview(small), offset)
    file.require_size(offset + len(small))
