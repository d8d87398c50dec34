"""The messages of processes that meet, as bytes: arrivals, answers and failures."""

from __future__ import annotations

import struct

TOKEN_BYTES = 8
MAX_TEXT = 4000  # characters of an error that are sent


def opened_namespace(answer: bytes) -> str:
    """Return the prefix of the namespace that process 0 has opened, as it answered."""
    (number,) = struct.unpack_from("<Q", answer, 1)
    return f"cordwood/{number}/"


def decode_arrival(arrival: bytes) -> tuple[bytes, bytes, str]:
    """Return the token, the incarnation and the purpose of an arrival."""
    token, named = arrival[:TOKEN_BYTES], arrival[TOKEN_BYTES:]
    return token, named[:TOKEN_BYTES], named[TOKEN_BYTES:].decode("utf-8", "surrogatepass")


def encode_failure(count: int, text: str) -> bytes:
    """Return a failure as bytes.

    Args:
        count: how many calls for the purpose have failed on this process since all last met for it.
        text: the text of the error.
    """
    return struct.pack("<Q", count) + encode_text(text)


def encode_text(text: str) -> bytes:
    """Return the text of an error as bytes, shortened."""
    return text[:MAX_TEXT].encode("utf-8", "surrogatepass")


def decode_failure(failure: bytes) -> tuple[int, str]:
    """Return the count and the text that `encode_failure` was given."""
    (count,) = struct.unpack_from("<Q", failure)
    return count, failure[8:].decode("utf-8", "surrogatepass")
