"""The options --recipe, --inverse and --config of the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.recipes import Recipe, Rule
from tests.cli.conftest import Run
from tests.recipes.families.cases import read_case

RECIPE = Recipe([Rule("q.{i}", "(n h) d", "q", "i d n h")], sizes={"h": "head_dim"})


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = {f"q.{i}": np.arange(24, dtype=np.float32).reshape(8, 3) + i for i in range(2)}
    cordwood.save("hub.safetensors", tree)
    Path("recipe.json").write_text(RECIPE.to_json())
    Path("config.json").write_text(json.dumps({"head_dim": 2}))


def test_there_and_back(run: Run) -> None:
    options = ("--recipe", "recipe.json", "--config", "config.json")
    assert run("convert", "hub.safetensors", "jax", *options).code == 0
    assert cordwood.load("jax")["q"].shape == (2, 3, 4, 2)
    assert run("convert", "jax", "back.safetensors", *options, "--inverse").code == 0
    assert cordwood.diff("hub.safetensors", "back.safetensors").equal
    assert run("diff", "hub.safetensors", "jax", *options).code == 0


def test_a_shipped_recipe(run: Run) -> None:
    config = {"model_type": "vit", "architectures": ["ViTModel"], "num_attention_heads": 2}
    Path("config.json").write_text(json.dumps(config))
    shapes = read_case("vit-encoder").shapes
    cordwood.save("vit.safetensors", {name: np.ones(shape) for name, shape in shapes.items()})
    options = ("--recipe", "flax", "--config", "config.json")
    assert run("convert", "vit.safetensors", "jax", *options).code == 0
    assert cordwood.load("jax")["layers_0"]["attention"]["query"]["kernel"].shape == (24, 2, 12)
    assert run("convert", "jax", "back.safetensors", *options, "--inverse").code == 0
    assert cordwood.diff("vit.safetensors", "back.safetensors").equal


def test_the_configuration_is_written_on_the_way_back(run: Run) -> None:
    options = ("--recipe", "recipe.json", "--config", "config.json")
    assert run("convert", "hub.safetensors", "jax", *options).code == 0
    back = ("--inverse", "--format", "hugging_face", "--files-from", ".")
    result = run("convert", "jax", "back", *options, *back)
    assert (result.code, "copied: config.json" in result.out) == (0, True), result
    assert json.loads(Path("back/config.json").read_text()) == {"head_dim": 2}
    assert cordwood.diff("hub.safetensors", "back").equal


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--inverse",), 2, "pass --recipe"),
        (("--recipe", "missing.json"), 2, "missing.json does not exist, and it is no target"),
        (("--recipe", "flax"), 2, "--recipe flax needs --config"),
        (("--recipe", "flax", "--config", "config.json"), 2, "a config with model_type"),
        (("--recipe", "config.json"), 3, "config.json is no recipe"),
        (("--recipe", "recipe.json"), 3, "the sizes of n, h do not follow"),
        (("--recipe", "recipe.json", "--config", "hub.safetensors"), 3, "is not JSON"),
    ],
)
def test_what_is_refused(run: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = run("convert", "hub.safetensors", "jax", *arguments)
    assert (result.code, message in result.err) == (code, True), result
    assert not Path("jax").exists()
