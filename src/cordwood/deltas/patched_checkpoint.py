"""A delta over its base, read as the checkpoint of the new version; each tile when it is needed."""

from __future__ import annotations

import numpy as np

from cordwood.deltas.stored_delta import StoredDelta, require_delta
from cordwood.io.recent_tiles import RecentTiles
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.refuse_delta import refuse_delta
from cordwood.loading.stored_specs import read_boxes, stored_specs
from cordwood.threads.thread_counts import default_threads
from cordwood.tiles.tiled_checkpoint import open_tiles

_RECENT_BYTES = 96 << 20  # the threads of a load read several tiles at a time, and come back


def open_patched(base: LeafReader, delta: LeafReader) -> LeafReader:
    """Return a reader of the version that a delta makes of its base. Both stay open.

    Raises:
        FormatError: there is no delta.
        MismatchError: it is a delta of another tree, or the base is a delta.
    """
    refuse_delta(base)
    leaves = base.index.leaves
    specs = stored_specs(base, leaves)
    stored = StoredDelta(delta, require_delta(delta), base.index.structure, specs)
    tree = stored.tree
    keys = tree.keys()

    def make(number: int) -> np.ndarray:
        leaf, tile = keys[number]
        (data,) = read_boxes(base, leaves, {leaf: [tree.box(leaf, tile)]})
        encoded = stored.read({leaf: [tile]}).get((leaf, tile))
        stored.apply(leaf, tile, encoded, data)
        return data.reshape(-1).view(np.uint8)

    reader = open_tiles(
        f"{base.path} with {delta.path}",
        base.index.format,
        tree.structure,
        tree.specs,
        [[(leaf, tree.box(leaf, tile))] for leaf, tile in keys],
        RecentTiles(make, kept_bytes=_RECENT_BYTES, threads=default_threads()).tile,
        naming=base.index.naming,
        metadata=stored.record.metadata,
    )
    reader.made_of = (base.path, delta.path)
    return reader
