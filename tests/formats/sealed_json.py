"""Indexes of any content whose digest is right."""

from __future__ import annotations

import xxhash


def sealed(text: str | bytes) -> bytes:
    """A text that begins `{"digest":"` and 32 zeros, the zeros replaced by its digest."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    assert data.startswith(b'{"digest":"' + b"0" * 32)
    return data[:11] + xxhash.xxh3_128_hexdigest(data).encode() + data[43:]
