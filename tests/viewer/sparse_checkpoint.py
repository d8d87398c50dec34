"""A checkpoint of any size that takes next to no room on the disk: its arrays are holes."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["write_sparse"]

_KINDS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.down", "norm.scale", "norm.bias")


def write_sparse(path: Path, *, leaves: int = 20_000, size_bytes: int = 100 << 30) -> None:
    """Write a safetensors file of float32 arrays, all zeros, in layers of eight arrays."""
    columns = 1024
    rows = size_bytes // leaves // columns // 4
    header = {}
    end = 0
    for number in range(leaves):
        layer, kind = divmod(number, len(_KINDS))
        size = rows * columns * 4
        header[f"layers.{layer}.{_KINDS[kind]}"] = {
            "dtype": "F32",
            "shape": [rows, columns],
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
