"""The making of a delta: tiles of two versions are encoded, and become the leaves of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.deltas.tile_encoding import as_words, encode_tile, word_bytes
from cordwood.deltas.tile_grid import TiledTree
from cordwood.encoding.digests import DIGEST_BYTES, digest_of
from cordwood.index import ARRAY_KINDS, LEAF, Node, Structure
from cordwood.keypath import KeyPath
from cordwood.threads.thread_pool import map_in_threads

# The keys of a delta: the digest of each tile as changed, the size of each encoded tile, and the
# tree, whose arrays are the encoded tiles.
DIGESTS, SIZES, TREE = "digests", "sizes", "tree"
_KEYS = (DIGESTS, SIZES, TREE)


class EncodedTile(NamedTuple):
    """The difference of one tile, and the digest of the new one."""

    encoded: bytes
    digest: bytes


def encode_tiles(
    dtypes: Sequence[str], old: Sequence[np.ndarray], new: Sequence[np.ndarray]
) -> list[EncodedTile]:
    """Return the differences between tiles, by several threads.

    Args:
        dtypes: the dtype of each tile.
        old: the tiles of the old version, in any memory order.
        new: those of the new version.
    """

    def encode(dtype: str, before: np.ndarray, after: np.ndarray) -> EncodedTile:
        size = word_bytes(dtype)
        words = as_words(np.ascontiguousarray(after), size)
        encoded = encode_tile(as_words(np.ascontiguousarray(before), size), words)
        return EncodedTile(encoded, digest_of(words.data))

    return map_in_threads(encode, list(zip(dtypes, old, new, strict=True)))


def tile_digest(tile: np.ndarray) -> bytes:
    """Return the digest of the elements of a tile, in C order."""
    return digest_of(np.ascontiguousarray(tile).reshape(-1).view(np.uint8).data)


def delta_paths(tree: TiledTree) -> tuple[Structure, tuple[KeyPath, ...]]:
    """Return the structure of the delta of a tree, and the key paths of its leaves."""
    structure = (Node("dict", len(_KEYS), _KEYS), LEAF, LEAF, *tree.structure)
    return structure, ((DIGESTS,), (SIZES,), *[(TREE, *spec.key_path) for spec in tree.specs])


def delta_leaves(
    tree: TiledTree, tiles: Sequence[EncodedTile], arrays: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the leaves of a delta, in the order of `delta_paths`.

    Args:
        tree: the tiles, and the values of the new version.
        tiles: all tiles, in their order.
        arrays: of each leaf that is an array, its encoded tiles (uint8[bytes]).
    """
    digests = np.frombuffer(b"".join([tile.digest for tile in tiles]), np.uint8)
    sizes = np.array([len(tile.encoded) for tile in tiles], np.uint32)
    remaining = iter(arrays)
    values = [next(remaining) if spec.kind in ARRAY_KINDS else spec.value for spec in tree.specs]
    return (digests.reshape(-1, DIGEST_BYTES), sizes, *values)


def encoded_leaves(tree: TiledTree, tiles: Sequence[EncodedTile]) -> list[np.ndarray]:
    """Return the encoded tiles of each leaf that is an array, one after another (uint8[bytes])."""
    result = []
    for number in tree.arrays():
        first, count, _ = tree.leaves[number]
        data = b"".join([tile.encoded for tile in tiles[first : first + count]])
        result.append(np.frombuffer(data, np.uint8))
    return result
