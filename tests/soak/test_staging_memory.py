"""Asynchronous saves of arrays on a (fake) accelerator need no more memory from save to save.

`make soak` makes 1,000 saves of 200 MB; `make test` 40 of 20 MB.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children import run_python
from tests.soak.page import SOAK, as_table, write_section

SAVES, LEAVES = (1000, 100) if SOAK else (40, 10)
LEAF_BYTES = 2_000_000
MOST_GROWTH_MB = 20
FIRST = 10  # the saves whose memory is not compared
# glibc returns blocks of this size when they are freed. Otherwise it keeps a part of what the steps
# of the loop free, which has nothing to do with saves.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "500000", "MALLOC_TRIM_THRESHOLD_": "500000"}
RAM_DISK = Path("/dev/shm")

# Saves in a loop that donates the tree at once; prints the budget, the peak of the copies and the
# resident memory after each save. Every third save has room for the whole tree, for a quarter of
# it, and for a quarter of it with copies on the device.
SCRIPT = """
import json, os, sys
from pathlib import Path
import jax, jax.numpy as jnp
import numpy as np
import cordwood
from cordwood.io.memory.staging_memory import staging_memory
from tests.devices.fake_accelerator import fake_accelerator

folder, saves, leaves, leaf_bytes = Path(sys.argv[1]), *map(int, sys.argv[2:])
whole = leaves * leaf_bytes
options = [
    {{"staging_bytes": whole}},
    {{"staging_bytes": whole // 4}},
    {{"staging_bytes": whole // 4, "device_copies": True}},
]
step = jax.jit(lambda x: jax.tree.map(lambda a: a + 1, x), donate_argnums=0)

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

with fake_accelerator():
    tree = {{f"w{{i:03}}": jnp.full(leaf_bytes // 4, float(i)) for i in range(leaves)}}
    for number in range(saves):
        chosen = options[number % 3]
        staging_memory.peak_bytes = 0
        pending = cordwood.save_async(folder / "x", tree, **chosen)
        tree = step(tree)
        pending.wait()
        peak, budget = staging_memory.peak_bytes, chosen["staging_bytes"]
        print(json.dumps([budget, peak, staging_memory.used_bytes, resident_bytes()]))
stored = cordwood.load(folder / "x", to="numpy")
assert all((stored[f"w{{i:03}}"] == i + saves - 1).all() for i in range(leaves))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not SOAK or not RAM_DISK.is_dir() or shutil.disk_usage(RAM_DISK).free < 2 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as name:
        yield Path(name)


def test_memory_does_not_grow(folder: Path) -> None:
    arguments = [str(folder), str(SAVES), str(LEAVES), str(LEAF_BYTES)]
    variables: Any = MALLOC
    output = run_python(SCRIPT.format(), *arguments, timeout_seconds=3000, **variables)
    rows = [json.loads(line) for line in output.splitlines()]
    assert len(rows) == SAVES
    assert all(peak <= budget for budget, peak, _, _ in rows)
    assert all(used == 0 for _, _, used, _ in rows)
    assert max(peak for _, peak, _, _ in rows) == LEAVES * LEAF_BYTES
    resident = [size / 1e6 for *_, size in rows]
    growth = max(resident[FIRST:]) - resident[FIRST]
    third = len(resident) // 3
    middle = statistics.median(resident[third : 2 * third])
    write_section(
        "Copies of arrays on accelerators",
        f"{SAVES} asynchronous saves of {LEAVES * LEAF_BYTES / 1e6:.0f} MB from a fake accelerator "
        "(CPU devices whose arrays must be copied), each\nwith a step that donates the tree at "
        "once. The budget for copies was in turns the whole tree, a quarter of it, and a\nquarter "
        "of it with `device_copies`. No save had more copies than its budget, and none was left "
        "after it. Resident\nmemory after a save, where malloc returns what is freed "
        f"({', '.join(f'{k}={v}' for k, v in MALLOC.items())}):\n\n"
        + as_table(
            ["after save", "MB"],
            [
                [FIRST + 1, f"{resident[FIRST]:.0f}"],
                [
                    f"{third + 1} to {2 * third}, median",
                    f"{middle:.0f}",
                ],
                [SAVES, f"{resident[-1]:.0f}"],
                [f"most after save {FIRST}", f"{max(resident[FIRST:]):.0f}"],
            ],
        ),
    )
    assert growth < MOST_GROWTH_MB, resident
