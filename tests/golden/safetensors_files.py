"""The golden safetensors files, and their generator: python -m tests.golden.safetensors_files.

- v1.safetensors: TREE in version 1 of the format. It changes only together with the version and
  docs/format.md.
- reference-0.8.0.safetensors: ARRAYS, by safetensors 0.8.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import cordwood

FOLDER = Path(__file__).parent


class Moments(NamedTuple):
    mu: Any
    nu: Any


ARRAYS: dict[str, Any] = {
    "model.embed": np.arange(32, dtype=np.float32).reshape(4, 8),
    "model.norm": np.arange(3, dtype=np.float16),
    "step": np.array(7, np.int64),
}
METADATA = {"format": "pt", "note": 'é "quoted"'}
TREE: dict[Any, Any] = {
    "params": {"layers": [ARRAYS["model.embed"], (ARRAYS["model.norm"],)], "none": None},
    "params.none": np.arange(2, dtype=np.uint8),
    "Params": {"None": np.zeros((0, 3), np.float32)},
    "moments": Moments(np.float32(0.5), np.arange(4, dtype=np.complex128)),
    "quantised": np.arange(-2, 2).astype(ml_dtypes.int4),
    "values": [True, 1, 2**64, 0.1, float("nan"), 1 - 2j, "é", "\ud83d", b"\x00\xff"],
    3: {(1, "a"): 1.0, None: "x" * 5000},
    "\ud800": -0.0,
}


def main() -> None:
    import safetensors.numpy

    cordwood.save(FOLDER / "v1.safetensors", TREE, metadata=METADATA)
    safetensors.numpy.save_file(ARRAYS, FOLDER / "reference-0.8.0.safetensors", METADATA)


if __name__ == "__main__":
    main()
