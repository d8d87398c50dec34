"""The mistakes with trees that cannot be saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import Act, Mistake

__all__ = ["LEAVES"]


def activation(x: Any) -> Any:
    """Return the input; as a leaf, this function cannot be saved."""
    return x


def _kernel() -> Any:
    return jnp.ones((4, 8))


def _deleted() -> Any:
    array = _kernel()
    array.delete()
    return {"dense": {"kernel": array}}


def _within_jit(name: str) -> Act:
    def act(path: Path) -> Any:
        def step(kernel: Any) -> Any:
            LIBRARIES[name].save(path, {"dense": {"kernel": kernel}})
            return kernel

        return jax.jit(step)(_kernel())

    return act


LEAVES: Sequence[Mistake] = (
    Mistake(
        "A function in the tree",
        "a model stores its activation function beside its arrays",
        lambda: {"dense": {"kernel": _kernel(), "act": activation}},
        saves=True,
    ),
    Mistake(
        "An array of objects",
        "numpy made an array of dtype object, here from lists of different lengths",
        lambda: {"batch": {"ids": np.array([[1, 2], [3]], dtype=object)}},
        saves=True,
    ),
    Mistake(
        "An array of strings",
        "class names in a numpy array",
        lambda: {"classes": np.array(["cat", "dog"])},
        saves=True,
    ),
    Mistake(
        "Keys that are equal as strings",
        "a dict has the keys 1 and '1'",
        lambda: {"layers": {1: jnp.zeros(2), "1": jnp.ones(2)}},
        saves=True,
    ),
    Mistake(
        "Keys that are equal when joined",
        "the tree has the key `a/b`, and `b` in `a`",
        lambda: {"a/b": jnp.zeros(2), "a": {"b": jnp.ones(2)}},
        saves=True,
    ),
    Mistake(
        "A set in the tree",
        "a set of names, which jax treats as a leaf",
        lambda: {"dense": {"kernel": _kernel(), "frozen": {"bias"}}},
        saves=True,
    ),
    Mistake(
        "Saving within jit",
        "`save` is called in a function that jax traces",
        saves=True,
        acts={name: _within_jit(name) for name in LIBRARIES},
    ),
    Mistake(
        "A deleted array",
        "the array was donated to a training step and is saved after that step",
        _deleted,
        saves=True,
    ),
)
