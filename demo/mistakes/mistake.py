"""A mistake: what is saved, what happens to it, and how it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["NOT_ASKED", "Act", "Mistake", "Outcome", "Surroundings", "state"]

Tree = Callable[[], Any]  # made when it is needed: jax is slow to import
Act = Callable[[Path], Any]  # given what the library was asked to save to

NOT_ASKED = "—"  # of a library that the mistake cannot be made with


class Surroundings(NamedTuple):
    """A process of its own for the attempt."""

    devices: int | None = None
    full_disk: bool = False  # what lies in the folder is gone there; a disk of 1 MiB is in place
    unprivileged: bool = False  # root would be let in


class Mistake(NamedTuple):
    """One mistake. The attempt that is judged is a load, or the save where `act` is that.

    Without anything else, each library saves `saved` and loads it into `like`.
    """

    title: str
    how: str
    saved: Tree | None = None  # None: `state`, the same for all
    like: Tree | None = None  # None: what was saved
    saves: bool = False  # whether the save is the mistake
    change: Mapping[str, Act] | Act | None = None  # done to what was saved, before the attempt
    acts: Mapping[str, Act | str] = {}  # other attempts; a text says why there is none
    surroundings: Surroundings | None = None


class Outcome(NamedTuple):
    """What a library did: an error, or what it gave back, or why it was not asked."""

    error: str  # the name of its class; "": none
    text: str


def state() -> dict[str, Any]:
    """What is saved where it does not matter: two arrays and a number."""
    kernel = jax.random.uniform(jax.random.key(0), (64, 128))
    return {"dense": {"kernel": kernel, "bias": jnp.zeros(128)}, "step": jnp.array(7)}
