"""Any mesh to any mesh, through a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from tests.shardings import SHARDINGS

SHAPES: dict[str, tuple[int, ...]] = {"small": (24, 48, 16), "large": (48, 240, 64)}
DTYPES = ("float32", "bfloat16", "int4")


def tree() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        dtype: {
            name: random.integers(-8, 8, shape).astype(jax.numpy.dtype(dtype))
            for name, shape in SHAPES.items()
        }
        for dtype in DTYPES
    }


EXPECTED = tree()


@pytest.mark.parametrize("number", range(len(SHARDINGS)), ids=lambda n: str(SHARDINGS[n]))
def test_saved_under_one_sharding_and_loaded_under_others(tmp_path: Path, number: int) -> None:
    path = tmp_path / "checkpoint"
    cordwood.save(path, jax.device_put(EXPECTED, SHARDINGS[number]))
    for step in (0, 1, 7, 19):  # each sharding meets four, itself among them
        requested = SHARDINGS[(number + step) % len(SHARDINGS)]
        loaded = cordwood.load(path, shardings=requested)
        for dtype, arrays in EXPECTED.items():
            for name, expected in arrays.items():
                array = loaded[dtype][name]
                assert array.sharding == requested
                assert array.dtype == expected.dtype
                for shard in array.addressable_shards:
                    np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
    with cordwood.open(path) as checkpoint:
        for requested in SHARDINGS:
            array = checkpoint.load(shardings=requested, select="bfloat16/small")["bfloat16"][
                "small"
            ]
            assert array.sharding == requested
            for shard in array.addressable_shards:
                expected = EXPECTED["bfloat16"]["small"][shard.index]
                np.testing.assert_array_equal(np.asarray(shard.data), expected)
        for name in SHAPES:
            part = checkpoint[f"bfloat16/{name}"][5:17, 3, ::-2]
            np.testing.assert_array_equal(part, EXPECTED["bfloat16"][name][5:17, 3, ::-2])
