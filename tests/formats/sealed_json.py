"""Indexes of any content whose digest is right."""

from __future__ import annotations

import xxhash


def sealed(text: str | bytes) -> bytes:
    """Return a text that begins `{"digest":"` and 32 zeros, with its digest in their place."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    assert data.startswith(b'{"digest":"' + b"0" * 32)
    return data[:11] + xxhash.xxh3_128_hexdigest(data).encode() + data[43:]
