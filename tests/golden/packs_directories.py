"""The golden directories of packs, and their generator: python -m tests.golden.packs_directories.

Version 1 of the format: WHOLE; and, under two prefixes of one directory, SPREAD and COUNTS. They
change only together with the version and docs/format.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.dtypes import to_numpy
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.packs.write import plan_save
from cordwood.formats.plan_save import write_save
from cordwood.formats.table import PACKS
from cordwood.io.leaves_to_write import Leaves
from cordwood.processes.key_value_store import SINGLE_PROCESS
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import LocalPath

FOLDER = Path(__file__).parent
WHOLE_AT, SPREAD_AT = FOLDER / "packs-v1-whole", FOLDER / "packs-v1-spread"

METADATA = {"format": "flax", "note": 'é "quoted"'}
WHOLE: dict[Any, Any] = {
    "layers": [np.arange(32, dtype=np.float32).reshape(4, 8), (np.arange(3, dtype=np.float16),)],
    "layers.0": np.arange(2, dtype=np.uint8),
    "quantised": np.arange(-2, 2).astype(to_numpy("int4")),
    "moments": np.arange(4, dtype=np.complex128),
    "empty": np.zeros((0, 3), np.float32),
    "values": [True, 2**64, float("nan"), 1 - 2j, "é", b"\x00\xff", None, np.float32(0.5)],
    3: {(1, "a"): 1.0, None: "x" * 5000},
}
COUNTS = {"step": 7}


def spread() -> Any:
    """Arrays cut along both axes, along one, and not at all, on eight devices."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def put(array: Any, *spec: Any) -> Any:
        return jax.device_put(array, NamedSharding(mesh, P(*spec)))

    return {
        "both": put(np.arange(128, dtype=np.float32).reshape(8, 16), "x", "y"),
        "second": put(np.arange(12, dtype=np.int16).reshape(3, 4), None, "y"),
        "all": put(np.arange(64, dtype=to_numpy("bfloat16")).reshape(32, 2), ("x", "y")),
        "none": put(np.arange(5, dtype=np.int32)),
        "host": np.arange(3.0),
    }


def write(folder: Path, items: dict[str, tuple[Any, dict[str, str]]]) -> None:
    for number, (prefix, (tree, metadata)) in enumerate(items.items(), start=1):
        alone = Rendezvous(SINGLE_PROCESS, "save", timeout_seconds=1, silence_seconds=1)
        save_id = f"{number:x}" * 16
        options = SaveOptions(prefix, metadata)
        plan = plan_save(PACKS, LocalPath(str(folder)), tree, options, alone, save_id=save_id)
        write_save(PACKS, plan.save, Leaves(plan.leaves), alone)


def write_all(folder: Path) -> None:
    write(folder / WHOLE_AT.name, {"": (WHOLE, METADATA)})
    write(folder / SPREAD_AT.name, {"params": (spread(), {}), "counts": (COUNTS, {})})


if __name__ == "__main__":
    import tests.conftest  # noqa: F401  (eight devices)

    for old in (WHOLE_AT, SPREAD_AT):
        shutil.rmtree(old, ignore_errors=True)
    write_all(FOLDER)
