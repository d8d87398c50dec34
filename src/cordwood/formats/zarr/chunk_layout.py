"""The order, encoding and compression of the elements in the chunks of an array."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cordwood import dtypes
from cordwood.formats.zarr.chunk_grid import leading_bytes
from cordwood.formats.zarr.metadata_v2 import ArrayMetadata, codec_of
from cordwood.index import Box, Encoded, Piece, Pieces


def chunk_storage(metadata: ArrayMetadata, chunks: Sequence[Piece]) -> Pieces | Encoded:
    """Byte ranges where the chunks are raw and nothing lies between their elements.

    Args:
        metadata: of the array, which may have more axes than the leaf.
        chunks: each whole as it is stored, and the part of the leaf that it holds.
    """
    if not chunks:
        return Pieces(())
    assert isinstance(chunks[0].where, Box)
    axes = len(chunks[0].where.start)
    extents, beyond = metadata.chunks[:axes], metadata.chunks[axes:]
    if metadata.compressor is None and metadata.order == "C" and not metadata.big_endian:
        item = dtypes.itemsize(metadata.dtype) * math.prod(beyond)
        ranges = []
        for chunk in chunks:
            assert isinstance(chunk.where, Box)
            length = leading_bytes(chunk.where, extents, item)
            if length is None:
                break
            ranges.append(chunk._replace(length=length))
        else:
            return Pieces(tuple(ranges))
    return Encoded(tuple(chunks), extents, codec_of(metadata))
