"""The golden file of equinox, and how it was made: python -m tests.golden.equinox_files

equinox-0.13.8.eqx: what tree_serialise_leaves of equinox 0.13.8 and numpy 2.4.6 makes of TREE.
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
