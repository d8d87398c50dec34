"""One array of a checkpoint: its shape and dtype, and where its elements are."""

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
from cordwood.io.decode_chunk import decode_chunk
from cordwood.io.scratch_buffer import ScratchBuffer
from cordwood.plan.scatter import Codec, EncodedChunk, Scatter
from cordwood.sharding.boxes import shape_of

MAX_UNSTORED_CHUNKS = 1 << 20  # of an array, where chunks of zeros are left out
MAX_SHARD_INDEX_BYTES = 1 << 24
MAX_ELEMENT_BYTES = 1 << 16  # of a chunk that holds one
_ENTRY = struct.Struct("<QQ")
_ABSENT = (1 << 64) - 1


class StoredArray(NamedTuple):
    """What a leaf is stored as."""

    shape: tuple[int, ...]
    dtype: str
    storage: Pieces | Encoded


class ArrayReader:
    """Looks at the arrays of a tree one after another.

    Args:
        values: where everything is.
        version: of zarr, 2 or 3; None: whichever is there.
        fill: stands for chunks of zeros that were not stored; None: a chunk that is not there is
            an error. Where nothing tells what was left out, an array has all of its chunks or none.

    Attributes:
        unstored: of the arrays that lack chunks, how many.
        assumed: those that have none, and nothing tells that these were zeros.
    """

    def __init__(self, values: KeyValues, version: int | None, fill: ZeroChunks | None) -> None:
        self._values = values
        self._version = version
        self._fill = fill
        self._known: dict[bytes, Array3] = {}
        self.unstored: dict[str, int] = {}
        self.assumed: list[str] = []

    def array(self, name: str) -> StoredArray:
        """The array of a name.

        Raises CorruptionError, FormatError and UnsupportedFormatError, naming the key at fault.
        """
        about = self._metadata(name)
        metadata = about.array
        pieces = [
            Piece(box, place.source, place.offset, place.length)
            for box, place in self._chunks(name, about)
        ]
        if self._fill is not None:
            count = sum([piece.source in self._fill.memory for piece in pieces])
            if count:
                self.unstored[name] = count
        return StoredArray(metadata.shape, metadata.dtype, chunk_storage(metadata, pieces))

    def element(self, array: StoredArray) -> Any:
        """The only element of an array of shape (), a numpy scalar."""
        ((_, source, offset, length),) = array.storage.pieces
        if length > MAX_ELEMENT_BYTES:
            raise LimitError(
                f"a number in {length} bytes; expected at most {MAX_ELEMENT_BYTES} "
                "(MAX_ELEMENT_BYTES)"
            )
        if self._fill is not None and source in self._fill.memory:
            data = bytes(self._fill.memory[source])
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
        places = {}
        for version, file in ((2, METADATA_NAME), (3, METADATA3_NAME)):
            if self._version in (None, version):
                places[file] = self._values.find(_join(name, file))
        for file, place in places.items():
            if place is None:
                continue
            if place.length > MAX_METADATA_BYTES:
                raise LimitError(
                    f"{file}: {place.length} bytes; expected at most {MAX_METADATA_BYTES}"
                )
            data = self._values.read(place, 0, place.length)
            if data not in self._known:
                try:
                    self._known[data] = _parse(data, file)
                except READ_ERRORS as e:
                    raise type(e)(f"{file}: {e}") from e
            return self._known[data]
        raise _missing(" or ".join(places))

    def _chunks(self, name: str, about: Array3) -> Iterator[tuple[Box, ValueLocation]]:
        metadata, shard = about.array, about.shard
        outer = metadata.chunks if shard is None else shard.shape
        chunk_bytes = dtypes.itemsize(metadata.dtype) * math.prod(metadata.chunks)
        there = self._values.names(name, _key_pattern(about))
        fill = self._fill if about.zero_fill else None
        if fill is not None:
            _require_few(chunk_count(metadata.shape, outer) - len(there))
        found = unstored = 0
        for key, box in _keys(about, outer):
            place = self._values.find(_join(name, key)) if key in there else None
            if place is None:
                if fill is None:
                    raise _missing(key)
                if there and not fill.is_told:
                    raise _partly_missing(key)
                unstored += chunk_count(shape_of(box), metadata.chunks)
                _require_few(unstored)
            found += place is not None
            try:
                parts = list(self._parts(place, shard, box, metadata.chunks))
            except READ_ERRORS as e:
                raise type(e)(f"{key}: {e}") from e
            for part, where in parts:
                if where is None and fill is not None:
                    yield part, fill.place(metadata.compressor, chunk_bytes)
                elif where is None:
                    raise _missing(f"a chunk within {key}")
                elif metadata.compressor is None and where.length != chunk_bytes:
                    raise _wrong_size(key, chunk_bytes, where.length)
                else:
                    yield part, where
        if unstored and fill is not None and not fill.is_told:
            self.assumed.append(name)
        if found < len(there):
            wanted = {key for key, _ in _keys(about, outer)}
            raise CorruptionError(
                f"{min(there - wanted)} is no chunk of an array of shape {list(metadata.shape)} in "
                f"chunks of {list(outer)}: it belongs to another checkpoint, or the array's "
                "metadata does; copy it again"
            )

    def _parts(
        self, place: ValueLocation | None, shard: Shard | None, box: Box, inner: tuple[int, ...]
    ) -> Iterator[tuple[Box, ValueLocation | None]]:
        """The chunks that lie under one key, and what of the array each holds."""
        if shard is None:
            yield box, place
            return
        index = b"" if place is None else self._index(place, shard, inner)
        # Those that begin within the array: a shard at its edge may have any number more.
        for _, local in chunks(shape_of(box), inner, "/"):
            part = Box(
                tuple(map(int.__add__, box.start, local.start)),
                tuple(map(int.__add__, box.start, local.stop)),
            )
            if place is None:
                yield part, None
                continue
            number = _number(local.start, inner, shard.shape)
            offset, length = _ENTRY.unpack_from(index, number * _ENTRY.size)
            if offset == length == _ABSENT:
                yield part, None
            elif offset + length > place.length:
                raise TruncatedError(
                    f"expected a chunk of {length} bytes at {offset}, but it ends at "
                    f"{place.length}; copy it again"
                )
            else:
                yield part, ValueLocation(place.source, place.offset + offset, length)

    def _index(self, place: ValueLocation, shard: Shard, inner: tuple[int, ...]) -> bytes:
        """Where the chunks of a shard are: 16 bytes for each."""
        size = _ENTRY.size * chunk_count(shard.shape, inner) + 4 * shard.index_checked
        if size > place.length:
            raise TruncatedError(
                f"expected an index of {size} bytes, found {place.length} in all; copy it again"
            )
        if size > MAX_SHARD_INDEX_BYTES:
            raise LimitError(
                f"an index of {size} bytes; expected at most {MAX_SHARD_INDEX_BYTES} "
                "(MAX_SHARD_INDEX_BYTES)"
            )
        start = 0 if shard.index_first else place.length - size
        index = self._values.read(place, start, start + size)
        if shard.index_checked and not has_valid_crc32c(index):
            raise CorruptionError(
                "the index of its chunks does not match its checksum: it is damaged; copy it again"
            )
        return index


def _number(start: Sequence[int], inner: Sequence[int], shard: Sequence[int]) -> int:
    """The position, in C order, of the chunk of a shard that begins there."""
    number = 0
    for first, extent, whole in zip(start, inner, shard, strict=True):
        number = number * (whole // extent) + first // extent
    return number


def _key_pattern(about: Array3) -> re.Pattern[str]:
    numbers = ["[0-9]+"] * (len(about.array.shape) or not about.key_prefix)
    prefix = [about.key_prefix] if about.key_prefix else []
    return re.compile(re.escape(about.array.separator).join([*prefix, *numbers]))


def _keys(about: Array3, outer: tuple[int, ...]) -> Iterator[tuple[str, Box]]:
    metadata, prefix = about.array, about.key_prefix
    for number, box in chunks(metadata.shape, outer, metadata.separator):
        if not prefix:
            yield number, box
        else:
            yield (f"{prefix}{metadata.separator}{number}" if metadata.shape else prefix), box


def _parse(data: bytes, file: str) -> Array3:
    if file == METADATA3_NAME:
        return parse_metadata3(data)
    metadata = parse_metadata(data)
    # null: TensorStore, which Orbax leaves it to, then stores every chunk.
    return Array3(metadata, None, "", is_zero(json.loads(data).get("fill_value")))


def _join(name: str, key: str) -> str:
    return f"{name}/{key}" if name else key  # the tree itself may be an array


def _missing(what: str) -> CorruptionError:
    return CorruptionError(
        f"{what} is missing: the checkpoint is incomplete; copy it again, or load another one"
    )


def _partly_missing(key: str) -> CorruptionError:
    return CorruptionError(
        f"{key} is missing, and others of the array's chunks are there: the checkpoint is "
        "incomplete; copy it again, or load another one. Where the Orbax that wrote it is known to "
        "have left zeros out, as older ones do without saying so, say it for them: "
        f'"{STORES_ZEROS}": false in {TREE_NAME}'
    )


def _require_few(unstored: int) -> None:
    if unstored > MAX_UNSTORED_CHUNKS:
        raise LimitError(
            f"{unstored} chunks or more are not there; expected at most {MAX_UNSTORED_CHUNKS} of "
            "zeros that were not stored (MAX_UNSTORED_CHUNKS)"
        )


def _wrong_size(key: str, expected: int, found: int) -> FormatError:
    kind = TruncatedError if found < expected else FormatError
    return kind(
        f"{key}: expected {expected} bytes, found {found}: it is damaged, or belongs to another "
        "array; copy it again"
    )
