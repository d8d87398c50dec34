"""Pickles of joblib, plain and compressed."""

from __future__ import annotations

import sys
from pathlib import Path

import joblib
import numpy as np


def main(folder: Path) -> None:
    params = {"w": np.arange(6, dtype=np.float32), "step": 7}
    joblib.dump(params, folder / "params.joblib")
    joblib.dump(params, folder / "params.joblib.z", compress=("zlib", 3))
    joblib.dump(params, folder / "params.joblib.gz", compress=("gzip", 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
