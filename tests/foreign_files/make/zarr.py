"""Trees of arrays as zarr-python of the environment's version writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr

from tests.foreign_files.make.values import write_values


def main(folder: Path) -> None:
    group: Any = zarr.open_group(str(folder / "group"), mode="w")
    group.array("kernel", np.arange(12, dtype=np.float32).reshape(3, 4), chunks=(2, 2))
    group.create_group("layers").array("bias", np.ones(5, np.int16))
    write_values(folder / "group", arrays_of(group))

    group = zarr.open_group(str(folder / "fill"), mode="w")
    for name, fill in (("zeros", 0.0), ("nan", np.nan), ("half", 0.5)):
        array = group.create_dataset(
            name, shape=7, chunks=2, dtype="f4", fill_value=fill, write_empty_chunks=False
        )
        array[:] = fill
        array[2] = 1
    group.create_dataset("nothing", shape=(3, 2), chunks=(2, 2), dtype=">i4", fill_value=9)
    write_values(folder / "fill", arrays_of(group))

    group = zarr.open_group(str(folder / "text"), mode="w")
    group.array("kernel", np.arange(3.0), compressor=numcodecs.Blosc("zstd"))
    group.array("names", np.array(["a", "bc"], object), object_codec=numcodecs.VLenUTF8())
    group.array("codes", np.array(["a", "bc"]))
    group.array("steps", np.arange(9), filters=[numcodecs.Delta("i8")])
    write_values(folder / "text", {"kernel": group["kernel"][...]})

    store = zarr.NestedDirectoryStore(str(folder / "nested"))
    array = zarr.open_array(store, mode="w", shape=(4, 4), chunks=(2, 2), dtype="f4", order="F")
    array[:] = np.arange(16).reshape(4, 4)
    write_values(folder / "nested", array[...])


def arrays_of(group: Any) -> dict[str, Any]:
    """Return the arrays of a group, nested, as zarr reads them, in this machine's order."""
    arrays = {name: array[...] for name, array in group.arrays()}
    native = {name: a.astype(a.dtype.newbyteorder("=")) for name, a in arrays.items()}
    return native | {name: arrays_of(child) for name, child in group.groups()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
