"""The mistakes of wrong calls and arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import cordwood
from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import Act, Mistake, state

__all__ = ["CALLS"]


def _only_cordwood(act: Act, why: str) -> Mapping[str, Act | str]:
    """Return an attempt with cordwood only, and the reason why the others have none."""
    return {"cordwood": act, **{name: why for name in LIBRARIES if name != "cordwood"}}


def _inside_jit(name: str) -> Act:
    load = LIBRARIES[name].load
    return lambda path: jax.jit(lambda like: load(path, like))(state())


def _open(path: Path) -> Any:
    with cordwood.open(path) as checkpoint:
        return checkpoint["dense"]


def _manager(path: Path, **arguments: Any) -> Any:
    return cordwood.CheckpointManager(path.with_name("run"), **arguments)


def _restore_without_like(path: Path) -> Any:
    return _manager(path).restore(state())


def _restore_misspelled(path: Path) -> Any:
    return _manager(path).restore(liek=state())


def _load_of_two(path: Path) -> Any:
    several = path.with_name("several")
    for prefix in ("ema", "params"):
        cordwood.save(several, state(), prefix=prefix)
    return cordwood.load(several)


def _convert_onto(path: Path) -> Any:
    other = path.with_name("other")
    cordwood.save(other, state())
    return cordwood.convert(path, other)


CALLS: Sequence[Mistake] = (
    Mistake(
        "Loading inside jit",
        "`load` is called in a function that `jax.jit` traces",
        acts={name: _inside_jit(name) for name in LIBRARIES},
    ),
    Mistake(
        "A container instead of a leaf",
        "`dense` is loaded like an array, but it is a container of two",
        acts=_only_cordwood(_open, "was not tried: these calls have no key path"),
    ),
    Mistake(
        "A misspelled argument",
        "`like` is spelled `liek`",
        acts=_only_cordwood(_restore_misspelled, "was not tried: its arguments have other names"),
    ),
    Mistake(
        "A tree instead of the step",
        "`manager.restore(state)` is called instead of `manager.restore(like=state)`",
        acts=_only_cordwood(_restore_without_like, "was not tried: its calls have other arguments"),
    ),
    Mistake(
        "An argument of another library",
        "`CheckpointManager(root, max_to_keep=3)`, an option of Orbax",
        acts=_only_cordwood(
            lambda path: _manager(path, max_to_keep=3),
            "was not tried: the argument belongs to Orbax's manager",
        ),
    ),
    Mistake(
        "Several trees, and no prefix",
        "the directory contains the trees `ema` and `params`",
        acts=_only_cordwood(_load_of_two, "was not tried: these calls save only one tree"),
    ),
    Mistake(
        "Converting to an existing checkpoint",
        "the destination already has a checkpoint",
        acts=_only_cordwood(_convert_onto, "has no conversion"),
    ),
)
