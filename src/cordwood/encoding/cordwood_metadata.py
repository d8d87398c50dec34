"""Cordwood's entries in the metadata of a file: version, digests, structure, header digest.

A header with digests begins with `{"__metadata__":{"cordwood.header_digest":"`. Then come 32
characters: the digest of the whole header, including its 8-byte length, computed with zeros in
their place.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping

from cordwood.encoding.digests import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    block_count,
    has_own_digest,
    with_own_digest,
)
from cordwood.errors import CorruptionError, FormatError, newer_version_error
from cordwood.index import Digests

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


def split_metadata(metadata: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str] | None]:
    """Divide `__metadata__` into the user's part and cordwood's; None if another tool wrote it.

    A file with one of cordwood's keys counts as cordwood's, and must have all of them. So a file
    that loses some keys is refused, and never read without verification.

    Raises:
        UnsupportedFormatError: the file is of a newer version of the format.
        CorruptionError: keys are missing, unknown, or not of this version.
    """
    cordwood = {key: value for key, value in metadata.items() if key.startswith(CORDWOOD_PREFIX)}
    if not cordwood:
        return dict(metadata), None
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
    return {k: v for k, v in metadata.items() if k not in cordwood}, cordwood


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


def digest_width(data_bytes: int) -> int:
    """Return the number of characters that `encode_digests` returns for that much data."""
    size = block_count(data_bytes, BLOCK_BYTES) * DIGEST_BYTES
    return len(_DIGESTS_SCHEME) + 4 * -(-size // 3)


def encode_digests(digests: Digests) -> str:
    """Return the digests of the data blocks as text."""
    return _DIGESTS_SCHEME + base64.b64encode(digests.values).decode()


def decode_digests(text: str, start: int, *, name: str = DATA_DIGESTS) -> Digests:
    """Return the digests in a text of `encode_digests`; the data begins at offset `start`.

    Args:
        text: the text.
        start: the offset.
        name: where the text is from, for errors.

    Raises:
        FormatError: the text is no such text.
    """
    try:
        scheme, block_bytes, values = text.split(":")
        packed = base64.b64decode(values, validate=True)
        size = int(block_bytes) if block_bytes.isdecimal() and len(block_bytes) < 16 else 0
    except (ValueError, binascii.Error) as e:
        raise FormatError(f"{name}: expected xxh3-128:BYTES:BASE64 ({e})") from e
    if scheme != "xxh3-128" or size < 1:
        raise FormatError(f"{name}: expected xxh3-128:BYTES:BASE64, found {text:.40}")
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
