"""The cases that cordwood writes: each tree as one checkpoint, as steps and as a composite step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cordwood
from tests.orbax_versions.trees import GROUPS, TREES, step_tree
from tests.processes.group import Group

STEPS = {1: 0.5, 2: 0.25, 3: 0.75}  # with the losses of the steps
COMPOSITE_STEP = 5
EXTRAS = {"meta": {"epoch": 3, "names": ["a"]}}

# Trees that Orbax could not restore.
REFUSED: dict[str, Any] = {
    "bytes": {"w": b"x"},
    "a complex Python number": {"w": 1j},
    "an integer of more than 64 bits": {"w": 1 << 63},
    "dates": {"w": np.array(["2020-01-01"], "datetime64[s]")},
    "uint4": {"w": np.zeros(2, jnp.uint4)},
    "two leaves with one name for Orbax": {"a": {"b": np.ones(1)}, "a.b": np.ones(1)},
}


def write_cases(folder: Path, names: Iterable[str]) -> None:
    """Write a directory for each tree, named by it."""
    for name in names:
        if name in GROUPS:
            with Group(GROUPS[name]) as group:
                group.run("orbax_steps.write", folder=str(folder / name))
        else:
            write_case(folder / name, TREES[name]())


def write_case(case: Path, tree: Any) -> None:
    cordwood.save(case / "one", tree, orbax=True)
    if jax.process_count() == 1:
        cordwood.save(case / "plain", tree, format="orbax")
    runs: dict[str, bool | str] = {"run": True, "state-run": "state"}
    for name, orbax in runs.items():
        with cordwood.CheckpointManager(case / name, orbax=orbax) as manager:
            for step, loss in STEPS.items():
                manager.save(step, step_tree(tree, step), metrics={"loss": loss})
    with cordwood.CheckpointManager(case / "composite", orbax="state") as manager:
        tree_of_step = step_tree(tree, COMPOSITE_STEP)
        manager.save(COMPOSITE_STEP, tree_of_step, items={"ema": tree}, extras=EXTRAS)


def refusals() -> dict[str, str]:
    """Return the message of each save that is refused, by the content of its tree."""
    messages = {}
    for name, tree in REFUSED.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                cordwood.save(f"{folder}/refused", tree, orbax=True)
            except cordwood.CordwoodError as error:
                messages[name] = f"{type(error).__name__}: {error}".replace(f"{folder}/", "")
    assert messages.keys() == REFUSED.keys()
    return messages
