"""Trees of arrays as zarr-python of the environment's version writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.foreign_files.make.values import write_values


def main(folder: Path) -> None:
    group: Any = zarr.open_group(str(folder / "group"), mode="w")
    group.array("kernel", np.arange(12, dtype=np.float32).reshape(3, 4), chunks=(2, 2))
    group.create_group("layers").array("bias", np.ones(5, np.int16))
    write_values(folder / "group", _arrays(group))


def _arrays(group: Any) -> dict[str, Any]:
    """Return the arrays of a group, nested, as zarr reads them."""
    arrays = {name: array[...] for name, array in group.arrays()}
    return arrays | {name: _arrays(child) for name, child in group.groups()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
