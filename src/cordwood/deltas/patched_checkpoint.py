"""A delta over its base, read as the checkpoint of the new version; each tile when it is needed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cordwood.deltas.stored_delta import StoredDelta, require_delta, require_tree
from cordwood.deltas.stored_specs import read_boxes, stored_specs
from cordwood.deltas.tiled_checkpoint import open_tiles
from cordwood.loading.leaf_reader import LeafReader

_RECENT = 24  # tiles: the threads of a load read several at a time, and come back to each


def open_patched(base: LeafReader, delta: LeafReader) -> LeafReader:
    """Return a reader of the version that a delta makes of its base. Both stay open.

    Raises:
        FormatError: there is no delta.
        MismatchError: it is a delta of another tree, or the base is a delta.
    """
    require_tree(base)
    leaves = base.index.leaves
    specs = stored_specs(base, leaves)
    stored = StoredDelta(delta, require_delta(delta), base.index.structure, specs)

    @lru_cache(_RECENT)
    def tile(leaf: int, number: int) -> np.ndarray:
        (data,) = read_boxes(base, leaves, {leaf: [stored.tree.box(leaf, number)]})
        encoded = stored.read({leaf: [number]}).get((leaf, number))
        stored.apply(leaf, number, encoded, data)
        return data.reshape(-1).view(np.uint8)

    return open_tiles(
        f"{base.path} with {delta.path}",
        base.index.format,
        stored.tree,
        tile,
        naming=base.index.naming,
        metadata=stored.record.metadata,
    )
