"""Writing of a file from a stream of bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cordwood.storage.atomic_file import atomic_file
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
        offset = 0
        small = bytearray()
        for chunk in chunks:
            check_stop()
            view = memoryview(chunk).cast("B")
            if len(small) + len(view) < _STREAM_BYTES:
                small += view
                continue
            for part in (small, view):
                temporary.write(memoryview(part), offset)
                offset += len(part)
            small = bytearray()
        temporary.write(memoryview(small), offset)
        temporary.require_size(offset + len(small))
