"""Small plans for tests: arrays one after another, with and without gaps and digests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cordwood.index import Digests, LeafSpec
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, LeafBytes, LiteralBytes, Segment
from cordwood.plan.load_plan import LoadPlan, Move
from cordwood.tree.leaves import DeferredArray


class Sealed:
    """A seal that remembers the digests it was given."""

    def __init__(self, header: bytes) -> None:
        self.header = header
        self.digests: Digests | None = None

    def __call__(self, digests: Digests) -> bytes:
        self.digests = digests
        return self.header


class Laid(NamedTuple):
    plan: FilePlan
    offsets: list[int]
    seal: Sealed | None


def leaves_read_by(read: Callable[[int], Any], count: int) -> Leaves:
    """Return leaves whose elements a function returns when they are taken."""
    spec = LeafSpec((), "numpy", (), "uint8")
    return Leaves([DeferredArray(spec, partial(read, leaf)) for leaf in range(count)])


def stored_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of an array in a file: C order, little-endian."""
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"))
    return little.tobytes()


def lay_out(arrays: Sequence[np.ndarray], *, gap: bytes = b"", header: bytes = b"") -> Laid:
    segments: list[Segment] = []
    offsets: list[int] = []
    end = len(header)
    for i, array in enumerate(arrays):
        if gap:
            segments.append(LiteralBytes(gap))
            end += len(gap)
        segments.append(LeafBytes(i, 0, array.nbytes))
        offsets.append(end)
        end += array.nbytes
    seal = Sealed(header) if header else None
    return Laid(FilePlan(end, tuple(segments), len(header), seal), offsets, seal)


def expected_file(arrays: Sequence[np.ndarray], *, gap: bytes = b"", header: bytes = b"") -> bytes:
    return header + b"".join(gap + stored_bytes(array) for array in arrays)


def load_plan(laid: Laid, arrays: Sequence[np.ndarray]) -> tuple[LoadPlan, list[int]]:
    """All arrays into one buffer, each at a multiple of 64; and where."""
    moves: list[Move] = []
    positions: list[int] = []
    end = 0
    for offset, array in zip(laid.offsets, arrays, strict=True):
        moves.append(Move(0, offset, array.nbytes, 0, end))
        positions.append(end)
        end += -(-array.nbytes // 64) * 64
    return LoadPlan((end,), tuple(moves), ()), positions
