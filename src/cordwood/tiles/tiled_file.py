"""A file that is made of tiles, each of which is made when bytes of it are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from cordwood.formats.format_protocol import Opened
from cordwood.io.open_files import Closable, require_range


class TiledFile(Closable):
    """Tiles of bytes, one after another, that are read as a file.

    Args:
        name: for messages.
        ends: the offset at which each tile ends, in bytes.
        make: returns the bytes of a tile (uint8[size]); called by several threads, and each time
            that bytes of the tile are read.
        inputs: checkpoints that are closed with it.
    """

    def __init__(
        self,
        name: str,
        ends: Sequence[int],
        make: Callable[[int], np.ndarray],
        inputs: Sequence[Opened] = (),
    ) -> None:
        self.name = name
        self.size_bytes = ends[-1] if ends else 0
        self.tile_ends = ends
        self._make = make
        self._inputs = inputs
        self.latency_bound = any(file.latency_bound for opened in inputs for file in opened.files)

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.read_into(offset, [memoryview(data)])
        return bytes(data)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        require_range(self, offset, sum(map(len, views)))
        for view in views:
            target = np.frombuffer(view, np.uint8)
            done = 0
            while done < len(target):
                number = bisect_right(self.tile_ends, offset)
                tile = self._make(number)
                start = len(tile) - (self.tile_ends[number] - offset)
                count = min(len(target) - done, len(tile) - start)
                np.copyto(target[done : done + count], tile[start : start + count])
                done += count
                offset += count

    def map(self) -> memoryview:
        return memoryview(self.read(0, self.size_bytes))

    def close(self) -> None:
        for opened in self._inputs:
            opened.close()
