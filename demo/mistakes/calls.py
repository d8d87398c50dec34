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


def _restore_misspelt(path: Path) -> Any:
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
        "the load stands in a function that `jax.jit` traces",
        acts={name: _inside_jit(name) for name in LIBRARIES},
    ),
    Mistake(
        "A container for a leaf",
        "`dense` is asked for as if it were an array, and holds two",
        acts=_only_cordwood(_open, "was not asked: these calls take no key path"),
    ),
    Mistake(
        "A misspelt argument",
        "`like` is called `liek`",
        acts=_only_cordwood(_restore_misspelt, "was not asked: its arguments have other names"),
    ),
    Mistake(
        "A tree in place of the step",
        "`manager.restore(state)`, and not `manager.restore(like=state)`",
        acts=_only_cordwood(_restore_without_like, "was not asked: its calls have other arguments"),
    ),
    Mistake(
        "An argument of another library",
        "`CheckpointManager(root, max_to_keep=3)`, as Orbax has it",
        acts=_only_cordwood(
            lambda path: _manager(path, max_to_keep=3),
            "was not asked: the argument is that of an Orbax manager",
        ),
    ),
    Mistake(
        "Several trees, and none named",
        "the directory holds the trees `ema` and `params`",
        acts=_only_cordwood(_load_of_two, "was not asked: what these calls save holds one tree"),
    ),
    Mistake(
        "Converting onto a checkpoint",
        "there is another checkpoint at the destination",
        acts=_only_cordwood(_convert_onto, "converts nothing"),
    ),
)
