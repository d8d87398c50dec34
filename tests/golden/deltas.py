"""The golden delta, its base, and their generator: python -m tests.golden.deltas.

Version 1 of the record. The compressed bytes depend on the version of zstd, so a delta is compared
by what it makes of its base. It changes only together with the version and docs/format.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import cordwood
from cordwood.dtypes import to_numpy

FOLDER = Path(__file__).parent
BASE_AT, DELTA_AT = FOLDER / "delta-v1-base.safetensors", FOLDER / "delta-v1.safetensors"
METADATA = {"note": "after"}


def versions() -> tuple[Any, Any]:
    """Return the old tree and the new one."""
    bits = np.arange(600, dtype=np.uint16).reshape(20, 30)

    def tree(*, changed: bool) -> Any:
        weights = bits.copy()
        moments = np.arange(8, dtype=np.float32)
        if changed:
            weights[0, 0], weights[10, 7], weights[19, 29] = 0x8000, 311, 0x7FC1  # -0.0, 1, a NaN
            moments = np.float32(1) / (1 + moments)
        return {
            "weights": weights.view(to_numpy("bfloat16")),
            "moments": [moments, np.float64(2.5)],
            "quantised": np.arange(-2, 2).astype(to_numpy("int4")),
            "empty": np.zeros((0, 3), np.float32),
            "step": 2 if changed else 1,
            "name": "é" if changed else "e",
        }

    return tree(changed=False), tree(changed=True)


def write_all(folder: Path) -> None:
    old, new = versions()
    cordwood.save(folder / BASE_AT.name, old)
    cordwood.save(folder / "new.safetensors", new, metadata=METADATA)
    made = folder / DELTA_AT.name
    cordwood.delta(folder / BASE_AT.name, folder / "new.safetensors", made, overwrite=True)
    (folder / "new.safetensors").unlink()


if __name__ == "__main__":
    write_all(FOLDER)
