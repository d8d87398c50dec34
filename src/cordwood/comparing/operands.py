"""The operands of a comparison: checkpoints and trees, of which parts of leaves are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from cordwood.index import Arranged, Box, Digests, Index, Inline, Leaf, Piece
from cordwood.io.progress import METER
from cordwood.loading.arranged_arrays import arranged_array
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_leaf import StoredLeaf
from cordwood.plan.rename_paths import Rename
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.plan.split_arrays import Part, group_parts
from cordwood.recipes.map_index import map_index, require_alone
from cordwood.recipes.recipe import Recipe
from cordwood.sharding.boxes import slices
from cordwood.threads.thread_pool import map_in_threads
from cordwood.tree.index_of_tree import index_of_tree
from cordwood.tree.leaves import whole_array

T = TypeVar("T")

_GROUP_BYTES = 32 << 20  # of parts, read at a time

_REMOTE_ADVICE = (
    "diff compares in one process; save it to a directory and compare that with the other one"
)


class StoredRange(NamedTuple):
    """A range of bytes of a source, and what is known about its contents."""

    digests: Digests | None  # of the source
    start: int  # in bytes from the start of the source
    length: int
    source_bytes: int

    def part(self, start: int, length: int) -> StoredRange:
        """Return a part of the range."""
        return self._replace(start=self.start + start, length=length)


class Operand(Protocol):
    """One of the two trees that are compared."""

    name: str
    part: SelectedLeaves  # its leaves, by the names that they are compared by

    @property
    def index(self) -> Index:
        """The index of those leaves."""
        ...

    def pieces(self, number: int) -> Leaf | None:
        """Return a leaf with all its pieces; None if it is not stored in pieces."""

    def stored(self, piece: Piece) -> StoredRange:
        """Return the bytes of a piece of such a leaf."""

    def value(self, number: int) -> object:
        """Return the value of a leaf that is not an array."""

    def read(self, wants: Sequence[tuple[int, Box]]) -> list[np.ndarray]:
        """Return the boxes of array leaves; each request is the number of a leaf and a box.

        Requests for one leaf are adjacent.
        """


def map_parts(
    function: Callable[..., T],
    parts: Iterable[Part],
    tree: Operand,
    other: Operand | None = None,
    partners: Mapping[int, int] | None = None,
) -> Iterator[tuple[Part, T]]:
    """Yield each part, in order, with what a function returns for its box and its elements.

    The parts are read some MiB at a time. The function is called in several threads.

    Args:
        function: called with the box of a part and its elements; if there is another tree, also
            with the elements of that box of the partner of the leaf.
        parts: parts of leaves of the first tree; those of one leaf are adjacent.
        tree: the first tree.
        other: the other tree.
        partners: the positions of its leaves by those of the leaves of the first tree.
    """
    for group in group_parts(parts, _GROUP_BYTES):
        sides = [tree.read([(part.number, part.box) for part in group])]
        if other is not None and partners is not None:
            sides.append(other.read([(partners[part.number], part.box) for part in group]))
        boxes = [part.box for part in group]
        results = map_in_threads(function, list(zip(boxes, *sides, strict=True)))
        del sides  # before the next group is read
        yield from zip(group, results, strict=True)


class CheckpointOperand:
    """A checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        rename: Rename | None = None,
        recipe: Recipe | None = None,
        like: Index | None = None,
    ) -> None:
        self.name = checkpoint.path
        self.part = _mapped(checkpoint.index, rename, recipe, self.name, like)
        self._checkpoint = checkpoint
        self._sizes = [source.size_bytes for source in checkpoint.index.sources]

    @property
    def index(self) -> Index:
        return self.part.stored

    @cached_property
    def _reader(self) -> LeafReader:
        """The reader of the leaves by the names that they are compared by."""
        reader = self._checkpoint._reader
        return reader if self.index is reader.index else reader.mapped(self.part)

    @cached_property
    def _located(self) -> Sequence[Leaf]:
        """The leaves with all their pieces."""
        return self._reader.with_pieces(self.index.leaves)

    def pieces(self, number: int) -> Leaf | None:
        leaf = self._located[number]
        return None if isinstance(leaf.storage, Inline | Arranged) else leaf

    def stored(self, piece: Piece) -> StoredRange:
        digests = self._reader.digests[piece.source]
        return StoredRange(digests, piece.offset, piece.length, self._sizes[piece.source])

    def value(self, number: int) -> object:
        leaf = self.index.leaves[number]
        if isinstance(leaf.storage, Inline) and not leaf.dtype:
            return leaf.storage.value
        return StoredLeaf(leaf, self._reader).load(to="numpy")

    def read(self, wants: Sequence[tuple[int, Box]]) -> list[np.ndarray]:
        boxes: dict[int, list[Box]] = {}  # by number of the leaf
        for number, box in wants:
            boxes.setdefault(number, []).append(box)
        stored = {n: self._located[n] for n in boxes}
        stored = {n: leaf for n, leaf in stored.items() if not isinstance(leaf.storage, Inline)}
        parts = {position: boxes[n] for position, n in enumerate(stored)}
        read = iter(self._reader.read(list(stored.values()), parts))
        return [
            np.asarray(self.value(number))[slices(box)] if number not in stored else next(read)
            for number, box in wants
        ]


class TreeOperand:
    """A tree in memory."""

    def __init__(
        self,
        tree: object,
        rename: Rename | None = None,
        recipe: Recipe | None = None,
        like: Index | None = None,
    ) -> None:
        index = index_of_tree(tree, remote_advice=_REMOTE_ADVICE)
        self.name = "the tree"
        self.part = _mapped(index, rename, recipe, self.name, like)
        self._last: tuple[int, np.ndarray] | None = None

    @property
    def index(self) -> Index:
        return self.part.stored

    def pieces(self, number: int) -> Leaf | None:  # noqa: ARG002
        return None

    def stored(self, piece: Piece) -> StoredRange:
        raise IndexError(piece.source)

    def value(self, number: int) -> object:
        storage = self.index.leaves[number].storage
        assert isinstance(storage, Inline)
        return storage.value

    def read(self, wants: Sequence[tuple[int, Box]]) -> list[np.ndarray]:
        arrays = [self._array(number)[slices(box)] for number, box in wants]
        meter = METER.get()
        if meter is not None:
            meter.advance(sum([array.nbytes for array in arrays]))
        return arrays

    def _array(self, number: int) -> np.ndarray:
        """Return a leaf's elements; the last copy is kept, for the next box of the same leaf."""
        if self._last is None or self._last[0] != number:
            leaf = self.index.leaves[number]
            if isinstance(leaf.storage, Arranged):
                self._last = number, arranged_array(leaf)
            else:
                self._last = number, whole_array(self.value(number))
        return self._last[1]


def _mapped(
    index: Index, rename: Rename | None, recipe: Recipe | None, name: str, like: Index | None
) -> SelectedLeaves:
    if recipe is not None:
        require_alone(recipe, rename=rename)
        return map_index(index, recipe, where=name, like=like)
    return select_leaves(index, select=None, rename=rename, where=name)
