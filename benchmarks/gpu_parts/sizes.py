"""The sizes of trees, arrays and files, for the memory and the time that there is."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.gpu_parts.part import MIB

GIB = 1024 * MIB
SAVES = 300
_UNIT = 4 * MIB
_MOST_TREE_BYTES = 4 * GIB
_MOST_PLAIN_BYTES = GIB
_SAVED_BYTES = 128 * MIB
_ROUNDS = 4  # of the contenders, for which the time should suffice


class Room(NamedTuple):
    """Free bytes: on the device, in host memory, on the disk, and on the RAM disk."""

    device: int
    host: int
    disk: int
    ram_disk: int


class Rates(NamedTuple):
    """Rates of the disk in bytes per second."""

    write: float = 0.5e9
    read: float = 1e9


def plain_bytes(room: Room) -> int:
    """Return the size of the arrays and of the file of the plain rates."""
    return _fitting(_MOST_PLAIN_BYTES, room.device // 8, room.host // 16, room.disk // 8)


def tree_bytes(room: Room, rates: Rates, seconds: float) -> int:
    """Return the size of the tree of the contenders.

    On the disk are four copies and one that is being written. A round writes five copies, reads
    three past the page cache, and does about eight times what takes a second for each GB.
    """
    per_byte = 5 / rates.write + 3 / rates.read + 8e-9
    timely = int(seconds / per_byte / _ROUNDS)
    return _fitting(_MOST_TREE_BYTES, room.device // 6, room.host // 8, room.disk // 8, timely)


def saved_bytes(room: Room, rates: Rates, seconds: float) -> tuple[int, bool]:
    """Return the size of the tree of the repeated saves, and True if the RAM disk has room."""
    if room.ram_disk >= 4 * _SAVED_BYTES and room.host >= 16 * _SAVED_BYTES:
        return _SAVED_BYTES, True
    timely = int(seconds * rates.write / 2 / SAVES)
    return _fitting(_SAVED_BYTES, room.host // 16, room.disk // 8, timely), False


def _fitting(*sizes: int) -> int:
    """Return the smallest size, in whole units; at least two."""
    return max(2, min(sizes) // _UNIT) * _UNIT
