"""A large arranged leaf that is copied to a temporary file, for a writer that needs it in order.

A part of a stacked and transposed leaf reads a little from all over its sources, so that reading
it part by part would read all of them again and again. Here each source is read once, in order.
Its blocks are written to the file as boxes of the arranged leaf, one after another, so that a part
of the leaf is then one range of bytes in each block.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cordwood import dtypes
from cordwood.index import Arranged, ArrangedPart, Box, Leaf, Piece, Pieces, Source
from cordwood.loading.leaf_reader import LeafReader
from cordwood.plan.arrangements import dtype_as_stored, source_blocks
from cordwood.sharding.boxes import element_count, relative, shape_of
from cordwood.storage.locations import LocalPath
from cordwood.storage.scratch.scratch_file import UnnamedTemporaryFile
from cordwood.threads.thread_pool import map_in_threads

_BLOCK_BYTES = 32 << 20


def rearrange_in_file(
    leaf: Leaf, reader: LeafReader, folder: LocalPath, *, block_bytes: int = _BLOCK_BYTES
) -> tuple[Leaf, LeafReader]:
    """Copy the parts of an arranged leaf to a temporary file; return the leaf made of those.

    Args:
        leaf: the leaf, without copies that have to be equal.
        reader: reads it.
        folder: a directory on the disk that holds the file.
        block_bytes: the size of the blocks that are copied.

    Returns:
        The leaf, and the reader of it, which keeps the file.

    Raises:
        StorageError: the disk is full or fails.
        Exception: as the reader does.
    """
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    item = dtypes.itemsize(dtype_as_stored(leaf))
    index = reader.index
    blocks: list[tuple[ArrangedPart, Box, int]] = []  # the last is the offset in the file
    parts: list[ArrangedPart] = []
    end = 0
    for part in storage.parts:
        pieces: list[Piece] = []
        for box in source_blocks(part, item_bytes=item, limit_bytes=block_bytes):
            length = element_count(box) * item
            blocks.append((part, box, end))
            pieces.append(Piece(relative(box, part.box), len(index.sources), end, length))
            end += length
        shape = shape_of(part.box)
        copied = part.leaf._replace(kind="numpy", shape=shape, storage=Pieces(tuple(pieces)))
        axes = tuple(range(len(shape)))
        parts.append(ArrangedPart(copied, shape, (0,) * len(shape), axes, part.box))
    file = UnnamedTemporaryFile(folder, folder.text, purpose="a rearranged array")
    try:
        file.reserve_blocks(end)

        def copy(part: ArrangedPart, box: Box, offset: int) -> None:
            (array,) = reader.read([_split(leaf, part)], {0: [box]})
            file.write_block(array.reshape(-1).view(np.uint8).data, offset)

        map_in_threads(copy, blocks)
        file.finish()
    except BaseException:
        file.close()
        raise
    index = index._replace(sources=(*index.sources, Source(file.name, end)))
    opened = replace(reader.opened, index=index, files=[*reader.files, file])
    result = leaf._replace(storage=storage._replace(parts=tuple(parts)))
    return result, LeafReader(reader.path, opened)


def _split(leaf: Leaf, part: ArrangedPart) -> Leaf:
    """Return the split array of an arranged leaf with one part, as it is stored."""
    assert isinstance(leaf.storage, Arranged)
    storage = Arranged(leaf.storage.shape, (part,))
    return leaf._replace(shape=storage.shape, dtype=part.leaf.dtype, storage=storage)
