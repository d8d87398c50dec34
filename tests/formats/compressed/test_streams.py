"""gzip and zstd streams: deterministic, bounded, and damaged in every way."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood import msgpack
from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.flax_msgpack.compress import compress
from cordwood.formats.flax_msgpack.decompress import (
    CompressedDataError,
    decompress,
    decompress_into,
    default_limit,
)
from cordwood.formats.flax_msgpack.value_size import ValueSize
from cordwood.io.memory_file import MemoryFile
from cordwood.testing import strategies as some
from tests.memory import traced_memory

KINDS = ["gz", "zst"]


def packed(data: bytes, kind: str) -> bytes:
    return b"".join(compress([data], kind))


def unpacked(data: bytes, kind: str, *, max_bytes: int | None = None) -> bytes:
    return bytes(decompress(MemoryFile(data, "x"), kind, max_bytes=max_bytes).map())


def sample(size_bytes: int) -> bytes:
    return np.random.default_rng(0).integers(0, 9, size_bytes, np.uint8).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_bytes", [0, 1, 1000, (1 << 20) - 1, (3 << 20) + 1])
def test_a_compressed_stream_decompresses_to_its_data(kind: str, size_bytes: int) -> None:
    data = sample(size_bytes)
    stream = packed(data, kind)
    assert unpacked(stream, kind) == data
    other = gzip.decompress if kind == "gz" else _zstd
    assert other(stream) == data


def _zstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        return reader.read()


def test_streams_of_gzip_and_zstandard_are_decompressed() -> None:
    data = sample(100_000)
    assert unpacked(gzip.compress(data, 9), "gz") == data
    assert unpacked(gzip.compress(data) + gzip.compress(data) + b"\0" * 100, "gz") == data * 2
    assert unpacked(zstandard.compress(data), "zst") == data
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    frames = zstandard.compress(data) + skippable + zstandard.compress(data)
    assert unpacked(frames, "zst") == data * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_split_into_chunks_does_not_show(kind: str) -> None:
    data = sample(100_000)
    chunks: list[bytes | memoryview] = [data[:1], b"", data[1:70_000], memoryview(data)[70_000:]]
    assert b"".join(compress(chunks, kind)) == packed(data, kind)


def test_gzip_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9)
    first = msgpack.compress_bytes(b"x" * 1000)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert msgpack.compress_bytes(b"x" * 1000) == first
    assert first[:10].hex() == "1f8b08000000000000ff"


def test_zstd_frames_carry_checksum_and_size() -> None:
    stream = b"".join(compress([b"x" * 1000], "zst", size_bytes=1000))
    parameters = zstandard.get_frame_parameters(stream)
    assert parameters.has_checksum
    assert parameters.content_size == 1000
    assert zstandard.get_frame_parameters(packed(b"x", "zst")).has_checksum


def test_chunks_are_asked_for_one_by_one() -> None:
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        for _ in range(50):
            asked += 1
            yield np.random.default_rng(asked).bytes(1 << 20)

    stream = compress(chunks(), "zst")
    assert asked == 0
    assert next(stream)
    assert asked < 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_refused(kind: str) -> None:
    stream = packed(sample(1000), kind)
    for length in range(len(stream)):
        with pytest.raises((TruncatedError, CompressedDataError), match=r"^x: "):
            unpacked(stream[:length], kind)
    with pytest.raises(TruncatedError, match="has no end; copy or save it again"):
        unpacked(stream[:-1], kind)
    with pytest.raises(EOFError):
        unpacked(stream[:-1], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_detected_or_harmless(kind: str) -> None:
    data = sample(3000)
    stream = packed(data, kind)
    harmless = set()
    for bit in range(8 * len(stream)):
        damaged = bytearray(stream)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert unpacked(bytes(damaged), kind) == data
        except (CorruptionError, FormatError):
            continue
        harmless.add(bit // 8)
    assert len(harmless) < 20  # the header's time and system, and bits that nothing reads


CASES: dict[str, tuple[str, bytes, type[Exception], str]] = {
    "gz empty": ("gz", b"", TruncatedError, "x: byte 0: expected a gzip stream, found an empty"),
    "gz text": (
        "gz",
        b"hello",
        CompressedDataError,
        "byte 0: expected a gzip stream, found 68656c",
    ),
    "gz tail": ("gz", packed(b"a", "gz") + b"tail", CompressedDataError, "found 7461696c"),
    "gz checksum": (
        "gz",
        packed(b"a", "gz")[:-8] + b"\0" * 8,
        CompressedDataError,
        "the gzip stream that begins at byte 0 is damaged",
    ),
    "gz of zstd": ("gz", packed(b"a", "zst"), CompressedDataError, "found 28b52ffd"),
    "gz method": ("gz", b"\x1f\x8b\x07" + b"\0" * 20, CompressedDataError, "is damaged"),
    "zst empty": ("zst", b"", TruncatedError, "expected a zstd stream, found an empty file"),
    "zst text": ("zst", b"hello", CompressedDataError, "byte 0: expected a zstd stream"),
    "zst tail": ("zst", packed(b"a", "zst") + b"\0\0", CompressedDataError, "found 0000"),
    "zst checksum": (
        "zst",
        packed(b"a", "zst")[:-4] + b"\0" * 4,
        CompressedDataError,
        "the zstd stream that begins at byte 0 is damaged",
    ),
    "zst of gzip": ("zst", packed(b"a", "gz"), CompressedDataError, "found 1f8b0800"),
    "zst wide window": (
        "zst",
        b"\x28\xb5\x2f\xfd\x00\xff\x01\x00\x00",
        CompressedDataError,
        "is damaged",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_stream_is_refused(case: str) -> None:
    kind, data, error, message = CASES[case]
    with pytest.raises(error, match=re.escape(message)):
        unpacked(data, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused_in_little_memory(kind: str) -> None:
    bomb = b"".join(compress((bytes(1 << 20) for _ in range(256)), kind))
    assert len(bomb) < 300_000
    with (
        traced_memory() as memory,
        pytest.raises(LimitError, match="to more than 1000000 bytes; pass max_bytes"),
    ):
        unpacked(bomb, kind, max_bytes=1_000_000)
    assert memory.peak_bytes < 40 << 20
    assert len(unpacked(bomb, kind, max_bytes=256 << 20)) == 256 << 20


class Steps:
    """A sink that records the bytes that it receives."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.sizes: list[int] = []
        self.longest = 0

    def reserve(self, size_bytes: int) -> None:
        self.sizes.append(size_bytes)

    def append(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self.longest = max(self.longest, len(data))


MIB = 1 << 20


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_value_is_bounded(
    kind: str, has_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordwood.formats.flax_msgpack.decompress.SLACK_BYTES", 2 * MIB)
    value = msgpack.to_bytes({"w": np.arange(1000), "n": {"a": [1, "b", None]}})
    chunks = [value, *[bytes(MIB)] * 64]
    size = len(value) + (64 << 20) if has_size else None
    stream = b"".join(compress(chunks, kind, size_bytes=size))
    steps = Steps()
    message = f"^x: byte {len(value)}: expected the end of the data, found more than {2 * MIB} "
    with pytest.raises(FormatError, match=message):
        decompress_into(
            steps,
            MemoryFile(stream, "x"),
            kind,
            max_bytes=None,
            size_reader=ValueSize(),
        )
    assert steps.size_bytes <= 8 * MIB


def test_a_frame_that_tells_less_than_what_it_holds_is_refused_at_once() -> None:
    """A stream of 131 kB: 4 GiB of zeros, of a bytes value that is longer."""
    head = b"\x82\xa1a\x01\xa1w\xc6\xff\xff\xff\xff"
    size = 32_767 * (128 << 10)
    blocks = (1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    first = (len(head) << 3).to_bytes(3, "little") + head
    last = (1 | 1 << 1 | (128 << 10) - len(head) << 3).to_bytes(3, "little") + b"\0"
    frame = b"\x28\xb5\x2f\xfd\xc0\x58" + size.to_bytes(8, "little")
    stream = frame + first + blocks * 32_766 + last
    assert len(stream) < 132_000
    steps = Steps()
    with pytest.raises(CompressedDataError, match="truncated or damaged"):
        decompress_into(steps, MemoryFile(stream), "zst", max_bytes=None, size_reader=ValueSize())
    assert steps.size_bytes <= 4 * MIB


def test_frames_that_do_not_tell_their_size_may_grow_less() -> None:
    """The same, where the frame does not tell: at most 256 MiB are taken for 131 kB."""
    head = b"\x81\xa1w\xc6\xff\xff\xff\xff"
    first = (len(head) << 3).to_bytes(3, "little") + head
    blocks = (1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    stream = b"\x28\xb5\x2f\xfd\x00\x58" + first + blocks * 32_000 + b"\x01\0\0"
    steps = Steps()
    with pytest.raises(LimitError, match=f"more than {256 * MIB} bytes; pass max_bytes"):
        decompress_into(steps, MemoryFile(stream), "zst", max_bytes=None, size_reader=ValueSize())
    assert steps.size_bytes <= 256 * MIB
    with pytest.raises(LimitError, match=f"more than {5 * MIB} bytes; pass max_bytes"):
        decompress_into(
            Steps(), MemoryFile(stream), "zst", max_bytes=5 * MIB, size_reader=ValueSize()
        )
    decompress_into(Steps(), MemoryFile(stream), "zst", max_bytes=5 << 30, size_reader=ValueSize())


@given(tree=some.trees("msgpack"), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_an_outline_tells_the_size(tree: object, sizes: list[int]) -> None:
    data = msgpack.to_bytes(tree)
    outline = ValueSize()
    at = 0
    for size in [*sizes, len(data)]:
        outline.feed(data[at : at + size])
        at += size
        assert outline.is_known
        assert outline.least_bytes <= len(data)
        assert not outline.is_whole or outline.least_bytes == len(data)
    assert outline.is_whole
    outline.feed(b"\xc1 what follows")
    assert outline.is_known


class CountedFile(MemoryFile):
    """Counts the bytes that are read."""

    count = 0

    def read(self, offset: int, length: int) -> bytes:
        self.count += length
        return super().read(offset, length)


@pytest.mark.parametrize("kind", KINDS)
def test_many_short_streams_are_not_read_again_and_again(kind: str) -> None:
    stream = gzip.compress(b"") if kind == "gz" else b"\x50\x2a\x4d\x18\0\0\0\0"
    data = stream * 2000 + packed(b"abc", kind)
    file = CountedFile(data)
    assert decompress(file, kind, max_bytes=None).read(0, 3) == b"abc"
    assert file.count < 2000 * 2048 + len(data)


def test_an_outline_ends_where_it_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.formats.flax_msgpack.value_size.MAX_HEADERS", 9)
    for data in (b"\x92\xc1\xc1", b"\xdc\xff\xff" + bytes(20)):
        outline = ValueSize()
        outline.feed(data)
        assert not outline.is_known
        assert not outline.is_whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_decompressed_in_small_steps(kind: str) -> None:
    zeros, noise = bytes(1 << 20), np.random.default_rng(0).bytes(3 << 20)
    for chunks in ([zeros] * 64, [noise], [zeros] * 9 + [noise] + [zeros] * 9, [noise[:1000], b""]):
        size = sum(map(len, chunks))
        for stated_size in (size, None):
            stream = b"".join(compress(chunks, kind, size_bytes=stated_size))
            steps = Steps()
            decompress_into(steps, MemoryFile(stream * 2), kind, max_bytes=None)
            assert steps.size_bytes == 2 * size
            assert steps.longest <= 4 << 20
            assert steps.sizes == ([size, size] if kind == "zst" and stated_size else [])


def test_blocks_of_every_kind() -> None:
    """Raw, runs of one byte, and sizes that no block can have."""
    head = b"\x28\xb5\x2f\xfd\x00\x58"  # a window of 2 MiB, no size, no checksum

    def block(kind: int, size: int, data: bytes, *, last: bool = False) -> bytes:
        return (last | kind << 1 | size << 3).to_bytes(3, "little") + data

    blocks = [block(1, 128 << 10, b"a")] * 50 + [block(0, 5, b"bcdef")] + [block(0, 0, b"")] * 99
    stream = head + b"".join(blocks) + block(1, 3, b"z", last=True)
    expected = b"a" * (50 * 128 << 10) + b"bcdef" + b"zzz"
    assert unpacked(stream, "zst") == _zstd(stream) == expected
    assert unpacked(stream + packed(b"more", "zst"), "zst") == expected + b"more"
    for bad in (block(1, (1 << 21) - 1, b"a"), block(2, (1 << 21) - 1, b""), block(3, 9, b"a")):
        with pytest.raises((CompressedDataError, TruncatedError), match="that begins at byte 0"):
            unpacked(head + bad + bytes(99), "zst")


def test_the_limit_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_limit(1) == 4 << 30
    assert default_limit(1 << 30) == 1100 << 30
    monkeypatch.setattr("cordwood.formats.flax_msgpack.decompress.MIN_LIMIT_BYTES", 1000)
    assert default_limit(1) == 1100
    bomb = packed(bytes(8 << 20), "zst")
    with pytest.raises(LimitError, match=f"decompresses to more than {1100 * len(bomb)} bytes"):
        unpacked(bomb, "zst")


def test_damage_is_a_bad_gzip_file_to_those_who_catch_that() -> None:
    stream = bytearray(msgpack.to_compressed_bytes({"w": np.arange(1000)}))
    stream[-6] ^= 1
    for error in (gzip.BadGzipFile, CorruptionError, ValueError, OSError):
        with pytest.raises(error, match="incorrect data check"):
            msgpack.decompress_bytes(stream)
        with pytest.raises(error, match="incorrect data check"):
            msgpack.from_compressed_bytes(None, stream)
    with pytest.raises(LimitError, match="more than 99 bytes"):
        msgpack.decompress_bytes(msgpack.compress_bytes(bytes(100)), max_bytes=99)


@pytest.mark.parametrize("call", [compress, decompress])
def test_an_unknown_kind_of_compression_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match='expected "gz" or "zst", found \'xz\''):
        (
            compress([b""], "xz")
            if call is compress
            else decompress(MemoryFile(b""), "xz", max_bytes=None)
        )


def test_a_declared_size_past_the_limit_is_refused_before_anything_is_decompressed() -> None:
    stream = b"".join(compress([bytes(5000)], "zst", size_bytes=5000))
    expected = "x: decompresses to 5000 bytes, and at most 4999 are accepted; pass max_bytes=5000"
    with pytest.raises(LimitError, match=expected):
        unpacked(stream[:-1], "zst", max_bytes=4999)
    assert unpacked(stream, "zst", max_bytes=5000) == bytes(5000)
    with pytest.raises(LimitError, match="decompresses to 10000 bytes"):
        unpacked(stream * 2, "zst", max_bytes=5000)


def test_what_was_under_a_checksum_is_counted() -> None:
    plain = zstandard.ZstdCompressor(write_checksum=False).compress(bytes(100))
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    for stream, kind, checked in [
        (packed(bytes(1000), "zst"), "zst", 1000),
        (packed(bytes(1000), "gz"), "gz", 1000),
        (plain, "zst", 0),
        (plain + skippable + packed(bytes(1000), "zst"), "zst", 1000),
    ]:
        assert decompress(MemoryFile(stream), kind, max_bytes=None).checked_bytes == checked


def test_what_is_read_once_is_given_back() -> None:
    data = sample(3 << 20)
    stream = MemoryFile(packed(data, "zst"))
    file = decompress(stream, "zst", max_bytes=None, read_once=True)
    part = bytearray(2 << 20)
    file.read_into(100, [memoryview(part)])
    assert part == data[100 : 100 + len(part)]
    remaining = bytes(file.map())
    page = 4096
    assert remaining[:page] == data[:page]  # half of it was not read
    assert remaining[page : 2 << 20] == bytes((2 << 20) - page)
    assert remaining[(2 << 20) + page :] == data[(2 << 20) + page :]
    kept = decompress(stream, "zst", max_bytes=None)
    kept.read_into(100, [memoryview(part)])
    assert kept.map() == data


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_stream_of_empty_frames_is_refused_at_once(tmp_path: Path, suffix: str) -> None:
    compress = gzip.compress if suffix == "gz" else zstandard.ZstdCompressor().compress
    path = tmp_path / f"x.msgpack.{suffix}"
    stream = compress(b"") * 300_000
    with pytest.raises(LimitError, match="MAX_EMPTY_FRAMES"):
        decompress(MemoryFile(stream), suffix, max_bytes=None)
    path.write_bytes(stream)
    with pytest.raises(FormatError):
        cordwood.load(path)
    parts = [cordwood.to_bytes({"a": np.arange(2000.0)})[i : i + 8] for i in range(0, 16_100, 8)]
    path.write_bytes(b"".join([compress(b"") + compress(part) for part in parts]))
    assert cordwood.load(path)["a"][1999] == 1999
