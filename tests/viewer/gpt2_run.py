"""A run of a GPT-2-like model, saved with CheckpointManager, with faults to be found."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import optax

from cordwood import CheckpointManager

BLOCKS = 12
# Rows of the token embedding. With 24 columns it has more than 1 MiB: only from that size on
# the manager puts unchanged arrays into a file of their own, and links it from step to step.
VOCABULARY = 11_000
FROZEN = ("wte", "wpe", "h_3")
_CONTEXT = 128
_WARMUP_STEPS = 8
_START_SECONDS = 1_750_000_000.0
_SECONDS_PER_STEP = 1200.0
_PAUSE_SECONDS = 5 * 3600.0  # in the middle of the run

Array = np.ndarray[Any, Any]
Params = dict[str, Any]


class Faults(NamedTuple):
    """The faults of a run; each is the number of a step, or None."""

    nan_from: int | None = None  # the first step in which the block `h_7` has NaNs
    damaged: int | None = None  # one byte of its index is flipped: a listing shows it
    damaged_data: int | None = None  # one byte of an array is flipped: only reading shows it
    unfinished: int | None = None  # its index is missing


NO_FAULTS = Faults()
NAN_BLOCK = "h_7"


def save_run(
    root: Path,
    *,
    count: int = 20,
    every: int = 100,
    width: int = 24,
    vocabulary: int = VOCABULARY,
    frozen: Collection[str] = FROZEN,
    joined_attention: bool = False,
    faults: Faults = NO_FAULTS,
    keep: Any = None,
    seed: int = 0,
) -> list[int]:
    """Save the steps `every`, 2 * `every`, ... of a run, and return their numbers.

    The tree is {"params": ..., "opt_state": Adam's state of the parameters that are trained}.
    Metrics are loss, accuracy and learning_rate. The times are 20 minutes apart, with a pause of
    5 hours in the middle.

    Args:
        root: the directory of the run.
        count: the number of steps.
        every: the difference between the numbers of two steps.
        width: the width of the model; 24 gives about 2 MB a step, of which 1 MB is frozen.
        vocabulary: the number of rows of the token embedding.
        frozen: members of the parameters that are never trained, such as "wte" and "h_3".
        joined_attention: True for one array `c_attn` in place of `q_proj`, `k_proj`, `v_proj`.
        faults: the faults of the run.
        keep: as `CheckpointManager` takes it.
        seed: of the random numbers.
    """
    steps = [every * (i + 1) for i in range(count)]
    model = _Model(width, vocabulary, frozen, joined_attention=joined_attention, seed=seed)
    seconds = _times(count)
    with CheckpointManager(root, keep=keep, background=False) as manager:
        for i, step in enumerate(steps):
            rate = model.train(i)
            if faults.nan_from is not None and step >= faults.nan_from:
                model.break_block(NAN_BLOCK)
            metrics = {
                "loss": 0.9 + 2.6 * 0.93**i + 0.05 * model.noise(),
                "accuracy": 0.62 - 0.5 * 0.95**i + 0.01 * model.noise(),
                "learning_rate": rate,
            }
            clock = SimpleNamespace(time=lambda at=seconds[i]: at, monotonic=time.monotonic)
            with mock.patch("cordwood.manager.save_step.time", clock):
                manager.save(step, model.tree(), metrics=metrics)
    _break(root, faults)
    for step, at in zip(steps, seconds, strict=True):
        if (root / str(step)).exists():  # `keep` may have deleted it
            os.utime(root / str(step), (at, at))
    return steps


def _times(count: int) -> list[float]:
    """Return the times of the steps, in seconds since 1970."""
    return [
        _START_SECONDS + i * _SECONDS_PER_STEP + (_PAUSE_SECONDS if i >= count / 2 else 0.0)
        for i in range(count)
    ]


class _Model:
    """Parameters and Adam's state, trained with random gradients."""

    def __init__(
        self,
        width: int,
        vocabulary: int,
        frozen: Collection[str],
        *,
        joined_attention: bool,
        seed: int,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._frozen = frozen
        self.params: Params = {
            "wte": {"embedding": self._normal(vocabulary, width)},
            "wpe": {"embedding": self._normal(_CONTEXT, width)},
            **{f"h_{i}": self._block(width, joined=joined_attention) for i in range(BLOCKS)},
            "ln_f": _norm(width),
        }
        self._count = 0
        self._mu = jax.tree.map(np.zeros_like, self._trained())
        self._nu = jax.tree.map(np.zeros_like, self._trained())

    def _trained(self) -> Params:
        return {name: part for name, part in self.params.items() if name not in self._frozen}

    def _normal(self, *shape: int) -> Array:
        return 0.02 * self._random.standard_normal(shape, np.float32)

    def _linear(self, inputs: int, outputs: int) -> Params:
        return {"kernel": self._normal(inputs, outputs), "bias": np.zeros(outputs, np.float32)}

    def _block(self, width: int, *, joined: bool) -> Params:
        names = {"c_attn": 3 * width} if joined else dict.fromkeys(_SPLIT, width)
        attention = {name: self._linear(width, outputs) for name, outputs in names.items()}
        return {
            "ln_1": _norm(width),
            "attn": {**attention, "c_proj": self._linear(width, width)},
            "ln_2": _norm(width),
            "mlp": {
                "c_fc": self._linear(width, 4 * width),
                "c_proj": self._linear(4 * width, width),
            },
        }

    def noise(self) -> float:
        """Return a random number around 0."""
        return float(self._random.standard_normal())

    def train(self, number: int) -> float:
        """Make one step of Adam in place; return the learning rate."""
        rate = 2e-3 * min(1.0, (number + 1) / _WARMUP_STEPS) * 0.99**number
        self._count += 1
        for position, (name, part) in enumerate(self._trained().items()):
            speed = rate * (0.4 + 0.1 * position)  # so that the norms of blocks differ

            def update(value: Array, mu: Array, nu: Array, speed: float = speed) -> None:
                gradient = self._random.standard_normal(value.shape, np.float32) * 0.1 - value
                mu += 0.1 * (gradient - mu)
                nu += 0.05 * (gradient * gradient - nu)
                value += speed * mu / (np.sqrt(nu) + 1e-8)

            jax.tree.map(update, part, self._mu[name], self._nu[name])
        return rate

    def break_block(self, name: str) -> None:
        """Put NaNs into each array of one block."""
        for value in jax.tree.leaves(self.params[name]):
            value.reshape(-1)[:: max(1, value.size // 5)] = np.nan

    def tree(self) -> Params:
        """Return the tree to save, which holds the arrays themselves."""
        count = np.asarray(self._count, np.int32)
        adam = optax.ScaleByAdamState(count=count, mu=self._mu, nu=self._nu)
        return {"params": self.params, "opt_state": (adam, optax.EmptyState())}


_SPLIT = ("q_proj", "k_proj", "v_proj")


def _norm(width: int) -> Mapping[str, Array]:
    return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}


def _break(root: Path, faults: Faults) -> None:
    """Damage the files of a run."""
    if faults.damaged is not None:
        _flip_byte(root / str(faults.damaged) / "cordwood.json")
    if faults.damaged_data is not None:
        files = sorted((root / str(faults.damaged_data)).glob("data-*"))
        _flip_byte(next(file for file in files if file.stat().st_nlink == 1))
    if faults.unfinished is not None:
        step = root / str(faults.unfinished)
        assert step.exists()
        (step / "cordwood.json").unlink()


def _flip_byte(file: Path) -> None:
    """Flip one bit in the middle of a file that no other step has."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
