"""safetensors files put together from their parts, and taken apart again."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import cordwood

DIGEST_AT = 8 + len('{"__metadata__":{"cordwood.header_digest":"')  # docs/format.md


def file_bytes(tree: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes that `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        cordwood.save(path, tree, metadata=metadata)
        return path.read_bytes()


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return equal(a.real, b.real) and equal(a.imag, b.imag)
    return bool(a == b)


def header_of(raw: bytes) -> dict[str, Any]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length])


def with_header(header: Any, data: bytes = b"") -> bytes:
    """Return a file of any header: a JSON value, or its text."""
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded + data


def sealed(header: Mapping[str, Any]) -> bytes:
    """Return the start of a file of cordwood's: a header, padded, with its digest."""
    text = json.dumps(header, separators=(",", ":")).encode()
    size = -(-(8 + len(text)) // 4096) * 4096
    raw = struct.pack("<Q", size - 8) + text.ljust(size - 8)
    zeros = raw[:DIGEST_AT] + b"0" * 32 + raw[DIGEST_AT + 32 :]
    return raw[:DIGEST_AT] + xxhash.xxh3_128_hexdigest(zeros).encode() + raw[DIGEST_AT + 32 :]
