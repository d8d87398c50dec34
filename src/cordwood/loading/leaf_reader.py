"""Reading of leaves, or of boxes of them, as arrays: for all forms of storage."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.formats.format_protocol import Opened
from cordwood.index import MAX_DIMS, Arranged, Box, Encoding, Inline, Leaf, Piece, Pieces, Span
from cordwood.io.source_digests import SourceDigests, block_bytes
from cordwood.loading.arranged_arrays import (
    apply_arithmetic,
    as_view,
    dropped_leaf,
    fill_arrays,
    require_equal,
    require_zeros,
)
from cordwood.plan.arrangements import (
    arranged_sources,
    dtype_as_stored,
    in_order,
    is_read_in_place,
    source_of_view,
    with_storages,
)
from cordwood.plan.load_boxes import plan_boxes
from cordwood.plan.load_plan import Placement
from cordwood.plan.select_leaves import SelectedLeaves
from cordwood.sharding.boxes import shape_of, slices, whole_box
from cordwood.storage.locations import Location
from cordwood.threads.import_in_thread import import_in_thread

if TYPE_CHECKING:
    from cordwood.io.execute_load import LoadMemory

Boxes: TypeAlias = Mapping[int, Sequence[Box]]  # of leaves, by position; absent: the whole leaf

_UNPACKED_ELEMENTS = 1 << 20  # whose bits are in memory as bytes; a multiple of 4

WHOLE: Boxes = MappingProxyType({})  # every leaf is read whole

_Memory: TypeAlias = Sequence[np.ndarray] | Mapping[int, np.ndarray]
_ArrayType: TypeAlias = tuple[tuple[int, ...], str, Encoding]  # shape, dtype, stored form


class LeafReader:
    """The open files of a checkpoint, from which leaves are read.

    Attributes:
        path: the path or URL of the checkpoint, for errors.
        location: of the checkpoint; None if it is made of several.
        opened: the index and its sources, open.
        index: the index.
        files: its sources.
        digests: the digests of each source.
        made_of: the paths of the checkpoints from which the leaves are computed, if they are.
    """

    def __init__(self, path: str, opened: Opened, location: Location | None = None) -> None:
        self.path = path
        self.location = location
        self.opened = opened
        self.index = opened.index
        self.files = opened.files
        self.digests = SourceDigests(opened.index.sources, opened.fetch_digests)
        self.made_of: Sequence[str] = ()
        self._parent: LeafReader | None = None
        self._numbers: Sequence[int] = ()

    def mapped(self, leaves: SelectedLeaves) -> LeafReader:
        """Return a reader of the same files, of leaves that were made of those of this index."""
        reader = LeafReader(self.path, self.opened, self.location)
        reader.index, reader.digests = leaves.stored, self.digests
        reader.made_of = self.made_of
        reader._parent = self
        reader._numbers = leaves.numbers or range(len(leaves.stored.leaves))
        return reader

    @cached_property
    def number_of(self) -> Mapping[int, int]:
        """The positions of leaves in the index of the file, by their identity.

        An arranged leaf has the position of one of the leaves that it is made of.
        """
        if self._parent is None:
            return {id(leaf): number for number, leaf in enumerate(self.index.leaves)}
        above = self._parent.number_of
        leaves = self._parent.index.leaves
        result = dict(above)
        for leaf, number in zip(self.index.leaves, self._numbers, strict=True):
            result[id(leaf)] = stored = above[id(leaves[number])]
            if isinstance(leaf.storage, Arranged):  # of a leaf that was renamed first
                for source in arranged_sources(leaf):
                    result.setdefault(id(source), stored)
        return result

    def with_pieces(self, leaves: Sequence[Leaf], boxes: Boxes = WHOLE) -> Sequence[Leaf]:
        """Return leaves of the index with the pieces that are needed to read these boxes of them.

        They are the same leaves, unless the index leaves pieces out because they are many.
        """
        locate = self.opened.locate
        if locate is None:
            return self._in_order(leaves)
        number_of = self.number_of
        requested: dict[int, list[Box] | None] = {}
        for leaf in leaves:
            if isinstance(leaf.storage, Arranged):
                requested |= {number_of[id(source)]: None for source in arranged_sources(leaf)}
        for i, leaf in enumerate(leaves):
            if isinstance(leaf.storage, Arranged):
                continue
            number = number_of[id(leaf)]
            earlier = requested.setdefault(number, [])
            if i not in boxes:
                requested[number] = None
            elif earlier is not None:
                requested[number] = list(dict.fromkeys([*earlier, *boxes[i]]))
        located = locate(requested)
        storages = {
            key: located[number].storage for key, number in number_of.items() if number in located
        }
        return self._in_order([with_storages(leaf, storages) for leaf in leaves])

    def _in_order(self, leaves: Sequence[Leaf]) -> Sequence[Leaf]:
        if self._parent is None:
            return leaves
        return [in_order(leaf) for leaf in leaves]

    def read(
        self,
        leaves: Sequence[Leaf],
        boxes: Boxes = WHOLE,
        *,
        mmap: bool = False,
        verify: bool = True,
        memory: LoadMemory | None = None,
    ) -> list[np.ndarray]:
        """Return arrays: one for each leaf that is read whole, and one for each box of the others.

        Eager arrays own their memory or share an allocation with others, and are writable. Mapped
        arrays are read-only views into the file's mapping; a leaf that is not one raw range is
        read even then. A leaf with packed elements is always read whole.

        Args:
            leaves: leaves that are stored, with their pieces.
            boxes: the boxes to read of leaves, by position.
            mmap: map the files; the caller has checked their digests, if it wants to.
            verify: check the digests of what is read; nothing is checked with `mmap`.
            memory: allocates the memory that is read into; None: new memory.
        """
        if mmap:
            return self._map(leaves, boxes)
        verify = verify or self.opened.always_verify
        if Arranged in map(type, map(itemgetter(4), leaves)):
            return self._read_arranged(leaves, boxes, verify=verify, memory=memory)
        return self._read(leaves, boxes, verify=verify, memory=memory)

    def _read_arranged(
        self, leaves: Sequence[Leaf], boxes: Boxes, *, verify: bool, memory: LoadMemory | None
    ) -> list[np.ndarray]:
        """Return arrays as `read`, of leaves that may be arranged."""
        arranged = [i for i, leaf in enumerate(leaves) if isinstance(leaf.storage, Arranged)]
        whole = {
            id(source): source
            for i in arranged
            for source in arranged_sources(leaves[i])
            if not is_read_in_place(source)
        }
        sources = {
            key: np.asarray(leaf.storage.value)
            for key, leaf in whole.items()
            if isinstance(leaf.storage, Inline)
        }
        extra = [leaf for key, leaf in whole.items() if key not in sources]
        arrays = self._read([*leaves, *extra], boxes, verify=verify, memory=memory)
        sources |= zip(map(id, extra), arrays[len(arrays) - len(extra) :], strict=True)
        result: list[np.ndarray] = []
        first = 0
        for i, leaf in enumerate(leaves):
            some = boxes.get(i, (whole_box(leaf.shape),))
            parts = arrays[first : first + len(some)]
            first += len(some)
            if isinstance(leaf.storage, Arranged):
                fill_arrays(leaf, some, parts, sources)
                parts = [apply_arithmetic(array, leaf) for array in parts]
                for copy in leaf.storage.copies:
                    other = leaf._replace(storage=copy)
                    require_equal(leaf, parts, self.read([other], {0: some}, verify=verify))
                for padding in leaf.storage.dropped:
                    if any(not any(box.start) for box in some):  # once for all parts of a leaf
                        (array,) = self.read([dropped_leaf(padding)], {}, verify=verify)
                        require_zeros(leaf, padding, array)
            result += parts
        return result

    def _read(
        self, leaves: Sequence[Leaf], boxes: Boxes, *, verify: bool, memory: LoadMemory | None
    ) -> list[np.ndarray]:
        """Return arrays as `read`, of arranged leaves without what a plan leaves out of them."""
        # The executor is imported here so that opening an index imports no thread pools.
        if "cordwood.io.execute_load" not in sys.modules:
            import_in_thread("cordwood.io.execute_load")
        from cordwood.io.check_crc32 import check_loaded
        from cordwood.io.execute_load import execute_load

        packed = [i for i in boxes if is_packed(leaves[i])]
        cuts = {i: some for i, some in boxes.items() if i not in packed} if packed else boxes
        sources = self.index.sources
        plan = plan_boxes(
            leaves,
            cuts,
            block_bytes=block_bytes(sources, verify=verify),
        )
        if self.opened.prepare is not None:
            self.opened.prepare(plan)
        buffers = execute_load(plan, self.files, digests=self.digests, verify=verify, memory=memory)
        if verify:
            check_loaded(plan, buffers, sources, self.files)
        arrays = _views(buffers, _array_types(leaves, cuts), plan.placements)
        if not packed:
            return arrays
        remaining = iter(arrays)
        flat = []
        for i in range(len(leaves)):
            for _ in range(len(cuts[i]) if i in cuts else 1):
                array = next(remaining)
                if i in packed and list(boxes[i]) != [whole_box(array.shape)]:
                    flat += [array[slices(box)].copy() for box in boxes[i]]
                else:
                    flat.append(array)
        return flat

    def _map(self, leaves: Sequence[Leaf], boxes: Boxes) -> list[np.ndarray]:
        stored = [source_of_view(leaf) or leaf for leaf in leaves]
        mapped: list[int] = []
        others: list[int] = []
        placements: list[Placement] = []
        for i, leaf in enumerate(stored):
            piece = _only_raw_range(leaf)
            if piece is not None:
                mapped.append(i)
                placements.append(piece[1:])
            else:
                others.append(i)
        maps = {
            source: np.frombuffer(self.files[source].map(), np.uint8)
            for source in {source for source, _, _ in placements}
        }
        arrays = _views(maps, _array_types([stored[i] for i in mapped], WHOLE), placements)
        if not others and not boxes and stored == list(leaves):
            return arrays
        cuts = {n: boxes[i] for n, i in enumerate(others) if i in boxes}
        read_arrays = iter(self.read([leaves[i] for i in others], cuts, verify=False))
        whole = {
            i: array if stored[i] is leaves[i] else as_view(leaves[i], array)
            for i, array in zip(mapped, arrays, strict=True)
        }
        flat: list[np.ndarray] = []
        for i in range(len(leaves)):
            if i not in whole:
                flat += [next(read_arrays) for _ in range(len(boxes[i]) if i in boxes else 1)]
            elif i in boxes:
                flat += [whole[i][slices(box)] for box in boxes[i]]
            else:
                flat.append(whole[i])
        return flat


def is_packed(leaf: Leaf) -> bool:
    """Return True for an array whose elements have fewer than 8 bits, without gaps."""
    storage = leaf.storage
    return isinstance(storage, Pieces) and storage.encoding not in ("raw", "swapped")


def _only_raw_range(leaf: Leaf) -> Piece | None:
    """Return the piece of a leaf that is stored as one range of its bytes; else None."""
    storage = leaf.storage
    if not isinstance(storage, Pieces) or storage.encoding != "raw" or len(storage.pieces) != 1:
        return None
    (piece,) = storage.pieces
    return piece if isinstance(piece.where, Span) or piece.where == whole_box(leaf.shape) else None


def _array_types(leaves: Sequence[Leaf], boxes: Boxes) -> list[_ArrayType]:
    """Return the type of each array to make, those of the first leaf first."""
    whole: list[_ArrayType] = [
        (leaf[2], leaf[3], leaf[4][1])
        if type(leaf[4]) is Pieces
        else (leaf[2], dtype_as_stored(leaf), "raw")
        for leaf in leaves
    ]
    if not boxes:
        return whole
    distinct = {id(some): some for some in boxes.values()}  # shared by leaves that are cut alike
    shapes_of = {key: list(map(shape_of, some)) for key, some in distinct.items()}
    types: list[_ArrayType] = []
    for i, (shape, dtype, encoding) in enumerate(whole):
        shapes = shapes_of[id(boxes[i])] if i in boxes else [shape]
        types += [(each, dtype, encoding) for each in shapes]
    return types


def _views(
    buffers: _Memory, types: Sequence[_ArrayType], placements: Sequence[Placement]
) -> list[np.ndarray]:
    """Return arrays in buffers; they are views unless their elements must be decoded."""
    arrays: list[np.ndarray] = []
    first = 0
    while first < len(types):
        end = _end_of_run(types, placements, first)
        arrays += _run(buffers, types[first], placements[first], end - first)
        first = end
    return arrays


def _end_of_run(types: Sequence[_ArrayType], placements: Sequence[Placement], first: int) -> int:
    """Return the end of the run of adjacent arrays of one type that begins at `first`."""
    array_type = types[first]
    if not 0 < len(array_type[0]) < MAX_DIMS:
        return first + 1
    buffer, position, length = placements[first]
    for i in range(first + 1, len(types)):
        position += length
        if types[i] != array_type or placements[i] != (buffer, position, length):
            return i
    return len(types)


def _run(
    buffers: _Memory, array_type: _ArrayType, placement: Placement, count: int
) -> list[np.ndarray]:
    """Return `count` adjacent arrays of one type.

    They are the rows of one array, which numpy makes ten times as fast as single views.
    """
    shape, dtype, encoding = array_type
    buffer, position, length = placement
    if count > 1:
        shape = (count, *shape)
    if 0 in shape:
        whole = np.empty(shape, dtypes.to_numpy(dtype))
    elif encoding == "raw":
        whole = np.ndarray(shape, dtypes.to_numpy(dtype), buffers[buffer], position)
    else:
        raw = buffers[buffer][position : position + count * length]
        whole = decode_elements(raw, encoding, shape, dtype)
    return [whole] if count == 1 else list(whole)


def decode_elements(
    raw: np.ndarray, encoding: Encoding, shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """Return elements from their stored bytes (uint8[bytes]): swapped, or packed into few bits."""
    numpy_dtype = dtypes.to_numpy(dtype)
    if encoding == "swapped":
        return raw.view(numpy_dtype).byteswap(inplace=True).reshape(shape)
    width = int(encoding.removeprefix("packed"))
    elements = np.empty(math.prod(shape), np.uint8)
    for start in range(0, elements.size, _UNPACKED_ELEMENTS):
        part = elements[start : start + _UNPACKED_ELEMENTS]
        stored = raw[start * width // 8 : -(-(start + part.size) * width // 8)]
        bits = np.unpackbits(stored, bitorder="little")[: part.size * width]
        part[:] = np.packbits(bits.reshape(part.size, width), axis=1, bitorder="little")[:, 0]
    return elements.view(numpy_dtype).reshape(shape)
