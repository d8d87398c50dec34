"""The tiles that were made most recently, so that threads that read parts of one make it once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np


class RecentTiles:
    """Tiles by their numbers, each made when it is needed, and kept for a while.

    Args:
        make: returns the bytes of a tile (uint8[size]); called by several threads.
        kept_bytes: the most that is kept; at least one tile is.
        threads: the most tiles that are made at a time, each of which needs memory.
    """

    def __init__(self, make: Callable[[int], np.ndarray], *, kept_bytes: int, threads: int) -> None:
        self._make = make
        self._threads = threading.Semaphore(threads)
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._tiles: OrderedDict[int, np.ndarray] = OrderedDict()
        self._making: dict[int, threading.Lock] = {}

    def tile(self, number: int) -> np.ndarray:
        """Return the bytes of a tile, read-only by agreement. Raises what `make` raises."""
        with self._lock:
            data = self._tiles.get(number)
            if data is not None:
                self._tiles.move_to_end(number)
                return data
            making = self._making.setdefault(number, threading.Lock())
        with making:
            with self._lock:
                data = self._tiles.get(number)
            if data is None:
                with self._threads:
                    data = self._make(number)
                self._keep(number, data)
        return data

    def _keep(self, number: int, data: np.ndarray) -> None:
        with self._lock:
            self._tiles[number] = data
            self._making.pop(number, None)
            total = sum([tile.nbytes for tile in self._tiles.values()])
            while total > self._kept_bytes and len(self._tiles) > 1:
                total -= self._tiles.popitem(last=False)[1].nbytes
