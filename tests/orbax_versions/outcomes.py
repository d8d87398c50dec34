"""The outcome of a restore: a short text, EQUAL if the tree is the one that was saved."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from tests.orbax_versions.digests import digests_of
from tests.orbax_versions.doors import DOORS
from tests.orbax_versions.outcomes_text import ABSENT, AS_ORBAX, EQUAL, EQUAL_DATA
from tests.orbax_versions.trees import expected_tree, is_key, target_of

# Before that, PRNG keys could not be saved.
STORES_KEYS = tuple(int(number) for number in ocp.__version__.split(".")[:2]) >= (0, 11)


def outcomes_of(case: Path, doors: Sequence[str] = ()) -> dict[str, str]:
    """Return the outcome of each of some doors, or of all, by its name."""
    tree = expected_tree(case.name)
    has_keys = any(map(is_key, jax.tree.leaves(tree)))
    if has_keys and not STORES_KEYS:
        tree = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)
    outcomes = {}
    for name in doors or DOORS:
        if not (case / DOORS[name].place).exists():
            outcomes[name] = ABSENT
            continue
        outcome = outcome_of(case, name, tree)
        if outcome != EQUAL and outcome == outcome_of_orbax(case, name, tree):
            outcome = AS_ORBAX + outcome
        if outcome == EQUAL and has_keys and not STORES_KEYS:
            outcome = EQUAL_DATA
        outcomes[name] = outcome
    return outcomes


def outcome_of(case: Path, door: str, tree: Any) -> str:
    """Restore a case and compare."""
    place, restore, expected = DOORS[door]
    target = target_of(tree)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            restored = restore((case / place).absolute(), target)
    except Exception as e:  # noqa: BLE001 - any error is an outcome
        return f"{type(e).__name__}: {message_of(e)}"
    lines, expected_lines = digests_of(restored), digests_of(expected(tree))
    for key in sorted({*lines, *expected_lines}):
        if lines.get(key) != expected_lines.get(key):
            return f"{key}: {lines.get(key)} instead of {expected_lines.get(key)}"
    if "target" in door and place in ("one", "plain") and not _is_placed(restored, target):
        return "on other devices than the target's"
    return EQUAL


def outcome_of_orbax(case: Path, door: str, tree: Any) -> str:
    """Return the outcome of a door for what Orbax itself saves of the tree."""
    if DOORS[door].place not in ("one", "plain"):
        door = "StandardCheckpointer, target"
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / case.name
        try:
            with ocp.PyTreeCheckpointer() as checkpointer:
                checkpointer.save(saved / DOORS[door].place, tree)
        except Exception as e:  # noqa: BLE001 - any error is an outcome
            return f"{type(e).__name__}: {message_of(e)}"
        return outcome_of(saved, door, tree)


def _is_placed(tree: Any, target: Any) -> bool:
    """Return whether the arrays are on the devices that a target asks for."""
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(target), strict=True)
    return all(
        leaf.sharding == aim.sharding
        for leaf, aim in leaves
        if isinstance(aim, jax.ShapeDtypeStruct)
    )


def message_of(error: Exception) -> str:
    """Return the first line of a message, without paths and addresses."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"0x[0-9a-f]+|/\S*", "...", line)[:200]
