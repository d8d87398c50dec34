"""Versions of a small tree to publish, and what readers must return."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def tree_of(version: int) -> dict[str, Any]:
    """Return a tree of which some elements change with each version, and one array never."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 48)).astype(jnp.bfloat16)
    moments = rng.standard_normal(500).astype(np.float32)
    for number in range(1, version + 1):
        changed = np.random.default_rng(number)
        weights.reshape(-1).view(np.uint16)[changed.integers(0, weights.size, 30)] ^= 1
        moments[changed.integers(0, 500, 9)] *= np.float32(1.5)
    return {
        "params": {"w": jnp.asarray(weights), "frozen": jnp.arange(600.0)},
        "opt": [moments, np.float64(version / 3)],
        "lora": {"a": jnp.full((4, 3), version, jnp.bfloat16)},
        "step": version,
        "key": jax.random.key(version),
    }
