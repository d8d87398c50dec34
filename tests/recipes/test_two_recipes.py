"""A recipe, or another option, on leaves that a recipe has made: as numpy does it, or refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, Rule
from tests.shardings import mesh_of

LAYERS, HEADS, WIDTH, MODEL = 4, 2, 4, 8
TREE = {
    **{
        f"layers.{i}.q": np.arange(HEADS * WIDTH * MODEL, dtype=np.float32).reshape(-1, MODEL) + i
        for i in range(LAYERS)
    },
    "embed": np.arange(12 * MODEL, dtype=np.float32).reshape(12, MODEL),
    "norm": np.arange(MODEL, dtype=np.float32),
}
Q = np.stack([TREE[f"layers.{i}.q"].reshape(HEADS, WIDTH, MODEL) for i in range(LAYERS)])
NORM = Rule("norm", "d", "norm", "d")
STACK = Rule("layers.{i}.q", "(n h) d", "q", "d i n h", sizes={"n": HEADS})
FIRST = {
    "stacks": Recipe([STACK, Rule("embed", "v d", "embed", "d v"), NORM]),
    "ties": Recipe(
        [STACK, Rule("embed", "v d", "embed", "d v"), Rule("embed", "v d", "head", "v d"), NORM]
    ),
}
MADE: dict[str, dict[str, np.ndarray]] = {
    "stacks": {"q": Q.transpose(3, 0, 1, 2), "embed": TREE["embed"].T, "norm": TREE["norm"]}
}
MADE["ties"] = {**MADE["stacks"], "head": TREE["embed"]}
REST = Rule("**", "...", "**", "...")
SECOND = {
    "unstacks": Recipe([Rule("q", "d i n h", "q_{i}", "(n h) d"), REST], sizes={"n": HEADS}),
    "other order": Recipe([Rule("q", "d i n h", "q", "n (i h) d"), REST], sizes={"i": LAYERS}),
    "pads": Recipe([Rule("embed", "d v", "embed", "d v", pad={"v": 16}), REST], sizes={"v": 12}),
    "scales": Recipe([Rule("embed", "d v", "embed", "v d", scale=0.5), REST]),
    "renames": Recipe([Rule("q", "...", "query/kernel", "..."), REST]),
}


def second(name: str, tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the second recipe makes, by numpy; nested names are joined."""
    tree = dict(tree)
    q, embed = tree["q"], tree["embed"]
    if name in ("unstacks", "renames"):
        del tree["q"]
    if name == "unstacks":
        layers = q.transpose(1, 2, 3, 0).reshape(LAYERS, -1, MODEL)
        return tree | {f"q_{i}": layer for i, layer in enumerate(layers)}
    if name == "renames":
        return tree | {"query/kernel": q}
    if name == "other order":
        return tree | {"q": q.transpose(2, 1, 3, 0).reshape(HEADS, -1, MODEL)}
    if name == "pads":
        return tree | {"embed": np.pad(embed, ((0, 0), (0, 4)))}
    return tree | {"embed": embed.T * np.float32(0.5)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "model.safetensors", TREE)
    return tmp_path / "model.safetensors"


def opened(path: Path, first: str) -> AbstractContextManager[Any]:
    return cordwood.open(path, recipe=FIRST[first])


def require(tree: Any, expected: dict[str, np.ndarray]) -> None:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= (
            {f"{name}/{k}": v for k, v in value.items()} if type(value) is dict else {name: value}
        )
    assert flat.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(flat[name], array)


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_a_second_recipe_is_that_of_numpy(path: Path, first: str, name: str) -> None:
    recipe, expected = SECOND[name], second(name, MADE[first])
    with opened(path, first) as checkpoint:
        for options in ({"to": "numpy"}, {"to": "numpy", "mmap": True}, {"to": "jax"}):
            require(checkpoint.load(recipe=recipe, **options), expected)
        cordwood.convert(checkpoint, path.parent / "converted", recipe=recipe)
        assert cordwood.diff(checkpoint, path.parent / "converted", recipe=recipe).equal
        with cordwood.open(path.parent / "converted", recipe=recipe.inverse()) as other:
            assert cordwood.diff(checkpoint, other).equal
            assert cordwood.diff(other, checkpoint, recipe=None).equal
    require(cordwood.load(path.parent / "converted", to="numpy"), expected)


@pytest.mark.parametrize("first", FIRST)
def test_the_inverse_of_an_open_recipe_gives_the_file(path: Path, first: str) -> None:
    with opened(path, first) as checkpoint:
        require(checkpoint.load(recipe=FIRST[first].inverse(), to="numpy"), TREE)


OPTIONS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "select": ({"select": "q"}, lambda tree: {"q": tree["q"]}),
    "rename": (
        {"rename": {"q": "r"}},
        lambda tree: {("r" if name == "q" else name): array for name, array in tree.items()},
    ),
    "transpose": ({"transpose": "embed"}, lambda tree: {**tree, "embed": tree["embed"].T}),
    "axes": (
        {"transpose": {"q": (2, 0, 3, 1)}},
        lambda tree: {**tree, "q": tree["q"].transpose(2, 0, 3, 1)},
    ),
    "cast": (
        {"cast": "float64"},
        lambda tree: {name: array.astype(np.float64) for name, array in tree.items()},
    ),
    "all": (
        {"select": "embed", "transpose": "embed", "cast": "float16"},
        lambda tree: {"embed": tree["embed"].T.astype(np.float16)},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("first", FIRST)
def test_other_options_apply_to_what_a_recipe_makes(path: Path, first: str, name: str) -> None:
    options, numpy = OPTIONS[name]
    expected = numpy(MADE[first])
    with opened(path, first) as checkpoint:
        require(checkpoint.load(to="numpy", **options), expected)
        cordwood.convert(checkpoint, path.parent / "converted", **options)
    require(cordwood.load(path.parent / "converted", to="numpy"), expected)


def test_select_chooses_what_the_second_recipe_takes(path: Path) -> None:
    expected = second("unstacks", MADE["stacks"])
    only = {name: array for name, array in expected.items() if name.startswith("q_")}
    with opened(path, "stacks") as checkpoint:
        require(checkpoint.load(select="q", recipe=SECOND["unstacks"], to="numpy"), only)
        cordwood.convert(
            checkpoint, path.parent / "converted", select="q", recipe=SECOND["unstacks"]
        )
    require(cordwood.load(path.parent / "converted", to="numpy"), only)


def test_slices_and_shards_are_those_of_the_second_recipe(path: Path) -> None:
    expected = second("other order", MADE["stacks"])
    with opened(path, "stacks") as checkpoint:
        np.testing.assert_array_equal(checkpoint["q"][1:7, 2:], MADE["stacks"]["q"][1:7, 2:])
        loaded = checkpoint.load(
            recipe=SECOND["other order"],
            mesh=mesh_of(8),
            rules=[("q", P(None, "x")), (".*", P())],
        )
    require(loaded, expected)
    assert {shard.data.shape for shard in loaded["q"].addressable_shards} == {(2, 2, 8)}


@pytest.mark.parametrize("options", [{"select": "layers.*.q"}, {"cast": "float16"}, {}])
def test_a_step_is_restored_by_a_recipe_and_options(tmp_path: Path, options: Any) -> None:
    with cordwood.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, TREE)
    restored = cordwood.StepReader(tmp_path / "run").restore(recipe=FIRST["stacks"], **options)
    assert restored is not None
    expected = MADE["stacks"]
    if "select" in options:
        expected = {"q": expected["q"]}
    if "cast" in options:
        expected = {name: array.astype(np.float16) for name, array in expected.items()}
    require(restored.tree, expected)


@pytest.mark.parametrize("option", ["rename", "transpose"])
def test_one_call_takes_a_recipe_or_its_short_forms(path: Path, option: str) -> None:
    options: dict[str, Any] = {"rename": {"q": "r"}, "transpose": "embed"}
    with pytest.raises(ValueError, match=f"recipe and {option}: put what {option} does into"):
        cordwood.load(path, recipe=FIRST["stacks"], **{option: options[option]})


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (Rule("embed", "v d", "embed", "v d", pad={"v": 16}), "pads"),
        (Rule("embed", "v d", "embed", "v d", scale=2), "scales or adds"),
    ],
)
def test_what_is_computed_is_converted_before_a_second_recipe(
    path: Path, rule: Rule, what: str
) -> None:
    recipe = Recipe([STACK, rule, NORM])
    turn = Recipe([Rule("embed", "v d", "embed", "d v"), REST])
    with cordwood.open(path, recipe=recipe) as checkpoint:
        expected = checkpoint["embed"][...].T
        match = rf"rearranges float32\[\d+,8\], which another .* embed and {what}: convert by that"
        with pytest.raises(MismatchError, match=match):
            checkpoint.load(recipe=turn)
        with pytest.raises(MismatchError, match=match):
            cordwood.convert(checkpoint, path.parent / "converted", recipe=turn)
        renamed = checkpoint.load(recipe=Recipe([REST]))  # nothing is rearranged
        np.testing.assert_array_equal(renamed["embed"], expected.T)
    cordwood.convert(path, path.parent / "converted", recipe=recipe)
    loaded = cordwood.load(path.parent / "converted", recipe=turn)
    np.testing.assert_array_equal(loaded["embed"], expected)
