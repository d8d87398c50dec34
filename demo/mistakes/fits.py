"""The mistakes with checkpoints that do not match the tree they are loaded into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import cordwood
from demo.mistakes.mistake import Mistake

__all__ = ["FITS"]


class Adam(NamedTuple):
    """An optimizer's state at the time of the save."""

    mu: Any
    nu: Any


class AdamW(NamedTuple):
    """The same state with an additional field."""

    mu: Any
    nu: Any
    decay: Any


def _f32(*shape: int) -> Any:
    return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)


def _bf16(*shape: int) -> Any:
    return _f32(*shape).astype(jnp.bfloat16)


def _orbax_partial(path: Path) -> Any:
    args = ocp.args.PyTreeRestore({"dens": {"kernel": _f32(4)}}, partial_restore=True)
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(path, args=args)


FITS: Sequence[Mistake] = (
    Mistake(
        "Another shape",
        "`kernel` was saved as float32[4,8] and is now float32[4,9]",
        lambda: {"dense": {"kernel": _f32(4, 8)}},
        lambda: {"dense": {"kernel": _f32(4, 9)}},
    ),
    Mistake(
        "Another dtype",
        "`kernel` was saved as bfloat16[4,8] and is now float32[4,8]",
        lambda: {"dense": {"kernel": _bf16(4, 8)}},
        lambda: {"dense": {"kernel": _f32(4, 8)}},
    ),
    Mistake(
        "A number too large for its new dtype",
        "`seen` was saved as int64 with the value 2**40, and is now int32, because jax's 64-bit "
        "types are disabled",
        lambda: {"seen": np.array([2**40])},
        lambda: {"seen": jnp.zeros(1, jnp.int32)},
    ),
    Mistake(
        "A leaf that was not saved",
        "the model now has a `bias`",
        lambda: {"dense": {"kernel": _f32(4, 8)}},
        lambda: {"dense": {"kernel": _f32(4, 8), "bias": _f32(8)}},
    ),
    Mistake(
        "A leaf that was removed",
        "a `bias` was saved, and the model no longer has one",
        lambda: {"dense": {"kernel": _f32(4, 8), "bias": _f32(8)}},
        lambda: {"dense": {"kernel": _f32(4, 8)}},
    ),
    Mistake(
        "A renamed key",
        "`kernel` was saved and is now called `kernl`",
        lambda: {"dense": {"kernel": _f32(4, 8), "bias": _f32(8)}},
        lambda: {"dense": {"kernl": _f32(4, 8), "bias": _f32(8)}},
    ),
    Mistake(
        "Two keys that were swapped",
        "`mu` and `nu` have the same shape, and their names were swapped after the save",
        lambda: {"a_mu": _f32(3), "b_nu": _f32(3) + 10},
        lambda: {"a_nu": _f32(3), "b_mu": _f32(3)},
    ),
    Mistake(
        "One layer more",
        "two layers were saved, and the model now has three",
        lambda: {"layers": [_f32(2), _f32(2)]},
        lambda: {"layers": [_f32(2), _f32(2), _f32(2)]},
    ),
    Mistake(
        "A list instead of a tuple",
        "a tuple was saved, and `like` has a list",
        lambda: {"layers": (_f32(2), _f32(2))},
        lambda: {"layers": [_f32(2), _f32(2)]},
    ),
    Mistake(
        "A new field in a named tuple",
        "`Adam(mu, nu)` was saved, and it is now `AdamW(mu, nu, decay)`",
        lambda: {"opt": Adam(_f32(2), _f32(2))},
        lambda: {"opt": AdamW(_f32(2), _f32(2), _f32(2))},
    ),
    Mistake(
        "None instead of an array",
        "an array was saved, and `like` has None in its place",
        lambda: {"kernel": _f32(4, 8), "ema": _f32(4, 8)},
        lambda: {"kernel": _f32(4, 8), "ema": None},
    ),
    Mistake(
        "An array instead of None",
        "None was saved, and `like` has an array in its place",
        lambda: {"kernel": _f32(4, 8), "ema": None},
        lambda: {"kernel": _f32(4, 8), "ema": _f32(4, 8)},
    ),
    Mistake(
        "A number instead of an array",
        "`step` was saved as an array and is now a Python number",
        lambda: {"step": jnp.array([3, 4])},
        lambda: {"step": 0},
    ),
    Mistake(
        "A dict instead of an array",
        "`kernel` was saved as an array and is now a dict",
        lambda: {"dense": {"kernel": _f32(4, 8)}},
        lambda: {"dense": {"kernel": {"a": _f32(4, 8)}}},
    ),
    Mistake(
        "Strings instead of numbers as keys",
        "the keys were 0 and 1 and are now '0' and '1'",
        lambda: {0: _f32(2), 1: _f32(2)},
        lambda: {"0": _f32(2), "1": _f32(2)},
    ),
    Mistake(
        "A raw PRNG key instead of a typed one",
        "`jax.random.PRNGKey(0)` was saved, and `like` has `jax.random.key(0)`",
        lambda: {"rng": jax.random.PRNGKey(0)},
        lambda: {"rng": jax.random.key(0)},
    ),
    Mistake(
        "Only the parameters of a training state",
        "the whole state was saved, and `like` is only its `params`",
        lambda: {"params": {"dense": {"kernel": _f32(4, 8), "bias": _f32(8)}}, "step": _f32(1)},
        lambda: {"dense": {"kernel": _f32(4, 8), "bias": _f32(8)}},
    ),
    Mistake(
        "Several at once",
        "one leaf has a different shape, one a different dtype, one a different name",
        lambda: {"a": _f32(4), "b": _f32(4), "kernel": _f32(4)},
        lambda: {"a": _f32(5), "b": _bf16(4), "kernl": _f32(4)},
    ),
    Mistake(
        "A misspelled part",
        "the load selects `dens`, and the part is called `dense`",
        lambda: {"dense": {"kernel": _f32(4) + 1}, "head": _f32(2)},
        acts={
            "cordwood": lambda path: cordwood.load(path, select="dens"),
            "orbax": _orbax_partial,
            "flax": "loads only whole trees",
            "equinox": "loads only whole trees",
        },
    ),
)
