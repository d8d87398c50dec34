"""The comparison of two open checkpoints, tile by tile, into the delta between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.deltas.encode_delta import EncodedTile, encode_tiles, tile_digest
from cordwood.deltas.tile_grid import TiledTree, tile_tree
from cordwood.deltas.version_digest import version_digest
from cordwood.errors import MismatchError
from cordwood.formats.version_record import BaseVersion, VersionRecord
from cordwood.index import ARRAY_KINDS, Box, LeafSpec, leaf_text
from cordwood.io.progress import ProgressMeter
from cordwood.keypath import path_label
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.refuse_delta import refuse_delta
from cordwood.loading.stored_specs import read_boxes, stored_specs
from cordwood.message_text import first_lines
from cordwood.sharding.boxes import element_count

_GROUP_BYTES = 32 << 20  # of tiles of each version, read at a time
_MAX_SHOWN = 10
_SAME_KINDS = ("jax", "numpy")  # of arrays with the same elements


class ComparedVersions(NamedTuple):
    """The delta between two checkpoints.

    Attributes:
        tree: the tiles of the new version, and its values.
        tiles: the differences, in the order of the tiles.
        record: the record of the delta.
    """

    tree: TiledTree
    tiles: Sequence[EncodedTile]
    record: VersionRecord


def compare_versions(
    base: LeafReader, target: LeafReader, meter: ProgressMeter | None = None
) -> ComparedVersions:
    """Return the delta from one open checkpoint to another.

    Arrays of numpy and of jax may take each other's place: what the delta makes has the base's.

    Raises MismatchError unless they have the same leaves, of the same kinds, shapes and dtypes.
    """
    refuse_delta(base)
    refuse_delta(target)
    old_leaves, new_leaves = base.index.leaves, target.index.leaves
    old_specs, new_specs = stored_specs(base, old_leaves), stored_specs(target, new_leaves)
    require_same_types(base.path, old_specs, target.path, new_specs)
    kinds = [
        new._replace(kind=old.kind) if new.kind in _SAME_KINDS else new
        for old, new in zip(old_specs, new_specs, strict=True)
    ]
    tree = tile_tree(target.index.structure, kinds, {})
    tiles: list[EncodedTile] = []
    old_digests: list[bytes] = []
    for boxes in _groups(tree):
        old = read_boxes(base, old_leaves, boxes)
        new = read_boxes(target, new_leaves, boxes)
        old_digests += map(tile_digest, old)
        dtypes_of_tiles = [tree.specs[leaf].dtype for leaf, some in boxes.items() for _ in some]
        tiles += encode_tiles(dtypes_of_tiles, old, new)
        if meter is not None:
            meter.advance(sum([array.nbytes for array in new]))
    old_tree = tree._replace(specs=tuple(old_specs))
    base_version = BaseVersion(version_digest(old_tree, b"".join(old_digests)), None)
    digest = version_digest(tree, b"".join([tile.digest for tile in tiles]))
    return ComparedVersions(
        tree, tiles, VersionRecord(digest, base_version, False, {}, target.index.metadata)
    )


def require_same_types(
    old_name: str, old: Sequence[LeafSpec], new_name: str, new: Sequence[LeafSpec]
) -> None:
    """Raise MismatchError unless two trees have the same leaves, of the same types."""
    before = {spec.key_path: _type_text(spec) for spec in old}
    after = {spec.key_path: _type_text(spec) for spec in new}
    if list(before.items()) == list(after.items()):
        return
    lines = [
        f"{path_label(path)}: {before.get(path, 'missing')} -> {after.get(path, 'missing')}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]
    raise MismatchError(
        f"there is no delta from {old_name} to {new_name}: expected the same leaves, of the same "
        f"kinds, shapes and dtypes, found\n{first_lines(lines or ['another order'], _MAX_SHOWN)}"
    )


def _type_text(spec: LeafSpec) -> str:
    if spec.kind not in ARRAY_KINDS:
        return spec.kind
    kind = "array" if spec.kind in _SAME_KINDS else spec.kind
    return f"{kind} {leaf_text(spec)}{' (weak type)' if spec.weak_type else ''}"


def _groups(tree: TiledTree) -> Iterator[dict[int, list[Box]]]:
    """Yield the boxes of all tiles by leaf, some tiles at a time."""
    group: dict[int, list[Box]] = {}
    group_bytes = 0
    for leaf in tree.arrays():
        for box in tree.boxes(leaf):
            group.setdefault(leaf, []).append(box)
            group_bytes += element_count(box) * dtypes.itemsize(tree.specs[leaf].dtype)
            if group_bytes >= _GROUP_BYTES:
                yield group
                group, group_bytes = {}, 0
    if group:
        yield group
