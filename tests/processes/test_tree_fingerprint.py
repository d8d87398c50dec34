"""Differences between processes are named, with the key path and the processes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cordwood.errors import ProcessError
from cordwood.processes.key_value_store import SINGLE_PROCESS, Processes
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprints import digest_of_elements, fingerprints, require_agreement
from cordwood.sharding.boxes import ShardGrid, single_process_grid
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf
from tests.processes.fake_processes import run_processes

SPREAD = ShardGrid((8,), ((0, 4),), ((0, 1), (2, 3)))
OTHERWISE = ShardGrid((8,), ((0, 4),), ((0, 2), (1, 3)))


def agree(processes: Processes, tree: Any, spread: dict[int, ShardGrid] | None = None) -> None:
    flat = flatten(tree)
    specs = [describe_leaf(path, leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)]
    spread = spread or {}
    shards = [spread.get(i, single_process_grid(spec.shape)) for i, spec in enumerate(specs)]
    local = {
        i: digest_of_elements(leaf)
        for i, leaf in enumerate(flat.leaves)
        if isinstance(leaf, np.ndarray) and i not in spread
    }
    with Rendezvous(processes, "save x", timeout_seconds=100, silence_seconds=100) as rendezvous:
        prints = fingerprints(flat.structure, specs, shards, local)
        require_agreement(rendezvous, prints, specs)


def tree(**changed: Any) -> dict[str, Any]:
    return {
        "w": np.arange(8.0),
        "b": np.asfortranarray(np.ones((3, 2), ml_dtypes.bfloat16)),
        "empty": np.zeros((0, 2)),
        "scalar": np.array(2),
        "step": 7,
        "name": "a\ud800",
        **changed,
    }


def errors(trees: list[Any], spread: list[dict[int, ShardGrid]] | None = None) -> list[str]:
    maps = spread or [{}] * len(trees)
    outcomes = run_processes(
        len(trees),
        lambda processes: agree(processes, trees[processes.index], maps[processes.index]),
    )
    assert all(isinstance(o.error, ProcessError) for o in outcomes), outcomes
    return [str(outcome.error) for outcome in outcomes]


def test_equal_trees_and_processes_that_are_alone() -> None:
    agree(SINGLE_PROCESS, tree())
    other = tree(w=np.arange(16.0)[::2] / 2)  # equal, whatever its strides
    trees = [tree(), other, tree(w=np.full(8, 5.0))]
    maps = [{0: SPREAD}] * 3  # of an array over all processes each holds a part
    outcomes = run_processes(3, lambda processes: agree(processes, trees[processes.index], maps[0]))
    assert [outcome.error for outcome in outcomes] == [None] * 3
    outcomes = run_processes(2, lambda processes: agree(processes, trees[processes.index]))
    assert [outcome.error for outcome in outcomes] == [None] * 2


def test_leaves_with_other_values_are_named_with_their_processes() -> None:
    trees = [tree() for _ in range(4)]
    trees[2]["step"] = 8
    trees[1]["w"][3] = trees[3]["w"][3] = -1
    texts = errors(trees)
    assert len(set(texts)) == 1
    assert texts[0].splitlines()[:3] == [
        "processes 1, 2 and 3 would save something else than process 0:",
        "  w: another value on processes 1 and 3",
        "  step: another value on process 2",
    ]
    assert "jax.make_array_from_process_local_data" in texts[0]


@pytest.mark.parametrize(
    "changed",
    [{"step": 7.0}, {"step": True}, {"w": np.arange(8.0, dtype=np.float32)}, {"w": np.zeros(9)}],
)
def test_leaves_of_another_type_are_named(changed: dict[str, Any]) -> None:
    (name,) = changed
    for text in errors([tree(), tree(**changed)]):
        assert f"\n  {name}: another type, shape or sharding on process 1\n" in text


def test_leaves_with_another_sharding_are_named() -> None:
    for text in errors([tree(), tree()], [{0: SPREAD}, {0: OTHERWISE}]):
        assert "\n  w: another type, shape or sharding on process 1\n" in text


@pytest.mark.parametrize(
    ("other", "count"), [(tree(more=1), "7 leaves"), ([1], "1 leaf"), ({}, "0 leaves")]
)
def test_another_structure_is_reported(other: Any, count: str) -> None:
    for text in errors([tree(), other]):
        assert f"\n  the tree: another structure ({count}), or dicts in another order, on" in text


def test_a_root_that_is_a_leaf() -> None:
    assert "\n  the root: another value on process 1\n" in errors([1, 2])[0]


def test_long_lists_are_cut() -> None:
    (text, _) = errors([{str(i): 0 for i in range(99)}, {str(i): 1 for i in range(99)}])
    assert len(text.splitlines()) == 23
    assert "... and 79 more" in text
