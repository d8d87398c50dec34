"""Loads with a recipe onto eight devices: right values, and each process reads its share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.io.open_files import LocalFile
from cordwood.recipes import Recipe, Rule
from tests.shardings import mesh_of

LAYERS, HEADS, WIDTH, MODEL = 2, 16, 32, 256
TREE = {
    **{
        f"layers.{i}.q": np.arange(HEADS * WIDTH * MODEL, dtype=np.float32).reshape(-1, MODEL) + i
        for i in range(LAYERS)
    },
    **{
        f"layers.{i}.experts.{e}": np.full((64, MODEL), 10 * i + e, np.float32)
        for i in range(LAYERS)
        for e in range(8)
    },
}
RECIPE = Recipe(
    [
        Rule("layers.{i}.q", "(n h) d", "q", "d i n h", sizes={"h": WIDTH}),
        Rule("layers.{i}.experts.{e}", "f d", "experts", "e i d f"),
    ]
)
SPECS = {"q": P(None, None, "x"), "experts": P("x")}
SIZE = sum([array.nbytes for array in TREE.values()])


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the size of each read."""
    sizes: list[int] = []
    original = LocalFile.read_into

    def read_into(file: Any, offset: int, views: Sequence[memoryview]) -> None:
        sizes.append(sum(map(len, views)))
        original(file, offset, views)

    monkeypatch.setattr(LocalFile, "read_into", read_into)
    return sizes


def expected() -> dict[str, np.ndarray]:
    layers = [TREE[f"layers.{i}.q"].reshape(HEADS, WIDTH, MODEL) for i in range(LAYERS)]
    experts = [[TREE[f"layers.{i}.experts.{e}"].T for i in range(LAYERS)] for e in range(8)]
    return {
        "q": np.stack(layers).transpose(3, 0, 1, 2),
        "experts": np.array(experts),
    }


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_load_onto_eight_devices(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("tree.safetensors" if kind == "file" else "tree")
    cordwood.save(path, TREE)
    mesh = mesh_of(8)
    loaded = cordwood.load(path, recipe=RECIPE, mesh=mesh, shardings=SPECS)
    for name, array in expected().items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].sharding.spec == SPECS[name]


def test_a_sharded_checkpoint_is_loaded_in_the_other_layout(tmp_path: Path) -> None:
    """The shards cut heads; they were saved by eight devices, and are loaded onto four."""
    mesh = mesh_of(8)
    placed = {
        name: jax.device_put(array, jax.sharding.NamedSharding(mesh, P("x", None)))
        for name, array in TREE.items()
    }
    cordwood.save(tmp_path / "tree", placed)
    few = Rule("layers.{i}.q", "(n h) d", "q", "d i n h", sizes={"n": 4})
    narrow = RECIPE.replace(rules=[few, RECIPE.rules[1]])
    loaded = cordwood.load(
        tmp_path / "tree", recipe=narrow, mesh=mesh_of(4), shardings={"q": P("x"), "experts": P()}
    )
    q = expected()["q"].reshape(MODEL, LAYERS, 4, -1)
    np.testing.assert_array_equal(loaded["q"], q)


def test_each_process_reads_little_more_than_its_share(tmp_path: Path, count: list[int]) -> None:
    """A process needs heads of all layers, and experts of all layers: ranges of their bytes."""
    path = tmp_path / "tree.safetensors"
    cordwood.save(path, TREE)
    plain = tmp_path / "plain.safetensors"  # without digests, as files of the hub
    write_without_digests(path, plain)
    with cordwood.open(plain, recipe=RECIPE) as checkpoint:
        for device in range(8):
            count.clear()
            q = checkpoint["q"][:, :, 2 * device : 2 * device + 2]
            experts = checkpoint["experts"][device : device + 1]
            assert sum(count) <= 1.1 * SIZE / 8
            np.testing.assert_array_equal(q, expected()["q"][:, :, 2 * device : 2 * device + 2])
            np.testing.assert_array_equal(experts, expected()["experts"][device : device + 1])


def write_without_digests(source: Path, target: Path) -> None:
    from safetensors.numpy import load_file, save_file

    save_file(load_file(source), target)


def test_a_step_of_a_run_is_restored_by_a_recipe(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, TREE)
    restored = cordwood.StepReader(tmp_path / "run").restore(recipe=RECIPE)
    assert restored is not None
    np.testing.assert_array_equal(restored.tree["q"], expected()["q"])
