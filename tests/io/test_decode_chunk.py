"""Encoded chunks: decoded whole, refused where they are not what they should be."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import LZ4

from cordwood import dtypes
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.index import Box, Codec, Digests, Encoded, Leaf, Piece
from cordwood.io.chunk_codecs import decode_chunk
from cordwood.io.execute_load import execute_load
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.memory_file import MemoryFile
from cordwood.plan.load_boxes import plan_boxes
from cordwood.plan.load_plan import EncodedChunk, Scatter
from cordwood.sharding.boxes import grid_cells, shape_of, slices, whole_box
from tests.block_digests import digests_of


def blosc(data: bytes) -> bytes:
    context = ts.Context()
    metadata = {
        "shape": [len(data)],
        "chunks": [len(data)],
        "dtype": "|u1",
        "compressor": {"id": "blosc", "cname": "zstd", "shuffle": 2},
    }
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": metadata}
    array = ts.open({**spec, "create": True, "open": True}, context=context).result()
    array.write(np.frombuffer(data, np.uint8)).result()
    store = ts.KvStore.open({"driver": "memory"}, context=context).result()
    decoded: bytes = store.read("0").result().value
    return decoded


def streaming_zstd(data: bytes) -> bytes:
    """Return a frame that does not contain its size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


ENCODERS: dict[str, tuple[str | None, Callable[[bytes], bytes]]] = {
    "raw": (None, bytes),
    "zstd": ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress),
    "zstd of unknown size": ("zstd", streaming_zstd),
    "gzip": ("gzip", gzip.compress),
    "zlib": ("zlib", zlib.compress),
    "bz2": ("bz2", bz2.compress),
    "blosc": ("blosc", blosc),
    "lz4": ("lz4", LZ4().encode),
}


def chunk_of(size: int, codec: Codec) -> EncodedChunk:
    return EncodedChunk(0, 0, 0, codec, "uint8", Scatter((size,), 1, ()))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_a_chunk_of_every_compressor_is_decoded(name: str, size: int) -> None:
    compressor, encode = ENCODERS[name]
    data = np.random.default_rng(0).integers(0, 4, size, np.uint8).tobytes()
    chunk = chunk_of(size, Codec(compressor))
    decoded = decode_chunk(chunk, memoryview(encode(data)), ScratchBuffer(), name="c")
    assert bytes(decoded) == data


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [999, 1001, 0, 100_000_000])
def test_another_size_is_refused(name: str, size: int) -> None:
    """However much a chunk holds, no more than was expected is decompressed."""
    compressor, encode = ENCODERS[name]
    stored = memoryview(encode(bytes(1000)))
    with pytest.raises(CorruptionError, match="c: the chunk at byte 0"):
        decode_chunk(chunk_of(size, Codec(compressor)), stored, ScratchBuffer(), name="c")


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "raw"])
@pytest.mark.parametrize("keep", [0, 1, 5, 20, -1])
def test_a_cut_chunk_is_refused(name: str, keep: int) -> None:
    compressor, encode = ENCODERS[name]
    stored = encode(np.random.default_rng(0).bytes(1000))[:keep]
    with pytest.raises(CorruptionError, match="c: the chunk at byte 0"):
        decode_chunk(
            chunk_of(1000, Codec(compressor)), memoryview(stored), ScratchBuffer(), name="c"
        )


@pytest.mark.parametrize("name", ["zstd", "gzip", "zlib", "bz2", "blosc", "lz4"])
def test_bytes_after_a_chunk_are_refused(name: str) -> None:
    compressor, encode = ENCODERS[name]
    stored = encode(bytes(1000)) + b"more"
    with pytest.raises(CorruptionError, match="c: the chunk at byte 0"):
        decode_chunk(
            chunk_of(1000, Codec(compressor)), memoryview(stored), ScratchBuffer(), name="c"
        )


def frame(data: bytes, *, content_size: bool) -> bytes:
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=content_size)
    return compressor.compress(data)


SKIPPED = b"\x50\x2a\x4d\x18\x03\0\0\0abc"


@pytest.mark.parametrize("content_size", [True, False])
@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda data: data + data, "its frame is followed by more"),
        (lambda data: data + SKIPPED, "its frame is followed by more"),
        (lambda data: SKIPPED + data, "c: the chunk at byte 0"),
        (lambda data: data[:-1], "its frame stops too early"),
        (lambda data: data[:-4], "its frame stops too early"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
    ],
)
@pytest.mark.parametrize("size", [1000, 300_000])
def test_an_altered_frame_of_zstd_is_refused(
    alter: Callable[[bytes], bytes], message: str, size: int, content_size: bool
) -> None:
    """Zeros are one block that repeats a byte; noise is stored raw."""
    for data in (bytes(size), np.random.default_rng(0).bytes(size)):
        stored = frame(data, content_size=content_size)
        chunk = chunk_of(size, Codec("zstd"))
        assert decode_chunk(chunk, memoryview(stored), ScratchBuffer(), name="c") == data
        with pytest.raises(CorruptionError, match=message):
            decode_chunk(chunk, memoryview(alter(stored)), ScratchBuffer(), name="c")


def test_an_unknown_compressor_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="compressed with 'lz5'; expected zstd"):
        decode_chunk(chunk_of(1, Codec("lz5")), memoryview(b"x"), ScratchBuffer(), name="c")


def encoded(
    array: np.ndarray, chunk_shape: Sequence[int], codec: Codec, encode: Callable[[bytes], bytes]
) -> tuple[Leaf, bytes]:
    """Return an array in chunks with bytes between them; chunks at its edges are padded."""
    cuts = [
        tuple(range(0, size, step)) for size, step in zip(array.shape, chunk_shape, strict=True)
    ]
    data = bytearray(b"head")
    pieces = []
    for box in grid_cells(array.shape, tuple(cuts)):
        full = np.full(tuple(chunk_shape), 0, array.dtype)
        full[slices(Box((0,) * array.ndim, shape_of(box)))] = array[slices(box)]
        stored = full.byteswap() if codec.swapped else full
        raw = encode(stored.tobytes(order=codec.order))
        pieces.append(Piece(box, 0, len(data), len(raw)))
        data += raw + b"gap"
    name = dtypes.name_of(array.dtype)
    storage = Encoded(tuple(pieces), tuple(chunk_shape), codec)
    return Leaf(("w",), "numpy", array.shape, name, storage), bytes(data)


def load(
    leaf: Leaf, data: bytes, boxes: Sequence[Box], digests: Digests | None
) -> list[np.ndarray]:
    plan = plan_boxes([leaf], {0: tuple(boxes)}, block_bytes=[1 << 20])
    buffers = execute_load(plan, [MemoryFile(data, "f")], digests=[digests], verify=True)
    dtype = dtypes.to_numpy(leaf.dtype)
    return [
        buffers[buffer][position : position + length].view(dtype).reshape(shape_of(box))
        for box, (buffer, position, length) in zip(boxes, plan.placements, strict=True)
    ]


@settings(max_examples=60)
@given(
    st.data(),
    st.sampled_from(["C", "F"]),
    st.booleans(),
    st.sampled_from(["int16", "float32", "complex64", "int8"]),
    st.sampled_from(["raw", "zstd", "gzip"]),
    st.sampled_from([None, 7, 64]),
)
def test_any_box_of_any_chunks(
    data: st.DataObject, order: Any, swapped: bool, dtype: str, name: str, block: int | None
) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), max_size=3).map(tuple))
    chunk_shape = [data.draw(st.integers(1, 7)) for _ in shape]
    compressor, encode = ENCODERS[name]
    codec = Codec(compressor, order, swapped)
    count = int(np.prod(shape))
    array = np.arange(count).reshape(shape).astype(dtypes.to_numpy(dtype))
    leaf, stored = encoded(array, chunk_shape, codec, encode)
    digests = None if block is None else digests_of(stored[2:], start=2, block_bytes=block)
    cuts = tuple(tuple(sorted({0, data.draw(st.integers(0, n - 1))})) for n in shape)
    boxes = [*grid_cells(shape, cuts), whole_box(shape)]
    for box, decoded in zip(boxes, load(leaf, stored, boxes, digests), strict=True):
        np.testing.assert_array_equal(decoded, array[slices(box)])


def test_damage_in_a_chunk_is_found_before_it_is_decoded() -> None:
    array = np.arange(10_000, dtype=np.int32).reshape(100, 100)
    codec = Codec("zstd")
    leaf, stored = encoded(array, (100, 30), codec, zstandard.ZstdCompressor().compress)
    digests = digests_of(stored, start=0, block_bytes=1000)
    damaged = bytearray(stored)
    at = leaf.storage.pieces[2].offset + 700  # type: ignore[union-attr]
    damaged[at] ^= 1
    with pytest.raises(CorruptionError, match=r"f: bytes \d+ to \d+ do not match"):
        load(leaf, bytes(damaged), [whole_box((100, 100))], digests)
    (message,) = load(leaf, bytes(damaged), [Box((0, 0), (100, 20))], digests)
    np.testing.assert_array_equal(message, array[:, :20])


def test_a_chunk_past_the_end_of_its_file() -> None:
    leaf, stored = encoded(np.zeros((4, 4)), (4, 4), Codec(None), bytes)
    with pytest.raises(TruncatedError, match="f: expected a chunk of 128 bytes at offset 4"):
        load(leaf, stored[:40], [whole_box((4, 4))], None)


def test_a_chunk_that_does_not_fit_its_leaf_is_refused() -> None:
    leaf, stored = encoded(np.zeros((4, 4)), (2, 4), Codec(None), bytes)
    assert isinstance(leaf.storage, Encoded)
    huge = leaf._replace(storage=leaf.storage._replace(chunk_shape=(1 << 20, 1 << 20)))
    with pytest.raises(LimitError, match="w: a chunk of 64 bytes cannot hold 8796093022208"):
        load(huge, stored, [whole_box((4, 4))], None)
    small = leaf._replace(storage=leaf.storage._replace(chunk_shape=(1, 4)))
    with pytest.raises(FormatError, match=r"w: Box.* is no chunk of shape \[1, 4\]"):
        load(small, stored, [whole_box((4, 4))], None)
    missing = leaf._replace(storage=leaf.storage._replace(pieces=leaf.storage.pieces[:1]))
    with pytest.raises(FormatError, match="found 8 of 16 elements"):
        load(missing, stored, [whole_box((4, 4))], None)
