"""A tree as texts: one line for each leaf and each empty node, by its keys.

Lists and tuples are one thing, keys are texts, and numpy and jax arrays are both arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def digests_of(tree: Any, path: tuple[str, ...] = ()) -> dict[str, str]:
    if isinstance(tree, Mapping):
        children = [(str(key), child) for key, child in tree.items()]
    elif isinstance(tree, (list, tuple)):
        children = [(str(index), child) for index, child in enumerate(tree)]
    else:
        return {"/".join(path): _digest(tree)}
    if not children:
        return {"/".join(path): f"empty {'dict' if isinstance(tree, Mapping) else 'list'}"}
    lines: dict[str, str] = {}
    for key, child in children:
        lines.update(digests_of(child, (*path, key)))
    return lines


def _digest(leaf: Any) -> str:
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return f"{type(leaf).__name__} {leaf}"
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return f"keys of {jax.random.key_impl(leaf)}: {_digest(jax.random.key_data(leaf))}"
    array = np.asarray(leaf)
    sha = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype.name}{list(array.shape)} {sha[:16]}"
