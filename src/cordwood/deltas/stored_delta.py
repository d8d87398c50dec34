"""A delta in a checkpoint: its record, and its encoded tiles, which are read as they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cordwood.deltas.encode_delta import DIGESTS, SIZES, TREE
from cordwood.deltas.tile_encoding import apply_tile, as_words, word_bytes
from cordwood.deltas.tile_grid import tile_tree
from cordwood.deltas.version_digest import version_digest
from cordwood.encoding.digests import DIGEST_BYTES, digest_of
from cordwood.errors import CorruptionError, FormatError, MismatchError
from cordwood.formats.version_record import VersionRecord, version_in
from cordwood.index import ARRAY_KINDS, Box, Leaf, LeafSpec, Structure
from cordwood.keypath import path_label
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_specs import stored_specs


class StoredDelta:
    """An open delta, and the tree that it makes of its base.

    Args:
        reader: the open checkpoint.
        record: its record.
        structure: the structure of the base.
        specs: the types of the leaves of the base.

    Attributes:
        record: its record.
        tree: the tiles of the new version, and its values.

    Raises:
        FormatError: the checkpoint is no delta, or its parts do not fit together.
        MismatchError: it is a delta of another tree.
    """

    def __init__(
        self,
        reader: LeafReader,
        record: VersionRecord,
        structure: Structure,
        specs: Sequence[LeafSpec],
    ) -> None:
        self.path = reader.path
        self.record = record
        self._reader = reader
        leaves = reader.index.leaves
        keys = [leaf.key_path[:1] for leaf in leaves]
        if keys[:2] != [(DIGESTS,), (SIZES,)] or {*keys[2:]} - {(TREE,)}:
            raise FormatError(f"{self.path} does not hold the tables and the tree of a delta")
        head, self._leaves = leaves[:2], leaves[2:]
        self.tree = tile_tree(structure, self._changed_specs(specs), self.record.cuts)
        count = self.tree.tile_count
        digests, sizes = head
        expected = (
            ((DIGESTS,), "uint8", (count, DIGEST_BYTES)),
            ((SIZES,), "uint32", (count,)),
        )
        stored = tuple([(leaf.key_path, leaf.dtype, leaf.shape) for leaf in head])
        if stored != expected:
            raise FormatError(f"{self.path}: expected {expected} for {count} tiles, found {stored}")
        read_digests, read_sizes = reader.read(reader.with_pieces([digests, sizes]))
        self._digests = read_digests.tobytes()
        self._starts = self._tile_starts(read_sizes.astype(np.int64))
        if version_digest(self.tree, self._digests) != self.record.digest:
            raise MismatchError(
                f"{self.path} is a delta of another tree, or its tables are damaged: its digest is "
                "not that of the types, the values and the tiles of the new version"
            )

    def _changed_specs(self, specs: Sequence[LeafSpec]) -> list[LeafSpec]:
        """Return the types of the new version: those of the base, with the values of the delta."""
        if [leaf.key_path for leaf in self._leaves] != [(TREE, *spec.key_path) for spec in specs]:
            raise MismatchError(
                f"{self.path} is a delta of another tree: its leaves have other names than those "
                "of the base"
            )
        stored = stored_specs(self._reader, self._leaves)
        changed = []
        for spec, value in zip(specs, stored, strict=True):
            is_array = spec.kind in ARRAY_KINDS
            if (value.kind, value.dtype) != (("numpy", "uint8") if is_array else (spec.kind, "")):
                raise MismatchError(
                    f"{self.path} is a delta of another tree: {path_label(spec.key_path)} is of "
                    f"the kind {spec.kind}, and the delta has {value.kind} {value.dtype}"
                )
            changed.append(spec if is_array else spec._replace(value=value.value))
        return changed

    def _tile_starts(self, sizes: np.ndarray) -> dict[int, np.ndarray]:
        """Return, for each array, where the encoded tiles begin, and where the last one ends."""
        starts = {}
        for number in self.tree.arrays():
            first, count, _ = self.tree.leaves[number]
            starts[number] = np.concatenate([[0], np.cumsum(sizes[first : first + count])])
            if self._leaves[number].shape != (starts[number][-1],):
                raise FormatError(
                    f"{self.path}: {path_label(self._leaves[number].key_path)}: expected "
                    f"{starts[number][-1]} bytes, found {self._leaves[number].shape}"
                )
        return starts

    @property
    def encoded_bytes(self) -> int:
        """The size of all encoded tiles."""
        return sum([int(starts[-1]) for starts in self._starts.values()])

    def changed_tiles(self, leaf: int) -> list[int]:
        """Return the tiles of a leaf that the delta changes, counted from the first of the leaf."""
        return np.flatnonzero(np.diff(self._starts[leaf])).tolist()

    def read(self, tiles: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], memoryview]:
        """Return encoded tiles by leaf and tile; those that do not change are left out.

        Args:
            tiles: the tiles of leaves, ascending, counted from the first of the leaf.
        """
        leaves: list[Leaf] = []
        boxes: dict[int, list[Box]] = {}
        keys: list[list[tuple[int, int]]] = []  # of each box
        for leaf, numbers in tiles.items():
            starts = self._starts[leaf]
            runs: list[list[int]] = []
            for tile in numbers:
                if starts[tile] == starts[tile + 1]:
                    continue
                if runs and starts[runs[-1][-1] + 1] == starts[tile]:
                    runs[-1].append(tile)
                else:
                    runs.append([tile])
            if runs:
                boxes[len(leaves)] = [
                    Box((int(starts[run[0]]),), (int(starts[run[-1] + 1]),)) for run in runs
                ]
                leaves.append(self._leaves[leaf])
                keys += [[(leaf, tile) for tile in run] for run in runs]
        reader = self._reader
        arrays = reader.read(reader.with_pieces(leaves, boxes), boxes) if leaves else []
        result: dict[tuple[int, int], memoryview] = {}
        for run_keys, array in zip(keys, arrays, strict=True):
            starts = self._starts[run_keys[0][0]]
            origin = starts[run_keys[0][1]]
            for leaf, tile in run_keys:
                a, b = starts[tile] - origin, starts[tile + 1] - origin
                result[leaf, tile] = array.data[a:b]
        return result

    def apply(self, leaf: int, tile: int, encoded: memoryview | None, data: np.ndarray) -> None:
        """Change a tile of the base in place, and check the result against its digest.

        Args:
            leaf: the number of the leaf.
            tile: the tile, counted from the first of the leaf.
            encoded: what `read` returned for it; None: the tile does not change.
            data: its elements, contiguous.

        Raises CorruptionError; the elements may then have any value.
        """
        words = as_words(data, word_bytes(self.tree.specs[leaf].dtype))
        if encoded is not None:
            try:
                apply_tile(encoded, words)
            except CorruptionError as e:
                raise CorruptionError(f"{self._where(leaf, tile)}: {e}") from e
        at = DIGEST_BYTES * (self.tree.leaves[leaf].first + tile)
        if digest_of(words.data) != self._digests[at : at + DIGEST_BYTES]:
            raise CorruptionError(
                f"{self._where(leaf, tile)}: the result does not match its digest: the base is "
                "another version than the delta was made from, or one of them is damaged"
            )

    def _where(self, leaf: int, tile: int) -> str:
        spec, box = self.tree.specs[leaf], self.tree.box(leaf, tile)
        ranges = ",".join([f"{a}:{b}" for a, b in zip(box.start, box.stop, strict=True)])
        return f"{self.path}: {path_label(spec.key_path)}[{ranges}]"


def require_delta(reader: LeafReader) -> VersionRecord:
    """Return the record of a checkpoint that is a delta. Raises FormatError if it is none."""
    record = version_in(reader.index.metadata, reader.path)
    if record is None or record.is_whole:
        raise FormatError(
            f"{reader.path} is no delta: expected a checkpoint that `cordwood delta` or a "
            "WeightPublisher wrote as one"
        )
    return record
