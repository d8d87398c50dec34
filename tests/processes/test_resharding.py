"""Several processes load one file: each reads what its own devices need, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from tests.processes.group import Group

MIB = 1 << 20
KEYS = jax.random.split(jax.random.key(5), 8)
TREE: dict[str, Any] = {
    "rows": np.arange(8 << 20, dtype=np.float32).reshape(64, -1),  # 32 MiB
    "columns": np.arange(1 << 20, dtype=np.int32).reshape(8, -1),
    "replicated": np.arange(1000, dtype=np.float16),
    "one_process": np.arange(16, dtype=np.int8),
    "keys": KEYS,
    "key": KEYS[0],
}
SPECS: dict[str, list[Any]] = {
    "rows": ["x"],
    "columns": [None, "x"],
    "replicated": [],
    "one_process": ["x"],
    "keys": ["x"],
    "key": [],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "x.safetensors"
    cordwood.save(path, TREE)
    return path


def expected(name: str) -> np.ndarray[Any, Any]:
    value = TREE[name]
    return np.asarray(jax.random.key_data(value) if isinstance(value, jax.Array) else value)


@pytest.mark.parametrize(("count", "mesh"), [(2, [4]), (4, [4, 2])], ids=["2", "4"])
def test_each_process_reads_its_own_part(stored: Path, count: int, mesh: list[int]) -> None:
    with Group(count) as group:
        results = group.run("scenarios.load_onto", path=str(stored), specs=SPECS, mesh=mesh)
    seen = {name: np.zeros(expected(name).shape, bool) for name in TREE}
    for parts, read_bytes in results:
        for name, shards in parts.items():
            for ranges, data in shards:
                key = tuple([slice(a, b) for a, b in ranges])
                np.testing.assert_array_equal(data, expected(name)[key])
                seen[name][key] = True
        # A share of the rows; all of the 4 MiB of columns, whose rows are half a block.
        assert read_bytes <= 32 * MIB / count + 4 * MIB + 3 * MIB
    assert all(each.all() for each in seen.values())
