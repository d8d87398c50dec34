"""The golden files of numpy, and their generator: python -m tests.golden.numpy_files.

- numpy-2.4.6.npz: ARRAYS, by numpy.savez; numpy-2.4.6-deflated.npz: by savez_compressed.
- numpy-2.4.6.npy: ARRAY, by numpy.save.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).parent

ARRAY = np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4))
ARRAYS: dict[str, Any] = {
    "params/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "params/bias": np.arange(3).astype(ml_dtypes.bfloat16),
    "transposed": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big_endian": np.arange(4, dtype=">u4"),
    "step": np.array(7),
    "none": np.zeros((0, 3), np.complex64),
    "time": np.array(["2024-02-29"], "M8[D]"),
}


def main() -> None:
    np.save(FOLDER / "numpy-2.4.6.npy", ARRAY)
    np.savez(FOLDER / "numpy-2.4.6.npz", **ARRAYS)
    np.savez_compressed(FOLDER / "numpy-2.4.6-deflated.npz", **ARRAYS)


if __name__ == "__main__":
    main()
