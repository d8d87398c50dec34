"""Tests that run with Orbax and with cordwood in its place: each assertion holds for both."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

NAMES = ("orbax.checkpoint", "cordwood.compat.orbax")

# Orbax warns where it restores without a target, and leaves coroutines that are never awaited.
quiet = pytest.mark.filterwarnings(
    "ignore:Sharding info not provided",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def modules() -> list[Any]:
    return [pytest.param(importlib.import_module(name), id=name.split(".")[0]) for name in NAMES]


both = pytest.mark.parametrize("ocp", modules())


def steps_on_disk(root: Path) -> list[int]:
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())


def assert_same(a: Any, b: Any) -> None:
    """Compare two trees: structure, types of leaves, dtypes, values."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (a, b)]
    assert structures[0] == structures[1]
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(one) is type(other), (type(one), type(other))
        if hasattr(one, "dtype"):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
        if isinstance(one, jax.Array) and str(one.dtype).startswith("key<"):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
