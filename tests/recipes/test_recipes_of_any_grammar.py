"""Random recipes: what they make of a tree, numpy makes too; and they invert."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.recipes import Recipe
from tests.recipes.random_recipes import Example, random_example

SEEDS = range(60)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of flat key paths: dicts of string keys."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def flat_of(checkpoint: cordwood.Checkpoint) -> dict[str, cordwood.StoredLeaf]:
    return dict(checkpoint.items())


def assert_reads(path: Path, recipe: Recipe, expected: dict[str, Any], rng: random.Random) -> None:
    """Assert that a recipe makes these arrays of a file: wholes, and random boxes of them."""
    with cordwood.open(path, recipe=recipe) as checkpoint:
        assert {name.replace("'", "") for name in checkpoint} == set(expected)
        for name, leaf in checkpoint.items():
            array = expected[name.replace("'", "")]
            assert leaf.shape == array.shape
            np.testing.assert_array_equal(np.asarray(leaf), array, err_msg=name)
            if 0 not in array.shape:
                starts = [rng.randrange(size) for size in array.shape]
                ends = zip(starts, array.shape, strict=True)
                box = tuple([slice(start, rng.randint(start + 1, size)) for start, size in ends])
                np.testing.assert_array_equal(leaf[box], array[box], err_msg=f"{name}{box}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_recipe_makes_what_numpy_makes_and_inverts(seed: int, tmp_path: Path) -> None:
    recipe, names, paths = random_example(seed)
    rng = random.Random(seed)
    cordwood.save(tmp_path / "names.safetensors", names)
    cordwood.save(tmp_path / "paths", nested(paths))
    assert_reads(tmp_path / "names.safetensors", recipe, paths, rng)
    assert_reads(tmp_path / "paths", recipe.inverse(), names, rng)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe.inverse().inverse() == recipe


@pytest.mark.parametrize("seed", range(100, 110))
def test_a_random_recipe_of_compressed_chunks(seed: int, tmp_path: Path) -> None:
    recipe, names, paths = random_example(seed)
    path = tmp_path / "paths"
    cordwood.save(path, nested(paths), format="zarr", compression="zstd")
    assert_reads(path, recipe.inverse(), names, random.Random(seed))


@pytest.mark.parametrize("seed", range(200, 210))
def test_a_random_recipe_of_arrays_in_any_order(seed: int, tmp_path: Path) -> None:
    """Members of a .npz in Fortran order, and of big-endian elements."""
    recipe, names, paths = random_example(seed)
    stored: Any = {
        name: np.asfortranarray(array) if seed % 2 else array.astype(">f4")
        for name, array in names.items()
    }
    np.savez(tmp_path / "names.npz", **stored)
    assert_reads(tmp_path / "names.npz", recipe, paths, random.Random(seed))


@pytest.mark.parametrize("seed", range(300, 306))
def test_a_random_recipe_converts_there_and_back(seed: int, tmp_path: Path) -> None:
    recipe, names, paths = random_example(seed)
    cordwood.save(tmp_path / "names.safetensors", names)
    cordwood.convert(tmp_path / "names.safetensors", tmp_path / "paths", recipe=recipe)
    assert cordwood.diff(tmp_path / "paths", nested(paths), strict=False).equal or paths_equal(
        tmp_path / "paths", Example(recipe, names, paths)
    )
    assert cordwood.diff(tmp_path / "names.safetensors", tmp_path / "paths", recipe=recipe).equal
    back = tmp_path / "back.safetensors"
    cordwood.convert(tmp_path / "paths", back, recipe=recipe.inverse())
    assert cordwood.diff(tmp_path / "names.safetensors", back).equal


def paths_equal(path: Path, example: Example) -> bool:
    """Return True if a checkpoint has the arrays of an example, lists as dicts of positions."""
    with cordwood.open(path) as checkpoint:
        return all(np.array_equal(checkpoint[name], array) for name, array in example.paths.items())
