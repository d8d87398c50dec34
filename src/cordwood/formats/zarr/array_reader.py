"""One array in chunks, of zarr version 2 or 3: its type, and the byte ranges of its chunks.

The reader knows keys and their values; `key_values` says where values are. It is the same for the
zarr format, for trees of arrays without an index, and for Orbax.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.zarr.array_metadata import ArrayMetadata, Shard, codec_of
from cordwood.formats.zarr.chunk_grid import chunk_count, chunks, leading_bytes
from cordwood.formats.zarr.fill_values import fill_element
from cordwood.formats.zarr.key_values import KeyValues, ValueLocation
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME, parse_metadata
from cordwood.formats.zarr.metadata_v3 import METADATA3_NAME, parse_metadata3
from cordwood.formats.zarr.tensorstore_index import INDEX_NAME
from cordwood.formats.zarr.unstored_chunks import ZeroChunks
from cordwood.index import Box, Encoded, Leaf, Piece, Pieces
from cordwood.io.open_files import naming
from cordwood.keypath import KeyPath
from cordwood.sharding.boxes import shape_of

MAX_UNSTORED_CHUNKS = 1 << 20  # of an array whose chunks of zeros were not stored
MAX_SHARD_INDEX_BYTES = 1 << 24
_ENTRY = struct.Struct("<QQ")
_ABSENT = (1 << 64) - 1


class StoredArray(NamedTuple):
    """An array: its metadata, and each of its chunks whole, as it is stored."""

    metadata: ArrayMetadata
    pieces: tuple[Piece, ...]


class Messages(NamedTuple):
    """The texts of errors about chunks, for `str.format`: a format says what to do next."""

    missing: str  # of {key}
    partly_missing: str = ""  # of {key}, where other chunks exist, if zeros may be left out
    wrong_size: str = (
        "{key}: expected {expected} bytes, found {actual}: it is damaged, or belongs to another "
        "array; copy or save it again"
    )
    extra: str = (
        "{key} is no chunk of an array of shape {shape} in chunks of {chunks}: it, or the metadata "
        "of the array, belongs to another checkpoint; copy or save it again"
    )


class ArrayReader:
    """A reader of the arrays of one tree: for each, `read_metadata`, `parse`, then `pieces`.

    Args:
        values: the values of the checkpoint.
        messages: the texts of errors.
        version: of zarr, 2 or 3. None: the version of the metadata that exists.
        zero_chunks: replaces chunks that were not stored. None: a missing chunk is an
            error. If `zero_chunks.is_certain` is False, an array must have all of its chunks or
            none.
        names_first: compare the names of all chunks before the size of any.

    Attributes:
        unstored: the number of missing chunks, by the name of the array.
        assumed: the arrays with missing chunks for which nothing but the fill value of the array
            says that they were not stored.
    """

    def __init__(
        self,
        values: KeyValues,
        messages: Messages,
        *,
        version: int | None,
        zero_chunks: ZeroChunks | None = None,
        names_first: bool = False,
    ) -> None:
        self._values = values
        self._messages = messages
        self._names = [METADATA_NAME] * (version != 3) + [METADATA3_NAME] * (version != 2)
        self._zero_chunks = zero_chunks
        self._names_first = names_first
        self._parsed: dict[bytes, ArrayMetadata] = {}
        self.unstored: dict[str, int] = {}
        self.assumed: list[str] = []

    def read_metadata(self, array: str) -> tuple[str, bytes]:
        """Return the name of the metadata of an array, and its bytes."""
        for name in self._names:
            data = self._values.metadata(array, name)
            if data is not None:
                return name, data
        raise self._missing(" or ".join(self._names))

    def parse(self, name: str, data: bytes) -> ArrayMetadata:
        """Return the content of metadata, of which arrays of one type have the same."""
        if data not in self._parsed:
            parse = parse_metadata if name == METADATA_NAME else parse_metadata3
            self._parsed[data] = parse(data)
        return self._parsed[data]

    def pieces(self, array: str, metadata: ArrayMetadata) -> tuple[Piece, ...]:
        """Return the chunks of an array. Each is a source of `values`, or a part of one.

        Raises CorruptionError, FormatError and UnsupportedFormatError, which name the key.
        """
        shape, shard = metadata.shape, metadata.shard
        outer = metadata.chunks if shard is None else shard.shape
        count = chunk_count(shape, outer)
        chunk_bytes = dtypes.itemsize(metadata.dtype) * math.prod(metadata.chunks)
        stored = self._values.keys_below(
            array, _key_pattern(len(shape), metadata.separator, metadata.key_prefix)
        )
        if self._names_first and len(stored) > count:
            raise self._extra(stored, metadata, outer)
        if self._names_first and len(stored) < count:
            key = next(key for key, _ in _keys(metadata, outer) if key not in stored)
            self._values.find(array, key)  # its directory may be missing too
            raise self._missing(key)
        may_lack = len(stored) < count or shard is not None
        zero_chunks, element = self._substitute(metadata) if may_lack else (None, b"")
        if zero_chunks is not None:
            _require_few(count - len(stored))
        pieces = []
        used = unstored = zeros = 0
        for key, box in _keys(metadata, outer):
            location = self._values.find(array, key)
            if location is not None:
                used += 1
            elif zero_chunks is None:
                raise self._missing(key)
            elif stored and not zero_chunks.is_certain:
                raise CorruptionError(self._messages.partly_missing.format(key=key))
            else:
                unstored += chunk_count(shape_of(box), metadata.chunks)
                _require_few(unstored)
            for part, place in self._parts(key, location, shard, box, metadata.chunks):
                if place is None:
                    if zero_chunks is None:
                        raise self._missing(f"a chunk within {key}")
                    place = zero_chunks.location(metadata.compressor, chunk_bytes, element)
                    zeros += 1
                elif metadata.compressor is None and place.length != chunk_bytes:
                    raise wrong_size(self._messages, key, chunk_bytes, place.length)
                pieces.append(Piece(part, *place))
        if zeros:
            self.unstored[array] = zeros
        if (
            unstored
            and zero_chunks is not None
            and (not zero_chunks.is_certain or zero_chunks.with_fill_values)
        ):
            self.assumed.append(array)
        if used < len(stored):
            raise self._extra(stored, metadata, outer)
        return tuple(pieces)

    def _substitute(self, metadata: ArrayMetadata) -> tuple[ZeroChunks | None, bytes]:
        """Return what replaces missing chunks, and their elements; None if none may be missing."""
        if self._zero_chunks is None or not self._zero_chunks.with_fill_values:
            return (self._zero_chunks if metadata.zero_fill else None), b""
        element = fill_element(metadata.fill_value, metadata.dtype, big_endian=metadata.big_endian)
        return (None, b"") if element is None else (self._zero_chunks, element)

    def _parts(
        self,
        key: str,
        location: ValueLocation | None,
        shard: Shard | None,
        box: Box,
        inner: tuple[int, ...],
    ) -> Iterator[tuple[Box, ValueLocation | None]]:
        """Yield the chunks stored under one key: the box in the array and the location of each."""
        if shard is None:
            yield box, location
            return
        with naming(key):
            index = b"" if location is None else self._index(location, shard, inner)
            # Only chunks that begin within the array: a shard at its edge may have more.
            for _, local in chunks(shape_of(box), inner, "/"):
                part = Box(
                    tuple(map(int.__add__, box.start, local.start)),
                    tuple(map(int.__add__, box.start, local.stop)),
                )
                if location is None:
                    yield part, None
                    continue
                number = _number(local.start, inner, shard.shape)
                offset, length = _ENTRY.unpack_from(index, number * _ENTRY.size)
                if offset == length == _ABSENT:
                    yield part, None
                elif offset + length > location.length:
                    raise TruncatedError(
                        f"expected a chunk of {length} bytes at {offset}, but the value ends at "
                        f"{location.length}; copy it again"
                    )
                else:
                    yield part, ValueLocation(location.source, location.offset + offset, length)

    def _index(self, location: ValueLocation, shard: Shard, inner: tuple[int, ...]) -> bytes:
        """Read the index of a shard: offset and length of each chunk, 16 bytes per chunk."""
        size = _ENTRY.size * chunk_count(shard.shape, inner) + 4 * shard.index_checked
        if size > location.length:
            raise TruncatedError(
                f"expected an index of {size} bytes, found {location.length} in all; copy it again"
            )
        if size > MAX_SHARD_INDEX_BYTES:
            raise LimitError(
                f"an index of {size} bytes; expected at most {MAX_SHARD_INDEX_BYTES} "
                "(MAX_SHARD_INDEX_BYTES)"
            )
        start = 0 if shard.index_first else location.length - size
        index = self._values.read(location, start, start + size)
        if shard.index_checked and not ends_in_crc32c(index):
            raise CorruptionError(
                "the index of its chunks does not match its checksum: it is damaged; copy it again"
            )
        return index

    def _missing(self, key: str) -> CorruptionError:
        return CorruptionError(self._messages.missing.format(key=key))

    def _extra(
        self, stored: set[str], metadata: ArrayMetadata, outer: tuple[int, ...]
    ) -> CorruptionError:
        expected = {key for key, _ in _keys(metadata, outer)}  # fewer than are stored
        key = min(stored - expected)
        text = self._messages.extra
        return CorruptionError(text.format(key=key, shape=list(metadata.shape), chunks=list(outer)))


def refuse_marked(metadata: ArrayMetadata) -> None:
    """Raise CorruptionError for an array that cordwood wrote, where no index covers it."""
    if metadata.marked:
        raise CorruptionError(
            f"cordwood wrote this array, and its part of {INDEX_NAME} is missing: restore the "
            "index, or save the arrays again"
        )


def leaf_of_array(path: KeyPath, array: StoredArray) -> Leaf:
    """Return the leaf of an array that no table of leaves describes."""
    shape, dtype = array.metadata.shape, array.metadata.dtype
    return Leaf(path, "jax", shape, dtype, array_storage(array, len(shape)))


def wrong_size(messages: Messages, key: str, expected: int, actual: int) -> FormatError:
    """Return the error for a chunk of `actual` bytes."""
    kind = TruncatedError if actual < expected else FormatError
    return kind(messages.wrong_size.format(key=key, expected=expected, actual=actual))


def array_storage(array: StoredArray, axes: int) -> Pieces | Encoded:
    """Return the storage of an array whose first `axes` axes are those of the leaf.

    It is byte ranges where the chunks are raw and there is nothing between their elements.
    """
    metadata, pieces = array
    if not pieces:
        return Pieces(())
    if axes < len(metadata.shape):
        pieces = tuple([piece._replace(where=_leading_axes(piece, axes)) for piece in pieces])
    extents, beyond = metadata.chunks[:axes], metadata.chunks[axes:]
    if metadata.compressor is None and metadata.order == "C" and not metadata.big_endian:
        item = dtypes.itemsize(metadata.dtype) * math.prod(beyond)
        ranges = []
        for piece in pieces:
            assert isinstance(piece.where, Box)
            length = leading_bytes(piece.where, extents, item)
            if length is None:
                break
            ranges.append(piece._replace(length=length))
        else:
            return Pieces(tuple(ranges))
    return Encoded(pieces, extents, codec_of(metadata))


def _leading_axes(piece: Piece, axes: int) -> Box:
    assert isinstance(piece.where, Box)
    return Box(piece.where.start[:axes], piece.where.stop[:axes])


def ends_in_crc32c(data: bytes) -> bool:
    """Return whether the last four bytes are the CRC-32C of the others, little-endian.

    OCDBT nodes and the indexes of zarr shards end in it (RFC 3720, appendix B.4).
    """
    import google_crc32c

    checksum = int.from_bytes(data[-4:], "little")
    return len(data) >= 4 and google_crc32c.value(data[:-4]) == checksum


def _number(start: Sequence[int], inner: Sequence[int], shard: Sequence[int]) -> int:
    """Return the position in C order of the chunk that begins at `start` in its shard."""
    number = 0
    for first, extent, whole in zip(start, inner, shard, strict=True):
        number = number * (whole // extent) + first // extent
    return number


@functools.cache
def _key_pattern(axes: int, separator: str, prefix: str) -> re.Pattern[str]:
    numbers = ["[0-9]+"] * (axes or not prefix)
    return re.compile(re.escape(separator).join([*([prefix] if prefix else []), *numbers]))


def _keys(metadata: ArrayMetadata, outer: tuple[int, ...]) -> Iterator[tuple[str, Box]]:
    shape, prefix, separator = metadata.shape, metadata.key_prefix, metadata.separator
    for number, box in chunks(shape, outer, separator):
        if not prefix:
            yield number, box
        else:
            yield (f"{prefix}{separator}{number}" if shape else prefix), box


def _require_few(unstored: int) -> None:
    if unstored > MAX_UNSTORED_CHUNKS:
        raise LimitError(
            f"{unstored} chunks or more are missing; expected at most {MAX_UNSTORED_CHUNKS} chunks "
            "of zeros that were not stored (MAX_UNSTORED_CHUNKS)"
        )
