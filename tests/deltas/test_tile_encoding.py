from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood import dtypes
from cordwood.deltas import tile_encoding
from cordwood.deltas.tile_encoding import apply_tile, as_words, encode_tile, word_bytes
from cordwood.errors import CorruptionError, LimitError


def elements(dtype: str, bits: np.ndarray) -> np.ndarray:
    """Return an array of a dtype whose bit patterns are these bytes (uint8)."""
    return bits.view(dtypes.to_numpy(dtype))


def patched(old: np.ndarray, encoded: bytes, dtype: str) -> bytes:
    words = as_words(old.copy(), word_bytes(dtype))
    apply_tile(memoryview(encoded), words)
    return words.tobytes()


def encoded_difference(old: np.ndarray, new: np.ndarray, dtype: str) -> bytes:
    size = word_bytes(dtype)
    return encode_tile(as_words(old, size), as_words(new, size))


@given(
    dtype=st.sampled_from(sorted(dtypes.DTYPES)),
    count=st.integers(0, 3000),
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.0, 0.001, 0.03, 0.5, 1.0]),
    small=st.booleans(),
)
def test_every_bit_pattern_of_every_dtype_comes_back(
    dtype: str, count: int, seed: int, density: float, *, small: bool
) -> None:
    rng = np.random.default_rng(seed)
    item = dtypes.itemsize(dtype)
    old = rng.integers(0, 256, count * item, np.uint8)
    new = old.copy()
    changed = rng.random(count * item) < density
    new[changed] += rng.integers(0, 3 if small else 256, int(changed.sum()), np.uint8)
    encoded = encoded_difference(elements(dtype, old), elements(dtype, new), dtype)
    assert patched(elements(dtype, old), encoded, dtype) == new.tobytes()
    assert (encoded == b"") == (old.tobytes() == new.tobytes())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn"])
def test_nan_payloads_zeros_of_both_signs_and_denormals_come_back(dtype: str) -> None:
    item = dtypes.itemsize(dtype)
    values = np.zeros((8, item), np.uint8)
    values[1, -1] = 0x80  # -0.0
    values[2, 0] = 1  # the smallest denormal
    values[3, 0], values[3, -1] = 1, 0x80
    values[4:, :] = 0xFF  # NaNs of several payloads
    values[5, 0], values[6, 0], values[7, -1] = 0xFE, 0xFD, 0x7F
    for shift in range(8):
        old, new = values.reshape(-1), np.roll(values, shift, axis=0).reshape(-1)
        encoded = encoded_difference(elements(dtype, old), elements(dtype, new), dtype)
        assert patched(elements(dtype, old), encoded, dtype) == new.tobytes()


def test_long_gaps_and_the_last_words_of_an_odd_size() -> None:
    for count in (1, 2, 3, 255, 256, 257, 511, 100_003):
        for last in {0, count // 2, count - 1}:
            old = np.arange(count, dtype=np.uint16)
            new = old.copy()
            new[last] ^= 0x8000
            encoded = encode_tile(old, new)
            words = old.copy()
            apply_tile(memoryview(encoded), words)
            assert (words == new).all()


def test_a_step_of_a_few_percent_needs_about_a_byte_for_each_change() -> None:
    import ml_dtypes

    rng = np.random.default_rng(3)
    masters = rng.standard_normal(1 << 20, np.float32) * np.float32(0.02)
    update = rng.standard_normal(1 << 20, np.float32) * np.float32(8.4e-7)
    old = as_words(masters.astype(ml_dtypes.bfloat16), 2)
    new = as_words((masters - update).astype(ml_dtypes.bfloat16), 2)
    changed = int((old != new).sum())
    assert 0.025 < changed / len(old) < 0.035
    assert len(encode_tile(old, new)) < 1.15 * changed


def test_noise_is_stored_raw() -> None:
    rng = np.random.default_rng(4)
    old, new = rng.integers(0, 1 << 32, (2, 10_000), np.uint32)
    encoded = encode_tile(old, new)
    assert encoded[0] == tile_encoding.RAW
    assert len(encoded) < new.nbytes + 100


def hostile_tiles() -> dict[str, bytes]:
    """Return encoded tiles of 1000 words of two bytes that are damaged, each in its way."""
    compress = tile_encoding._compress
    pack = struct.Struct("<BBI").pack

    def tile(
        gaps: bytes,
        pairs: bytes,
        *planes: bytes,
        count: int,
        kind: int = 1,
        named: int | None = None,
    ) -> bytes:
        frames = [compress(np.frombuffer(each, np.uint8)) for each in (gaps, pairs, *planes)]
        sizes = b"".join(struct.pack("<I", len(frame)) for frame in frames)
        return pack(kind, len(planes) if named is None else named, count) + sizes + b"".join(frames)

    good = tile(b"\1\2", b"\0", count=2)
    return {
        "an unknown kind": tile(b"\1\2", b"\0", count=2, kind=7),
        "too short": good[:5],
        "cut short": good[:-1],
        "more behind it": good + b"\0",
        "no word": tile(b"", b"", count=0),
        "more words than there are": tile(b"\0" * 1001, b"\0" * 501, count=1001),
        "a word behind the last": tile(b"\xff\xff\xff\xfe", b"\0", count=1),
        "more gaps than words": tile(b"\1\2\3", b"\0", count=2),
        "a gap that does not end": tile(b"\1\xff", b"\0", count=2),
        "too many bytes of gaps": tile(b"\1" * 500, b"\0", count=2),
        "too few steps": tile(b"\1\2", b"", count=2),
        "too many steps": tile(b"\1\2", b"\0\0", count=2),
        "a large step without planes": tile(b"\1\2", b"\x0f", count=2),
        "planes without a large step": tile(b"\1\2", b"\0", b"\1", count=2),
        "too many planes": tile(b"\1\2", b"\x0f", b"\1", b"\1", b"\1", count=2),
        "fewer planes than it says": tile(b"\1\2", b"\x0f", count=2, named=200),
        "no frame": pack(1, 0, 2) + struct.pack("<II", 2, 2) + b"\1\2\3\4",
        "a raw tile of another size": b"\2" + compress(np.zeros(1999, np.uint8)),
        "a raw tile that is too large": b"\2" + compress(np.zeros(1 << 22, np.uint8)),
        "a raw tile that is no frame": b"\2abc",
    }


@pytest.mark.parametrize("what", hostile_tiles())
def test_damaged_tiles_are_refused(what: str) -> None:
    with pytest.raises(CorruptionError):
        apply_tile(memoryview(hostile_tiles()[what]), np.zeros(1000, np.uint16))


def test_any_bytes_are_refused_or_applied_within_the_array() -> None:
    rng = np.random.default_rng(5)
    old = rng.integers(0, 9, 1000, np.uint16)
    new = old.copy()
    new[::40] += 1
    good = encode_tile(old, new)
    for _ in range(2000):
        data = bytearray(good)
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            data[position] = rng.integers(0, 256)
        try:
            apply_tile(memoryview(bytes(data)), old.copy())
        except CorruptionError:
            continue


def test_gaps_whose_sum_does_not_fit_are_refused() -> None:
    """The last position would be 253 again, modulo 2^32."""
    count = 16843010
    frames = [tile_encoding._compress(np.full(count, 254, np.uint8)) for _ in range(2)]
    sizes = b"".join(struct.pack("<I", len(frame)) for frame in frames)
    data = struct.pack("<BBI", 1, 0, count) + sizes + b"".join(frames)
    with pytest.raises(CorruptionError, match="word 4294967549 of 33554432"):
        apply_tile(memoryview(data), np.zeros(1 << 25, np.uint8))


def test_a_tile_beyond_the_limit_is_refused() -> None:
    words = np.zeros(tile_encoding.MAX_TILE_BYTES + 1, np.uint8)
    with pytest.raises(LimitError, match="MAX_TILE_BYTES"):
        apply_tile(memoryview(b"\1"), words)
