"""Names and arguments of other tools: the error says what to type instead."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from cordwood import CheckpointManager, StepReader
from cordwood.manager.argument_hints import ARGUMENTS, ATTRIBUTES

TREE = {"w": np.zeros(3)}


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("latest_step", "latest()"),
        ("all_steps", "steps()"),
        ("best_step", "best(), with keep=KeepBest"),
        ("wait_until_finished", "wait()"),
        ("item_metadata", "cordwood.open("),
    ],
)
def test_a_method_of_orbax_is_answered_with_the_one_to_use(
    tmp_path: Path, name: str, use: str
) -> None:
    for manager in (CheckpointManager(tmp_path), StepReader(tmp_path)):
        with pytest.raises(AttributeError) as caught:
            getattr(manager, name)
        kind = type(manager).__name__
        assert str(caught.value).startswith(f"{kind!r} object has no attribute {name!r}; use {use}")
        assert caught.value.name == name
    with pytest.raises(AttributeError, match=r"^'StepReader' object has no attribute 'nonsense'$"):
        StepReader(tmp_path).nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(CheckpointManager(tmp_path), "all_steps")


@pytest.mark.parametrize(
    ("arguments", "use"),
    [
        ({"max_to_keep": 3}, "use keep=3"),
        ({"save_interval_steps": 100}, "use save=100"),
        ({"options": None}, r"use arguments of CheckpointManager itself: save=100, keep=3"),
        ({"best_fn": min}, r"use keep=KeepBest\(3, 'loss'\), and metrics= of save"),
        ({"keeps": 3}, "did you mean 'keep'"),
        ({"zzz": 3}, "it takes root, save, keep, "),
    ],
)
def test_arguments_of_the_manager(tmp_path: Path, arguments: Any, use: str) -> None:
    (name,) = arguments
    message = rf"^CheckpointManager\(\) got an unexpected keyword argument '{name}'; {use}"
    with pytest.raises(TypeError, match=message):
        CheckpointManager(tmp_path, **arguments)


def test_arguments_of_save_and_restore(tmp_path: Path) -> None:
    manager: Any = CheckpointManager(tmp_path)
    with pytest.raises(
        TypeError, match=r"^save\(\) got .* 'args'; use the tree itself: save\(step"
    ):
        manager.save(1, args=TREE)
    with pytest.raises(TypeError, match=r"^save\(\) got .* 'metric'; did you mean 'metrics'\?"):
        manager.save(1, TREE, metric={})
    with pytest.raises(TypeError, match=r"^restore\(\) got .* 'liek'; did you mean 'like'\?"):
        manager.restore(liek=TREE)
    with pytest.raises(TypeError, match=r"^restore\(\) got .* 'restore_kwargs'; use like= and"):
        manager.restore(1, restore_kwargs=TREE)
    assert manager.steps() == []


def test_a_tree_in_the_place_of_the_step(tmp_path: Path) -> None:
    manager: Any = CheckpointManager(tmp_path)
    what = "step: expected an integer, found a value of type dict: the first argument"
    with pytest.raises(TypeError, match=what):
        manager.restore(TREE)
    with pytest.raises(TypeError, match=what):
        manager.save(TREE, 3)
    with pytest.raises(TypeError, match=r"step: expected an integer, found '7'$"):
        manager.restore("7")


def test_the_hints_are_true() -> None:
    theirs = ocp.CheckpointManager
    options = inspect.signature(ocp.CheckpointManagerOptions).parameters
    entries = {"latest_step", "all_steps", "best_step", "reload", "item_metadata", "directory"}
    assert entries <= set(dir(theirs)) & set(ATTRIBUTES)
    assert {"max_to_keep", "save_interval_steps", "best_fn", "keep_period"} <= set(options) & set(
        ARGUMENTS
    )
    for name, use in ATTRIBUTES.items():
        assert not hasattr(CheckpointManager, name)
        first = use.split("(")[0].split(",")[0].split(":")[0]
        if first.isidentifier() and first != "nothing":
            assert hasattr(CheckpointManager, first), use
    for call in (CheckpointManager.__init__, CheckpointManager.save):
        assert not set(ARGUMENTS) & set(inspect.signature(call).parameters)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        (
            {"lr": np.float32(3)},
            r"\['lr'\] is a float32; call .tolist\(\) on it, or save it in the",
        ),
        ({"a": [1, np.ones(3)]}, r"\['a'\]\[1\] is a ndarray; call .tolist\(\)"),
        ({"a": {3: "x"}}, r"\['a'\] has the key 3, a int; JSON holds dicts with keys that are str"),
        ({"shape": (1, 2)}, r"\['shape'\] is \(1, 2\); make it a list"),
        ({"loss": float("nan")}, r"\['loss'\] is nan; JSON holds .* finite float"),
        (object(), "it is a object; JSON holds dicts"),
    ],
)
def test_extras_that_are_not_json(tmp_path: Path, extras: Any, message: str) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(TypeError, match=f"^extras: expected values that JSON .*: {message}"):
        manager.save(1, TREE, extras=extras)
    assert manager.steps() == []
