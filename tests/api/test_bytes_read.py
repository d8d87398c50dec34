"""A process that loads its part of leaves cut along their leading axis reads little else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.index import Box, Leaf, Piece, Pieces, Span
from cordwood.io.open_files import LocalFile
from cordwood.sharding.boxes import intersect, shape_of
from cordwood.storage.local_directory import DirectoryFile
from tests.shardings import sharding

MIB = 1 << 20
TREE: dict[str, np.ndarray[Any, Any]] = {
    "rows": np.arange(8 << 20, dtype=np.float32).reshape(256, 1024, 32),  # 32 MiB
    "few": np.arange(2 << 20, dtype=np.int32).reshape(64, 32 << 10),  # 8 MiB, rows of 128 KiB
    "odd": np.arange(4096 * 150, dtype=np.float32).reshape(4096, 150),  # rows of 600 bytes
    "half": np.arange(1 << 20, dtype=np.float16).reshape(1024, 1024),  # 2 MiB
}
SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "safetensors": ("x.safetensors", {}),
    "msgpack": ("x.msgpack", {}),
    "packs": ("packs", {}),
    "zarr": ("zarr", {"format": "zarr"}),
}


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the size of each read."""
    sizes: list[int] = []
    for cls in (LocalFile, DirectoryFile):

        def read_into(
            file: Any, offset: int, views: Sequence[memoryview], original: Any = cls.read_into
        ) -> None:
            sizes.append(sum(map(len, views)))
            original(file, offset, views)

        monkeypatch.setattr(cls, "read_into", read_into)
    return sizes


def rounded_out(
    checkpoint: cordwood.Checkpoint, leaves: Sequence[Leaf], wanted: Sequence[Box]
) -> int:
    """Return the bytes of the boxes, rounded out to the blocks of digests; computed by hand."""
    blocks: set[tuple[int, int]] = set()
    plain = 0
    sources = checkpoint.index.sources
    for leaf, box in zip(leaves, wanted, strict=True):
        assert isinstance(leaf.storage, Pieces)
        row = int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize
        for piece in leaf.storage.pieces:
            common = intersect(around(piece, leaf.shape), box)
            if common is None:
                continue
            first = piece.offset + (common.start[0] - around(piece, leaf.shape).start[0]) * row
            last = first + shape_of(common)[0] * row
            digests = checkpoint._reader.digests[piece.source]
            if digests is None:
                plain += last - first
                continue
            origin = digests.start
            for block in range((first - origin) // MIB, -(-(last - origin) // MIB)):
                blocks.add((piece.source, block))
    for source, block in blocks:
        digests = checkpoint._reader.digests[source]
        assert digests is not None
        assert digests.block_bytes == MIB
        plain += min(MIB, sources[source].size_bytes - digests.start - block * MIB)
    return plain


def around(piece: Piece, shape: tuple[int, ...]) -> Box:
    if isinstance(piece.where, Span):
        assert piece.where.start == 0
        return Box((0,) * len(shape), shape)
    return piece.where


@pytest.mark.parametrize("saved_on", [1, 4, 8])
@pytest.mark.parametrize("name", SAVED)
def test_what_each_of_some_processes_reads(
    tmp_path: Path, count: list[int], name: str, saved_on: int
) -> None:
    file, options = SAVED[name]
    path = tmp_path / file
    cordwood.save(path, jax.device_put(TREE, sharding(P("x"), saved_on)), **options)
    with cordwood.open(path) as checkpoint:
        index = checkpoint.index
        for processes in (1, 2, 4, 8):
            for process in range(processes):
                wanted = []
                for leaf in index.leaves:
                    rows = leaf.shape[0] // processes
                    start = (process * rows, *[0] * (len(leaf.shape) - 1))
                    stop = ((process + 1) * rows, *leaf.shape[1:])
                    wanted.append(Box(start, stop))
                count.clear()
                boxes = {i: [box] for i, box in enumerate(wanted)}
                result = checkpoint._reader.read(index.leaves, boxes)
                assert sum(count) <= 1.05 * rounded_out(checkpoint, index.leaves, wanted)
                for leaf, box, array in zip(index.leaves, wanted, result, strict=True):
                    part = TREE[str(leaf.key_path[0])][box.start[0] : box.stop[0]]
                    np.testing.assert_array_equal(array, part)
