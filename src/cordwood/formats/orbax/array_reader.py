"""One array of a checkpoint: its shape, its dtype and the locations of its elements."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.orbax.crc32c import has_valid_crc32c
from cordwood.formats.orbax.key_values import READ_ERRORS, KeyValues, ValueLocation
from cordwood.formats.orbax.tree_metadata import STORES_ZEROS, TREE_NAME
from cordwood.formats.orbax.zero_chunks import ZeroChunks
from cordwood.formats.zarr.chunk_grid import chunk_count, chunks
from cordwood.formats.zarr.chunk_layout import chunk_storage
from cordwood.formats.zarr.metadata_v2 import (
    MAX_METADATA_BYTES,
    METADATA_NAME,
    parse_metadata,
)
from cordwood.formats.zarr.metadata_v3 import (
    METADATA3_NAME,
    Array3,
    Shard,
    is_zero,
    parse_metadata3,
)
from cordwood.index import Box, Encoded, Piece, Pieces
from cordwood.io.buffers import ScratchBuffer
from cordwood.io.decode_chunk import decode_chunk
from cordwood.plan.load_plan import Codec, EncodedChunk, Scatter
from cordwood.sharding.boxes import shape_of

MAX_UNSTORED_CHUNKS = 1 << 20  # of an array whose chunks of zeros were not stored
MAX_SHARD_INDEX_BYTES = 1 << 24
MAX_ELEMENT_BYTES = 1 << 16  # of a chunk that holds one element
_ENTRY = struct.Struct("<QQ")
_ABSENT = (1 << 64) - 1


class StoredArray(NamedTuple):
    """The array in which a leaf is stored."""

    shape: tuple[int, ...]
    dtype: str
    storage: Pieces | Encoded


class ArrayReader:
    """A reader of the arrays of one tree, called once for each.

    Args:
        values: the values of the checkpoint.
        version: of zarr, 2 or 3. None: the version of the metadata that exists.
        zero_chunks: replaces chunks of zeros that were not stored. None: a missing chunk is an
            error. If `zero_chunks.is_certain` is False, an array must have all of its chunks or
            none.

    Attributes:
        unstored: the number of missing chunks, by the name of the array.
        assumed: the arrays without any chunk for which nothing says that the chunks were zeros.
    """

    def __init__(
        self, values: KeyValues, version: int | None, zero_chunks: ZeroChunks | None
    ) -> None:
        self._values = values
        self._version = version
        self._zero_chunks = zero_chunks
        self._parsed: dict[bytes, Array3] = {}
        self.unstored: dict[str, int] = {}
        self.assumed: list[str] = []

    def array(self, name: str) -> StoredArray:
        """Return the array called `name`.

        Raises CorruptionError, FormatError and UnsupportedFormatError, which name the key.
        """
        array3 = self._metadata(name)
        metadata = array3.array
        pieces = [
            Piece(box, location.source, location.offset, location.length)
            for box, location in self._chunks(name, array3)
        ]
        if self._zero_chunks is not None:
            count = sum([piece.source in self._zero_chunks.memory for piece in pieces])
            if count:
                self.unstored[name] = count
        return StoredArray(metadata.shape, metadata.dtype, chunk_storage(metadata, pieces))

    def element(self, array: StoredArray) -> Any:
        """Return the only element of an array of shape () as a numpy scalar."""
        ((_, source, offset, length),) = array.storage.pieces
        if length > MAX_ELEMENT_BYTES:
            raise LimitError(
                f"a number in {length} bytes; expected at most {MAX_ELEMENT_BYTES} "
                "(MAX_ELEMENT_BYTES)"
            )
        if self._zero_chunks is not None and source in self._zero_chunks.memory:
            data = bytes(self._zero_chunks.memory[source])
        else:
            data = self._values.read(ValueLocation(source, offset, length), 0, length)
        codec = Codec(None)
        if isinstance(array.storage, Encoded):
            members = json.loads(array.storage.codec)
            codec = Codec(members["compressor"], members["order"], members["swapped"])
        spread = Scatter((), dtypes.itemsize(array.dtype), ())
        chunk = EncodedChunk(source, offset, length, codec, array.dtype, spread)
        name = self._values.sources[source].name
        raw = decode_chunk(chunk, memoryview(data), ScratchBuffer().view, name=name)
        return np.frombuffer(raw, dtypes.to_numpy(array.dtype))[0]

    def _metadata(self, name: str) -> Array3:
        locations = {}
        for version, file in ((2, METADATA_NAME), (3, METADATA3_NAME)):
            if self._version in (None, version):
                locations[file] = self._values.find(_join(name, file))
        for file, location in locations.items():
            if location is None:
                continue
            if location.length > MAX_METADATA_BYTES:
                raise LimitError(
                    f"{file}: {location.length} bytes; expected at most {MAX_METADATA_BYTES}"
                )
            data = self._values.read(location, 0, location.length)
            if data not in self._parsed:
                try:
                    self._parsed[data] = _parse(data, file)
                except READ_ERRORS as e:
                    raise type(e)(f"{file}: {e}") from e
            return self._parsed[data]
        raise _missing(" or ".join(locations))

    def _chunks(self, name: str, array3: Array3) -> Iterator[tuple[Box, ValueLocation]]:
        metadata, shard = array3.array, array3.shard
        outer = metadata.chunks if shard is None else shard.shape
        chunk_bytes = dtypes.itemsize(metadata.dtype) * math.prod(metadata.chunks)
        stored = self._values.keys_below(name, _key_pattern(array3))
        zero_chunks = self._zero_chunks if array3.zero_fill else None
        if zero_chunks is not None:
            _require_few(chunk_count(metadata.shape, outer) - len(stored))
        used = unstored = 0
        for key, box in _keys(array3, outer):
            location = self._values.find(_join(name, key)) if key in stored else None
            if location is None:
                if zero_chunks is None:
                    raise _missing(key)
                if stored and not zero_chunks.is_certain:
                    raise _partly_missing(key)
                unstored += chunk_count(shape_of(box), metadata.chunks)
                _require_few(unstored)
            used += location is not None
            try:
                parts = list(self._parts(location, shard, box, metadata.chunks))
            except READ_ERRORS as e:
                raise type(e)(f"{key}: {e}") from e
            for part, part_location in parts:
                if part_location is None and zero_chunks is not None:
                    yield part, zero_chunks.location(metadata.compressor, chunk_bytes)
                elif part_location is None:
                    raise _missing(f"a chunk within {key}")
                elif metadata.compressor is None and part_location.length != chunk_bytes:
                    raise _wrong_size(key, chunk_bytes, part_location.length)
                else:
                    yield part, part_location
        if unstored and zero_chunks is not None and not zero_chunks.is_certain:
            self.assumed.append(name)
        if used < len(stored):
            expected = {key for key, _ in _keys(array3, outer)}
            raise CorruptionError(
                f"{min(stored - expected)} is not a chunk of an array of shape "
                f"{list(metadata.shape)} in chunks of {list(outer)}: it or the metadata "
                "of the array belongs to another checkpoint; copy it again"
            )

    def _parts(
        self, location: ValueLocation | None, shard: Shard | None, box: Box, inner: tuple[int, ...]
    ) -> Iterator[tuple[Box, ValueLocation | None]]:
        """Yield the chunks stored under one key: the box in the array and the location of each."""
        if shard is None:
            yield box, location
            return
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
        if shard.index_checked and not has_valid_crc32c(index):
            raise CorruptionError(
                "the index of its chunks does not match its checksum: it is damaged; copy it again"
            )
        return index


def _number(start: Sequence[int], inner: Sequence[int], shard: Sequence[int]) -> int:
    """Return the position in C order of the chunk that begins at `start` in its shard."""
    number = 0
    for first, extent, whole in zip(start, inner, shard, strict=True):
        number = number * (whole // extent) + first // extent
    return number


def _key_pattern(array3: Array3) -> re.Pattern[str]:
    numbers = ["[0-9]+"] * (len(array3.array.shape) or not array3.key_prefix)
    prefix = [array3.key_prefix] if array3.key_prefix else []
    return re.compile(re.escape(array3.array.separator).join([*prefix, *numbers]))


def _keys(array3: Array3, outer: tuple[int, ...]) -> Iterator[tuple[str, Box]]:
    metadata, prefix = array3.array, array3.key_prefix
    for number, box in chunks(metadata.shape, outer, metadata.separator):
        if not prefix:
            yield number, box
        else:
            yield (f"{prefix}{metadata.separator}{number}" if metadata.shape else prefix), box


def _parse(data: bytes, file: str) -> Array3:
    if file == METADATA3_NAME:
        return parse_metadata3(data)
    metadata = parse_metadata(data)
    # If the fill value is null, TensorStore stores every chunk.
    return Array3(metadata, None, "", is_zero(json.loads(data).get("fill_value")))


def _join(name: str, key: str) -> str:
    return f"{name}/{key}" if name else key  # the tree itself may be an array


def _missing(what: str) -> CorruptionError:
    return CorruptionError(
        f"{what} is missing: the checkpoint is incomplete; copy it again, or load another one"
    )


def _partly_missing(key: str) -> CorruptionError:
    return CorruptionError(
        f"{key} is missing, but other chunks of the array exist: the checkpoint is "
        "incomplete; copy it again, or load another one. Older versions of Orbax do not store "
        "zeros and do not record it: if such a version wrote this checkpoint, set "
        f'"{STORES_ZEROS}": false in {TREE_NAME}'
    )


def _require_few(unstored: int) -> None:
    if unstored > MAX_UNSTORED_CHUNKS:
        raise LimitError(
            f"{unstored} chunks or more are missing; expected at most {MAX_UNSTORED_CHUNKS} chunks "
            "of zeros that were not stored (MAX_UNSTORED_CHUNKS)"
        )


def _wrong_size(key: str, expected: int, actual: int) -> FormatError:
    kind = TruncatedError if actual < expected else FormatError
    return kind(
        f"{key}: expected {expected} bytes, found {actual}: it is damaged, or belongs to another "
        "array; copy it again"
    )
