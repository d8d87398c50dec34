"""The tiles of a version that a follower holds in host memory, and their change into the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.deltas.stored_delta import StoredDelta
from cordwood.deltas.stored_versions import OpenVersion
from cordwood.deltas.tile_grid import TiledTree, tile_tree
from cordwood.errors import CorruptionError, MismatchError
from cordwood.index import Naming
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_specs import read_boxes, stored_specs
from cordwood.sharding.boxes import element_count
from cordwood.threads.thread_pool import map_in_threads
from cordwood.tiles.tiled_checkpoint import open_tiles

_Key: TypeAlias = tuple[int, int]  # of a tile: its leaf, and its number there
_Encoded: TypeAlias = Mapping[_Key, memoryview]


class Changes(NamedTuple):
    """The changes that deltas make to the tiles that are held, read and not yet applied."""

    versions: Sequence[OpenVersion]
    opened: Sequence[StoredDelta]
    encoded: Sequence[_Encoded]  # of each delta


class HeldVersion:
    """Some tiles of a version. They are changed in place, and never given away.

    Args:
        whole: a whole version, open.

    Attributes:
        step: the number of the version.
        digest: its digest.
        tree: its tiles and values.
    """

    def __init__(self, whole: OpenVersion) -> None:
        index = whole.reader.index
        specs = stored_specs(whole.reader, index.leaves)
        self.step = whole.step
        self.digest = whole.record.digest
        self.tree: TiledTree = tile_tree(index.structure, specs, whole.record.cuts)
        self._naming: Naming = index.naming
        self._tiles: dict[_Key, np.ndarray] = {}
        self._fetch: Callable[[Sequence[_Key]], None] | None = None

    def reader(self) -> LeafReader:
        """Return a reader of the tree, as of a checkpoint. Tiles that are not held are fetched."""
        tree = self.tree
        keys = tree.keys()
        return open_tiles(
            f"version {self.step}",
            "packs",
            tree.structure,
            tree.specs,
            [[(leaf, tree.box(leaf, tile))] for leaf, tile in keys],
            lambda number: self._bytes_of(*keys[number]),
            prepare=lambda numbers: self._require([keys[number] for number in numbers]),
            naming=self._naming,
            metadata={},
        )

    def _bytes_of(self, leaf: int, tile: int) -> np.ndarray:
        data = self._tiles.get((leaf, tile))
        if data is not None:
            return data
        # A load has asked for its tiles by `_require`. It reads small gaps too, and drops them.
        size = element_count(self.tree.box(leaf, tile))
        return np.zeros(size * dtypes.itemsize(self.tree.specs[leaf].dtype), np.uint8)

    def open_deltas(self, deltas: Sequence[OpenVersion]) -> list[StoredDelta]:
        """Return deltas that follow one another, from this version on.

        Raises CorruptionError if one of them does not fit.
        """
        opened: list[StoredDelta] = []
        tree = self.tree
        for each in deltas:
            try:
                delta = StoredDelta(each.reader, each.record, tree.structure, tree.specs)
            except MismatchError as e:
                raise CorruptionError(str(e)) from e
            if delta.tree.leaves != tree.leaves:
                raise CorruptionError(f"{each.reader.path} has other tiles than its base")
            opened.append(delta)
            tree = delta.tree
        return opened

    def fetch_from(self, whole: OpenVersion, deltas: Sequence[OpenVersion]) -> None:
        """Become the version of the last delta, whose tiles are fetched once they are needed.

        Nothing may be held yet. All versions stay open until `stop_fetching`.
        """
        opened = self.open_deltas(deltas)
        leaves = whole.reader.index.leaves

        def fetch(keys: Sequence[_Key]) -> None:
            boxes = {
                leaf: [self.tree.box(leaf, tile) for tile in tiles]
                for leaf, tiles in _by_leaf(keys).items()
            }
            arrays = read_boxes(whole.reader, leaves, boxes)
            for key, array in zip(keys, arrays, strict=True):
                self._tiles[key] = array.reshape(-1).view(np.uint8)
            self._apply(opened, _read(opened, keys), keys)

        self._fetch = fetch
        self._become(deltas, opened)

    def stop_fetching(self) -> None:
        """Let nothing be fetched any more."""
        self._fetch = None

    def read_changes(self, deltas: Sequence[OpenVersion]) -> Changes:
        """Return the changes that deltas after this version make to what is held."""
        opened = self.open_deltas(deltas)
        return Changes(deltas, opened, _read(opened, sorted(self._tiles)))

    def change(self, changes: Changes) -> None:
        """Become the version of the last delta. After an error the tiles are of no version.

        Raises CorruptionError if a tile does not match its digest.
        """
        self._apply(changes.opened, changes.encoded, sorted(self._tiles))
        self._become(changes.versions, changes.opened)

    def _become(self, deltas: Sequence[OpenVersion], opened: Sequence[StoredDelta]) -> None:
        if deltas:
            self.tree = opened[-1].tree
            self.step, self.digest = deltas[-1].step, deltas[-1].record.digest

    def _apply(
        self, deltas: Sequence[StoredDelta], encoded: Sequence[_Encoded], keys: Sequence[_Key]
    ) -> None:
        def apply(leaf: int, tile: int) -> None:
            data = self._tiles[leaf, tile]
            for delta, changes in zip(deltas, encoded, strict=True):
                delta.apply(leaf, tile, changes.get((leaf, tile)), data)

        if deltas:
            map_in_threads(apply, list(keys))

    def _require(self, keys: Sequence[_Key]) -> None:
        """Fetch the tiles of a read that are not held. Raises NotHeldError if they cannot be."""
        missing = [key for key in keys if key not in self._tiles]
        if not missing:
            return
        if self._fetch is None:
            raise NotHeldError
        self._fetch(missing)


def _read(deltas: Sequence[StoredDelta], keys: Sequence[_Key]) -> list[_Encoded]:
    """Return the encoded tiles of each delta."""
    tiles = _by_leaf(keys)
    return [delta.read(tiles) for delta in deltas]


def _by_leaf(keys: Sequence[_Key]) -> dict[int, list[int]]:
    return {leaf: [tile for _, tile in group] for leaf, group in groupby(keys, itemgetter(0))}


class NotHeldError(Exception):
    """A read needs tiles that are not held: it is for another part of the tree than before."""
