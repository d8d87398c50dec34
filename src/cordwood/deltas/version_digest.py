"""The digest of a version of a tree."""

from __future__ import annotations

import json

import xxhash

from cordwood.deltas.tile_grid import TiledTree
from cordwood.encoding.json_values import encode_value
from cordwood.index import ARRAY_KINDS
from cordwood.keypath import format_path


def version_digest(tree: TiledTree, digests: bytes) -> str:
    """Return the digest of a version, from its types, its values and the digests of its tiles."""
    lines = [
        [
            format_path(spec.key_path),
            spec.kind,
            spec.dtype,
            spec.shape,
            spec.weak_type,
            spec.prng_impl,
            tiled.cuts if spec.kind in ARRAY_KINDS else encode_value(spec.kind, spec.value),
        ]
        for spec, tiled in zip(tree.specs, tree.leaves, strict=True)
    ]
    state = xxhash.xxh3_128(json.dumps(lines, separators=(",", ":")).encode())
    state.update(digests)
    return state.hexdigest()
