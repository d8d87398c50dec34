"""A mistake: the saved tree, the change to the checkpoint, and the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["NOT_ASKED", "Act", "Mistake", "Outcome", "Surroundings", "state"]

Tree = Callable[[], Any]  # called when the tree is needed: jax is slow to import
Act = Callable[[Path], Any]  # called with the path that the library saved to

NOT_ASKED = "—"  # for a library in which the mistake is impossible


class Surroundings(NamedTuple):
    """The requirements of an attempt that needs its own process."""

    devices: int | None = None
    full_disk: bool = False  # the folder is empty, on a disk of 1 MiB
    unprivileged: bool = False  # root could access everything


class Mistake(NamedTuple):
    """One mistake. The attempt is a load, or the save if `saves` is true.

    By default each library saves `saved` and loads it into `like`.
    """

    title: str
    how: str
    saved: Tree | None = None  # None: `state`, the same for all
    like: Tree | None = None  # None: the saved tree
    saves: bool = False  # True if the save is the mistake
    change: Mapping[str, Act] | Act | None = None  # applied to the checkpoint before the attempt
    acts: Mapping[str, Act | str] = {}  # other attempts, or the reason why there is none
    surroundings: Surroundings | None = None


class Outcome(NamedTuple):
    """The outcome: an error, the returned tree, or the reason why there was no attempt."""

    error: str  # the name of its class; "" without an error
    text: str


def state() -> dict[str, Any]:
    """Return the default tree to save: two arrays and a number."""
    kernel = jax.random.uniform(jax.random.key(0), (64, 128))
    return {"dense": {"kernel": kernel, "bias": jnp.zeros(128)}, "step": jnp.array(7)}
