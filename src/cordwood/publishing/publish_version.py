"""One version to publish: its tiles are encoded, and it becomes a whole version or a delta."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cordwood.deltas.encode_delta import EncodedTile, delta_paths, encode_tiles
from cordwood.deltas.version_digest import version_digest
from cordwood.devices.array_shards import LocalShards
from cordwood.encoding.digests import DIGEST_BYTES
from cordwood.formats.version_record import BaseVersion, VersionRecord
from cordwood.index import ARRAY_KINDS, Box, LeafSpec, size_in_memory
from cordwood.publishing.host_version import HostVersion
from cordwood.sharding.boxes import ShardGrid
from cordwood.tree.flatten import FlatTree
from cordwood.tree.leaves import DeferredArray


class PublishedVersion(NamedTuple):
    """A version that was committed, from which the next delta is made.

    Attributes:
        step: its number.
        digest: its digest.
        host: its values.
        chain: the numbers of the versions since the last whole one; this one is the last.
    """

    step: int
    digest: str
    host: HostVersion
    chain: Sequence[int]


class TilesOfProcess(NamedTuple):
    """The sizes and digests of the tiles of one process, in their order, as JSON holds them.

    Attributes:
        base: the digest of the version with which they were compared; None: with none.
        sizes: of its encoded tiles, in bytes.
        digests: of its tiles, in base64.
    """

    base: str | None
    sizes: Sequence[int]
    digests: str


class TilesOfVersion(NamedTuple):
    """The same of all tiles of a version, and what is to be written.

    Attributes:
        is_whole: True if the tree is to be written, and beside it the delta, if there is a base.
        base: the digest of the base of the delta; None: no delta is to be written.
    """

    is_whole: bool
    base: str | None
    sizes: Sequence[int]
    digests: str


def encode_own_tiles(host: HostVersion, last: PublishedVersion | None) -> list[EncodedTile]:
    """Return the tiles of this process, encoded against those of the last version.

    Without one they are encoded as if nothing had changed: then only their digests count.
    """
    old = host if last is None else last.host
    dtypes = [host.specs[tile.leaf].dtype for tile in host.own]
    return encode_tiles(dtypes, [*map(old.tile, host.own)], [*map(host.tile, host.own)])


def tiles_of_process(tiles: Sequence[EncodedTile], last: PublishedVersion | None) -> TilesOfProcess:
    """Return the sizes and digests of encoded tiles, as they are sent to process 0."""
    digests = b64encode(b"".join([tile.digest for tile in tiles])).decode()
    base = None if last is None else last.digest
    return TilesOfProcess(base, [len(tile.encoded) for tile in tiles], digests)


def join_tiles(
    host: HostVersion, every: Sequence[TilesOfProcess], *, is_due: bool
) -> TilesOfVersion:
    """Return the tiles of all processes, and decide what is written: a delta, the tree, or both.

    Args:
        host: the version.
        every: the tiles of each process.
        is_due: True if a whole version is due.
    """
    parts = [TilesOfProcess(*each) for each in every]
    sizes = [iter(part.sizes) for part in parts]
    digests = [b64decode(part.digests) for part in parts]
    positions = [0] * len(parts)
    joined = bytearray()
    all_sizes: list[int] = []
    for owner in host.owners:
        all_sizes.append(next(sizes[owner]))
        joined += digests[owner][positions[owner] : positions[owner] + DIGEST_BYTES]
        positions[owner] += DIGEST_BYTES
    bases = {part.base for part in parts}
    whole_bytes = sum(map(size_in_memory, host.specs))
    is_smaller = len(bases) == 1 and sum(all_sizes) < whole_bytes
    base = bases.pop() if is_smaller else None
    return TilesOfVersion(is_due or base is None, base, all_sizes, b64encode(joined).decode())


def record_of(
    host: HostVersion, tiles: TilesOfVersion, last: PublishedVersion | None
) -> VersionRecord:
    """Return the record of a version."""
    digest = version_digest(host.tree, b64decode(tiles.digests))
    base = None
    if tiles.base is not None:
        assert last is not None
        base = BaseVersion(tiles.base, last.step)
    return VersionRecord(digest, base, tiles.is_whole, host.tree.outer_cuts)


def whole_tree(host: HostVersion) -> FlatTree:
    """Return the tree of a version to save."""
    specs = host.specs
    leaves = [
        DeferredArray(spec, partial(host.value, leaf), host.shards[leaf])
        if spec.kind in ARRAY_KINDS
        else spec.value
        for leaf, spec in enumerate(specs)
    ]
    return FlatTree(
        host.tree.structure, tuple([spec.key_path for spec in specs]), tuple(leaves), ()
    )


def delta_tree(host: HostVersion, own: Sequence[EncodedTile], tiles: TilesOfVersion) -> FlatTree:
    """Return the delta of a version to save; each process writes the tiles that it has encoded."""
    encoded = {tile.number: each.encoded for tile, each in zip(host.own, own, strict=True)}
    digests = np.frombuffer(b64decode(tiles.digests), np.uint8).reshape(-1, DIGEST_BYTES)
    structure, paths = delta_paths(host.tree)
    leaves: list[Any] = [digests, np.array(tiles.sizes, np.uint32)]
    for leaf, spec in enumerate(host.specs):
        if spec.kind in ARRAY_KINDS:
            leaves.append(_encoded_leaf(host, leaf, tiles.sizes, encoded))
        else:
            leaves.append(spec.value)
    return FlatTree(structure, paths, tuple(leaves), ())


def _encoded_leaf(
    host: HostVersion, leaf: int, sizes: Sequence[int], encoded: Mapping[int, bytes]
) -> DeferredArray:
    """Return the encoded tiles of a leaf, as an array that is spread over their processes."""
    first, count, _ = host.tree.leaves[leaf]
    starts: list[int] = []
    owners: list[int] = []
    parts: list[list[bytes]] = []
    total = 0
    for number in range(first, first + count):
        if sizes[number]:
            owner = host.owners[number]
            if owners[-1:] != [owner]:
                starts.append(total)
                owners.append(owner)
                parts.append([])
            parts[-1].append(encoded.get(number, b""))
            total += sizes[number]
    if not starts:
        starts, owners, parts = [0], [host.owners[first]], [[]]
    holders = tuple([(owner,) for owner in owners])
    boxes = [Box((a,), (b,)) for a, b in pairwise([*starts, total])]
    local = [
        (box, np.frombuffer(b"".join(part), np.uint8))
        for box, part in zip(boxes, parts, strict=True)
        if sum(map(len, part)) == box.stop[0] - box.start[0]
    ]
    shards = LocalShards(
        (total,), np.dtype(np.uint8), [box for box, _ in local], [data for _, data in local]
    )
    spec = LeafSpec((), "numpy", (total,), "uint8")
    return DeferredArray(spec, lambda: shards, ShardGrid((total,), (tuple(starts),), holders))
