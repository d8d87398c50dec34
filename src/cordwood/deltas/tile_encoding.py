"""The encoding of the difference between two arrays of one shape and dtype. Pure.

Elements are compared and changed as unsigned integers, their bit patterns, so that every value
comes back exactly: NaN payloads, -0.0 and denormals too. docs/format.md specifies the bytes
("Deltas").
"""

from __future__ import annotations

import struct

import numpy as np

from cordwood import dtypes
from cordwood.errors import CorruptionError, LimitError

STEPS = 1  # the first byte of an encoded tile: gaps between changed words, and their steps
RAW = 2  # the first byte of an encoded tile: all bytes of the new array
MAX_TILE_BYTES = 64 << 20  # tiles are decoded in memory: this limits what a file can claim

_LEVEL = 1  # of zstd
_HEADER = struct.Struct("<BBI")  # STEPS, planes of large steps, changed words
_SIZE = struct.Struct("<I")  # of each frame
_WORTH_RAW = 0.5  # of the size of a tile: a larger difference is compared with the raw tile
_MORE = 255  # a byte of gaps: the gap goes on in the next byte
_LARGE = 15  # four bits of steps: the step is in the planes
_COMPONENTS = {"complex64": 4, "complex128": 8, "complex256": 8, "float128": 8}


def word_bytes(dtype: str) -> int:
    """Return the size of the words of a dtype: 1, 2, 4 or 8 bytes.

    >>> word_bytes("bfloat16"), word_bytes("complex64"), word_bytes("float128")
    (2, 4, 8)
    """
    return _COMPONENTS.get(dtype) or dtypes.itemsize(dtype)


def as_words(array: np.ndarray, size: int) -> np.ndarray:
    """Return a contiguous array as its words (uint[n]), without a copy."""
    return array.reshape(-1).view(np.uint8).view(f"u{size}")


def encode_tile(old: np.ndarray, new: np.ndarray) -> bytes:
    """Return the difference that `apply_tile` applies; b"" if the arrays are equal.

    Args:
        old: words (uint[n]).
        new: words of the same number and size.
    """
    positions, before, after = _changed_words(old, new)
    if not len(positions):
        return b""
    steps = after
    steps -= before
    # Zigzag: small steps in either direction become small numbers, and none is 0.
    signed = steps.view(f"i{old.itemsize}")
    signed[:] = (signed << 1) ^ (signed >> (8 * old.itemsize - 1))
    steps -= 1
    large = steps[steps >= _LARGE]
    planes = _planes(large)
    streams = [_gap_bytes(positions), _pairs(np.minimum(steps, _LARGE).astype(np.uint8)), *planes]
    frames = [_compress(stream) for stream in streams]
    encoded = b"".join(
        [
            _HEADER.pack(STEPS, len(planes), len(positions)),
            *[_SIZE.pack(len(frame)) for frame in frames],
            *frames,
        ]
    )
    if len(encoded) > new.nbytes * _WORTH_RAW:
        raw = bytes([RAW]) + _compress(new.view(np.uint8))
        if len(raw) < len(encoded):
            return raw
    return encoded


def apply_tile(encoded: memoryview, words: np.ndarray) -> None:
    """Change the words of the old array (uint[n]) into those of the new one, in place.

    The caller compares the result with its digest. After an error the words may have any value.

    Raises:
        CorruptionError: the bytes are no difference of an array of that size.
        LimitError: the array is larger than MAX_TILE_BYTES.
    """
    if words.nbytes > MAX_TILE_BYTES:
        raise LimitError(
            f"a tile of {words.nbytes} bytes; expected at most {MAX_TILE_BYTES} (MAX_TILE_BYTES)"
        )
    if not len(encoded):
        return
    if encoded[0] == RAW:
        words.view(np.uint8)[:] = _decompress(encoded[1:], words.nbytes, words.nbytes)
        return
    positions, steps = _decode_steps(encoded, words)
    steps += 1
    down = -(steps & 1)  # wraps: all ones for a step down
    steps >>= 1
    steps ^= down
    steps += words.take(positions)
    words[positions] = steps


def _changed_words(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the positions of words that differ, and both values of each.

    Words are compared eight bytes at a time. Only eights that differ are looked at more closely.
    """
    per_eight = 8 // old.itemsize
    whole = len(old) - len(old) % per_eight
    old8, new8 = old[:whole].view(np.uint64), new[:whole].view(np.uint64)
    eights = np.flatnonzero(old8 != new8)
    before, after = old8[eights], new8[eights]
    if per_eight == 1:
        return eights, before, after
    before, after = before.view(old.dtype), after.view(old.dtype)
    inside = np.flatnonzero(before != after)
    shift = per_eight.bit_length() - 1
    positions = (eights[inside >> shift] << shift) + (inside & (per_eight - 1))
    before, after = before[inside], after[inside]
    if whole < len(old):
        tail = np.flatnonzero(old[whole:] != new[whole:]) + whole
        positions = np.concatenate([positions, tail])
        before, after = np.append(before, old[tail]), np.append(after, new[tail])
    return positions, before, after


def _gap_bytes(positions: np.ndarray) -> np.ndarray:
    """Return the numbers of unchanged words before each changed one, as bytes (uint8).

    A byte of 255 means 255 words, and that more bytes follow for the same gap.
    """
    gaps = np.empty(len(positions), np.uint32)
    gaps[0] = positions[0]
    np.subtract(positions[1:], positions[:-1], out=gaps[1:], casting="unsafe")
    gaps[1:] -= 1
    long = np.flatnonzero(gaps >= _MORE)  # few: a division of all would take longer
    more = gaps[long] // _MORE
    gaps[long] -= more * _MORE
    return np.insert(gaps.astype(np.uint8), np.repeat(long, more), _MORE)


def _pairs(nibbles: np.ndarray) -> np.ndarray:
    """Return numbers of four bits (uint8[n]) as bytes, two in each, the first in the low bits."""
    if len(nibbles) % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    pairs: np.ndarray = nibbles[::2] | (nibbles[1::2] << 4)
    return pairs


def _planes(numbers: np.ndarray) -> list[np.ndarray]:
    """Return the lowest bytes of all numbers, then the next ones, up to the last that is not 0."""
    if not len(numbers):
        return []
    count = -(-int(numbers.max()).bit_length() // 8)
    bytes_of = numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)
    return [np.ascontiguousarray(bytes_of[:, i]) for i in range(count)]


def _compress(data: np.ndarray) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL).compress(data.data)


def _decompress(data: memoryview, least: int, most: int) -> np.ndarray:
    """Return the bytes of a frame (uint8[least to most]); nothing more is decompressed."""
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if not least <= size <= most:
            raise CorruptionError(f"a frame of {size} bytes; expected {least} to {most}")
        plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise CorruptionError(f"a frame cannot be decompressed: {e}") from e
    return np.frombuffer(plain, np.uint8)


def _decode_steps(encoded: memoryview, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the changed words, and their zigzag steps less 1, of their dtype."""
    frames, count = _frames(encoded, words)
    gaps = _decompress(frames[0], count, count + len(words) // _MORE)
    last = int(gaps.sum(dtype=np.uint64)) + count - 1
    if last >= len(words):
        raise CorruptionError(f"word {last} of {len(words)} is to change")
    positions = np.cumsum(gaps, dtype=np.intp)  # as an index has it: others are converted
    if len(gaps) > count:
        positions = positions[gaps != _MORE]
    if len(positions) != count or gaps[-1] == _MORE:
        raise CorruptionError(f"{count} words are to change, and there are {len(positions)} gaps")
    positions += np.arange(count)
    pairs = _decompress(frames[1], -(-count // 2), -(-count // 2))
    steps = np.empty(2 * len(pairs), words.dtype)
    steps[::2] = pairs & _LARGE
    steps[1::2] = pairs >> 4
    steps = steps[:count]
    large = np.flatnonzero(steps == _LARGE)
    if bool(len(large)) != (len(frames) > 2):
        raise CorruptionError(f"{len(large)} large steps in {len(frames) - 2} planes")
    if len(large):
        numbers = np.zeros((len(large), words.itemsize), np.uint8)
        for i, frame in enumerate(frames[2:]):
            numbers[:, i] = _decompress(frame, len(large), len(large))
        steps[large] = numbers.view(words.dtype)[:, 0]
    return positions, steps


def _frames(encoded: memoryview, words: np.ndarray) -> tuple[list[memoryview], int]:
    """Return the frames of a difference in steps, and the number of words that it changes."""
    if len(encoded) < _HEADER.size:
        raise CorruptionError(f"a difference of {len(encoded)} bytes")
    kind, planes, count = _HEADER.unpack_from(encoded)
    if kind != STEPS:
        raise CorruptionError(f"a difference of the unknown kind {kind}")
    if planes > words.itemsize:
        raise CorruptionError(f"steps in {planes} planes; expected at most {words.itemsize}")
    if not 1 <= count <= len(words):
        raise CorruptionError(f"{count} words of {len(words)} are to change")
    at = _HEADER.size + (2 + planes) * _SIZE.size
    if len(encoded) < at:
        raise CorruptionError(f"a difference of {len(encoded)} bytes; expected {at} or more")
    sizes = [size for (size,) in _SIZE.iter_unpack(encoded[_HEADER.size : at])]
    if at + sum(sizes) != len(encoded):
        raise CorruptionError(f"frames of {sum(sizes)} bytes; expected {len(encoded) - at}")
    frames = []
    for size in sizes:
        frames.append(encoded[at : at + size])
        at += size
    return frames, count
