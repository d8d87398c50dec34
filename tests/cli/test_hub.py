"""The commands on a model of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import cordwood
from cordwood.recipes import Recipe, Rule
from tests.cli.conftest import Run
from tests.storage.hub_server import Hub, hub_for_tests


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_for_tests(tmp_path, monkeypatch) as hub:
        tensors = {"embed.weight": np.ones((4, 2), np.float32), "norm.weight": np.ones(2)}
        hub.publish(
            "org/toy", {"model.safetensors": save(tensors), "config.json": b'{"head_dim": 2}'}
        )
        yield hub


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["ls", "hf://org/toy"], "norm.weight"),
        (["info", "hf://org/toy"], "safetensors-shards"),
        (["show", "hf://org/toy", "embed.weight"], "embed.weight"),
        (["cat", "hf://org/toy@main", "norm.weight"], "[1. 1.]"),
        (["verify", "hf://org/toy"], "2 leaves"),
        (["diff", "hf://org/toy", "hf://org/toy@main"], "equal"),
        (["ls", "hf://org/toy/model.safetensors"], "norm.weight"),
    ],
)
def test_commands_that_read_take_a_model(
    hub: Hub, run: Run, arguments: list[str], shown: str
) -> None:
    ran = run(*arguments)
    assert ran.code == 0, ran.err
    assert shown in ran.out


def test_a_model_is_converted_to_a_directory(hub: Hub, run: Run, tmp_path: Path) -> None:
    assert run("convert", "hf://org/toy", tmp_path / "toy").code == 0
    assert run("diff", "hf://org/toy", tmp_path / "toy").code == 0


def test_a_recipe_takes_its_sizes_from_the_configuration_of_a_model(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    rules = [Rule("embed.weight", "(n h) d", "embed", "n h d"), Rule("norm.weight")]
    (tmp_path / "recipe.json").write_text(Recipe(rules, sizes={"h": "head_dim"}).to_json())
    options = ("--recipe", tmp_path / "recipe.json", "--config", "hf://org/toy/config.json")
    assert run("convert", "hf://org/toy", tmp_path / "tree", *options).code == 0
    assert cordwood.load(tmp_path / "tree")["embed"].shape == (2, 2, 2)
    ran = run("convert", "hf://org/toy", tmp_path / "other", *options[:3], "hf://org/toy/no.json")
    assert (ran.code, "no such file or folder" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["gc"], "hf:// can only be read"),
        (["doctor"], "hf:// can only be read"),
        (["rm", "--yes"], "hf:// can only be read"),
        (["steps"], "not a directory of steps"),
    ],
)
def test_commands_that_write_or_read_runs_refuse_a_model(
    hub: Hub, run: Run, command: list[str], message: str
) -> None:
    ran = run(*command, "hf://org/toy")
    assert ran.code in (1, 2, 3)
    assert message in ran.err
