"""Observations of a script in a form that compares: values by kind, dtype, shape and elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def error_of(call: Callable[[], object]) -> str:
    """Return the name of the builtin class that catches a call's error; "" without an error."""
    try:
        call()
    except Exception as e:  # noqa: BLE001 - any error is the observation
        return next(base.__name__ for base in type(e).__mro__ if base.__module__ == "builtins")
    return ""


def steps_on_disk(root: Path) -> list[int]:
    """Return the numbers among the names of a root's directories, increasing."""
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())


def described(value: Any) -> Any:
    """Return nested dicts and lists of texts and numbers for an observation."""
    if isinstance(value, Mapping):
        return {str(key): described(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        name = type(value).__name__
        return [*([] if name in ("list", "tuple") else [name]), *map(described, value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{type(value).__name__} {value}"
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {value.dtype} {np.asarray(jax.random.key_data(value)).tolist()}"
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__name__
        array = np.asarray(value)
        return f"{kind} {array.dtype} {array.shape} {array.astype(object).tolist()}"
    raise TypeError(f"no description for {type(value)}: a script returns trees of leaves")
