"""The golden directory of the zarr layout; python -m tests.golden.zarr_directories makes it.

What version 1 of the format makes of TREE, and under a prefix of COMPRESSED. It changes only
together with the version and docs/format.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

import cordwood

GOLDEN = Path(__file__).parent / "zarr-v1"

METADATA = {"note": 'é "quoted"'}
TREE: dict[Any, Any] = {
    "layers": [np.arange(32, dtype=np.float32).reshape(4, 8), (np.arange(3, dtype=np.float16),)],
    "layers.0": np.arange(2, dtype=np.uint8),
    "Layers": {"0": np.zeros((0, 3), np.float32)},
    "..": np.float32(0.5),
    "quantised": np.arange(-2, 2).astype(ml_dtypes.uint4),
    "times": np.arange(2).astype("datetime64[s]"),
    "values": [True, 2**64, float("nan"), 1 - 2j, "é", b"\x00\xff", None],
    3: {(1, "a"): 1.0, None: {}},
}
COMPRESSED = {"w": np.arange(12, dtype=np.int16).reshape(3, 4)}


def write(folder: Path) -> None:
    items: tuple[tuple[str, Any, Literal["zstd"] | None], ...]
    items = (("", TREE, None), ("ema", COMPRESSED, "zstd"))
    for prefix, tree, compression in items:
        cordwood.save(
            folder, tree, format="zarr", compression=compression, prefix=prefix, metadata=METADATA
        )


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write(GOLDEN)
