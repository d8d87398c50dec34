"""Digests of the blocks of a file, and cordwood's metadata in a header, which holds them.

The digests are xxh3-128, one for each block, packed one after another. A header with them begins
with `{"__metadata__":{"cordwood.header_digest":"`. Then come 32 characters: the digest of the whole
header, including its 8-byte length, computed with zeros in their place.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import xxhash

from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    newer_version_error,
)
from cordwood.index import Digests

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 16
MAX_BLOCK_BYTES = 64 << 20  # blocks are read whole: this limits the memory that a file can claim

Buffer: TypeAlias = bytes | bytearray | memoryview


def digest_of(block: Buffer) -> bytes:
    """Return the digest of one block. Hashing releases the GIL."""
    return xxhash.xxh3_128_digest(block)


def digest_of_parts(parts: Iterable[memoryview]) -> bytes:
    """Return the digest of a block that is in several parts of memory."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.digest()


def block_count(size_bytes: int, block_bytes: int) -> int:
    """Return the number of blocks that cover `size_bytes`."""
    return -(-size_bytes // block_bytes)


def digests_of(chunks: Sequence[Buffer], *, start: int, block_bytes: int = BLOCK_BYTES) -> Digests:
    """Return the digests of `chunks`, placed one after another from file offset `start` on."""
    values = bytearray()
    state = xxhash.xxh3_128()
    room = block_bytes
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while len(view):
            part = view[:room]
            state.update(part)
            view = view[len(part) :]
            room -= len(part)
            if room == 0:
                values += state.digest()
                state.reset()
                room = block_bytes
    if room != block_bytes:
        values += state.digest()
    return Digests(start, block_bytes, bytes(values))


def check_coverage(name: str, size_bytes: int, digests: Digests) -> None:
    """Raise unless there is exactly one digest for each block of a file of `size_bytes`.

    Raises:
        CorruptionError: the counts differ; the file grew or shrank.
        LimitError: the block size is not in 1 to MAX_BLOCK_BYTES.
    """
    if not 0 < digests.block_bytes <= MAX_BLOCK_BYTES:
        raise LimitError(
            f"{name}: digest blocks of {digests.block_bytes} bytes; "
            f"expected 1 to {MAX_BLOCK_BYTES} (MAX_BLOCK_BYTES)"
        )
    expected = block_count(max(0, size_bytes - digests.start), digests.block_bytes)
    if digests.start < 0 or len(digests.values) != expected * DIGEST_BYTES:
        raise CorruptionError(
            f"{name}: expected {expected} block digests for its {size_bytes} bytes "
            f"(blocks of {digests.block_bytes} from byte {digests.start}), "
            f"found {len(digests.values) / DIGEST_BYTES:g}: the file grew, shrank or is damaged"
        )


CORDWOOD_PREFIX = "cordwood."
HEADER_DIGEST = "cordwood.header_digest"
VERSION_KEY = "cordwood.version"
DATA_DIGESTS = "cordwood.digests"
STRUCTURE = "cordwood.structure"
_OWN_KEYS = (HEADER_DIGEST, VERSION_KEY, DATA_DIGESTS, STRUCTURE)

VERSION = 1
HEADER_START = f'{{"__metadata__":{{"{HEADER_DIGEST}":"'
_DIGEST_START = 8 + len(HEADER_START)
_DIGESTS_SCHEME = f"xxh3-128:{BLOCK_BYTES}:"


class SplitMetadata(NamedTuple):
    """`__metadata__`, divided into the user's part and cordwood's."""

    user: dict[str, str]
    cordwood: dict[str, str] | None  # None: another tool wrote the file


def split_metadata(metadata: Mapping[str, str]) -> SplitMetadata:
    """Divide metadata into the user's part and cordwood's.

    A file with one of cordwood's keys counts as cordwood's, and must have all of them. So a file
    that loses some keys is refused, and never read without verification.

    Raises:
        UnsupportedFormatError: the file is of a newer version of the format.
        CorruptionError: keys are missing, unknown, or not of this version.
    """
    cordwood = {key: value for key, value in metadata.items() if key.startswith(CORDWOOD_PREFIX)}
    if not cordwood:
        return SplitMetadata(dict(metadata), None)
    version = cordwood.get(VERSION_KEY, "")
    if version.isascii() and version.isdigit() and version[0] != "0" and version != str(VERSION):
        found = f"{VERSION_KEY} is {version:.20}, a newer version of the format"
        raise newer_version_error(found, VERSION)
    if set(cordwood) != set(_OWN_KEYS) or version != str(VERSION):
        missing = [key for key in _OWN_KEYS if key not in cordwood]
        unknown = [key for key in cordwood if key not in _OWN_KEYS]
        raise CorruptionError(
            "written by cordwood, but its metadata is incomplete"
            + (f": no {', '.join(missing)}" if missing else "")
            + (f": unknown {', '.join(unknown)}" if unknown else "")
            + (f": {VERSION_KEY} is {version!r:.20}" if not missing and not unknown else "")
            + "; the header is damaged or another tool changed it"
        )
    return SplitMetadata({k: v for k, v in metadata.items() if k not in cordwood}, cordwood)


def check_header(header: bytes) -> None:
    """Compare the header (from the first byte of the file on) with the digest in it.

    Raises:
        CorruptionError: they differ.
    """
    begins = header.startswith(HEADER_START.encode(), 8)
    if not begins or not has_own_digest(header, _DIGEST_START):
        raise CorruptionError(
            f"the header (bytes 0 to {len(header)}) does not match its own digest: it is damaged, "
            "or another tool changed the file after cordwood wrote it; restore a copy, or, if the "
            "change was meant, have that tool write the file without the metadata keys that "
            f"begin with {CORDWOOD_PREFIX!r}"
        )


def finish_header(header: str, header_bytes: int) -> bytes:
    """Return the header of `header_bytes`: length, JSON text padded with spaces, with digest."""
    raw = struct.pack("<Q", header_bytes - 8) + header.encode()
    raw += b" " * (header_bytes - len(raw))
    return with_own_digest(raw, _DIGEST_START)


def with_own_digest(data: bytes, start: int) -> bytes:
    """Return data with its own digest: 32 characters from `start` on, computed with zeros there."""
    return data[:start] + _own_digest(data, start) + data[start + 2 * DIGEST_BYTES :]


def has_own_digest(data: bytes, start: int) -> bool:
    """Return True if data is as `with_own_digest` returned it."""
    return data[start : start + 2 * DIGEST_BYTES] == _own_digest(data, start)


def _own_digest(data: bytes, start: int) -> bytes:
    state = xxhash.xxh3_128(memoryview(data)[:start])
    state.update(b"0" * 2 * DIGEST_BYTES)
    state.update(memoryview(data)[start + 2 * DIGEST_BYTES :])
    return state.hexdigest().encode()


def digest_width(data_bytes: int) -> int:
    """Return the number of characters that `encode_digests` returns for that much data."""
    size = block_count(data_bytes, BLOCK_BYTES) * DIGEST_BYTES
    return len(_DIGESTS_SCHEME) + 4 * -(-size // 3)


def encode_digests(digests: Digests) -> str:
    """Return the digests of the data blocks as text."""
    return _DIGESTS_SCHEME + base64.b64encode(digests.values).decode()


def decode_digests(text: str, start: int) -> Digests:
    """Return the digests in a text of `encode_digests`; the data begins at offset `start`.

    Raises:
        FormatError: the text is no such text.
    """
    try:
        scheme, block_bytes, values = text.split(":")
        packed = base64.b64decode(values, validate=True)
        size = int(block_bytes) if block_bytes.isdecimal() and len(block_bytes) < 16 else 0
    except (ValueError, binascii.Error) as e:
        raise FormatError(f"{DATA_DIGESTS}: expected xxh3-128:BYTES:BASE64 ({e})") from e
    if scheme != "xxh3-128" or size < 1:
        raise FormatError(f"{DATA_DIGESTS}: expected xxh3-128:BYTES:BASE64, found {text:.40}")
    return Digests(start, size, packed)


def check_metadata_strings(metadata: Mapping[str, str]) -> None:
    """Raise unless `metadata` maps strings to strings that can be stored.

    Raises:
        TypeError: a key or a value is not a str.
        ValueError: a key or a value holds a lone surrogate.
    """
    for key, value in metadata.items():
        if type(key) is not str or type(value) is not str:
            raise TypeError(
                f"metadata: expected str keys and values, found {key!r:.80}: {value!r:.80}; "
                "convert it (json.dumps, for one)"
            )
        try:
            f"{key}{value}".encode()
        except UnicodeEncodeError as e:
            raise ValueError(f"metadata: {key!r:.80}: holds a lone surrogate") from e
