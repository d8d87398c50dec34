"""A training run whose state at any step can also be computed directly.

Each element of its parameters is a linear congruential generator. They are integers, so every
machine and every order of operations gives the same bits. Half of the state is frozen, as in
fine-tuning.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

ROWS, COLUMNS = 64, 128
_MULTIPLIER, _INCREMENT = 1664525, 1013904223
_BITS = 32

State = dict[str, Any]
Matrix = tuple[tuple[int, int, int], ...]

# One step as a matrix that multiplies (weight, momentum, 1), modulo 2**32.
_STEP: Matrix = (
    (_MULTIPLIER, 0, _INCREMENT),
    (_MULTIPLIER, 1, _INCREMENT),
    (0, 0, 1),
)
_IDENTITY: Matrix = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def advance(state: State) -> State:
    """Take one step of training, with numpy or jax arrays."""
    weights = state["weights"] * np.uint32(_MULTIPLIER) + np.uint32(_INCREMENT)
    return {
        "base": state["base"],
        "momentum": state["momentum"] + weights,
        "scaled": _scaled(weights),
        "step": state["step"] + 1,
        "weights": weights,
    }


def state_at(step: int) -> State:
    """Return the state after `step` steps, computed directly, as numpy arrays."""
    (a, b, c), (d, e, f), _ = _power(step)
    first, zero = _first(), np.zeros((ROWS, COLUMNS), np.uint32)
    weights = first * np.uint32(a) + zero * np.uint32(b) + np.uint32(c)
    momentum = first * np.uint32(d) + zero * np.uint32(e) + np.uint32(f)
    return {
        "base": _base(),
        "momentum": momentum,
        "scaled": _scaled(weights),
        "step": step,
        "weights": weights,
    }


def loss_of(weights: Any) -> float:
    """Return the loss of a step, computed from the rows of `weights` that this process has."""
    shards = getattr(weights, "addressable_shards", None)
    parts = [weights] if shards is None else [np.asarray(shard.data) for shard in shards]
    total = sum(int(part.sum(dtype=np.uint64)) for part in parts)
    return (total % 2**_BITS) / 2**_BITS


def _scaled(weights: Any) -> Any:
    return (weights >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


@cache
def _first() -> np.ndarray:
    return (np.arange(ROWS * COLUMNS, dtype=np.uint32) * np.uint32(2654435761)).reshape(ROWS, -1)


@cache
def _base() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "bias": rng.standard_normal(ROWS, np.float32),
        "embedding": rng.standard_normal((ROWS * 8, COLUMNS), np.float32),
    }


def _power(count: int) -> Matrix:
    result, square = _IDENTITY, _STEP
    while count:
        if count & 1:
            result = _times(result, square)
        square, count = _times(square, square), count >> 1
    return result


def _times(a: Matrix, b: Matrix) -> Matrix:
    rows = [
        [sum(a[i][k] * b[k][j] for k in range(3)) % 2**_BITS for j in range(3)] for i in range(3)
    ]
    return tuple((row[0], row[1], row[2]) for row in rows)
