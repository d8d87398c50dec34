"""The golden file of equinox, and its generator.

python -m tests.golden.equinox_files writes equinox-0.13.8.eqx: TREE, by tree_serialise_leaves of
equinox 0.13.8 with numpy 2.4.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

PATH = Path(__file__).parent / "equinox-0.13.8.eqx"

TREE: dict[str, Any] = {
    "z": [np.arange(6, dtype=np.float32).reshape(2, 3), True, 7, 0.5, 1 - 2j],
    "a": (np.float16(1.5), "text", np.asfortranarray(np.arange(6).reshape(2, 3))),
    "none": None,
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
}


def main() -> None:
    import equinox

    equinox.tree_serialise_leaves(PATH, TREE)


if __name__ == "__main__":
    main()
