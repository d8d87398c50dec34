"""A recipe that does not fit a tree: one error names all that does not fit, on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.errors import LossError, MismatchError
from cordwood.recipes import Recipe, Rule

TREE = {
    "embed.weight": np.arange(8, dtype=np.float32).reshape(4, 2),
    "layers.0.w": np.ones((2, 3), np.float32),
    "layers.1.w": np.zeros((2, 3), np.float32),
}
EMBED = Rule("embed.weight", "v d", "embed", "v d")
LAYERS = Rule("layers.{i}.w", "a b", "w", "i a b")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tree.safetensors"
    cordwood.save(path, TREE)
    return path


def test_every_name_that_does_not_match_is_named_with_the_nearest(path: Path) -> None:
    recipe = Recipe(
        [Rule("embedding.weight", "v d", "e", "v d"), Rule("layers.{i}.v", "a b", "w", "i a b")],
        name="mine",
    )
    with pytest.raises(MismatchError) as e:
        cordwood.load(path, recipe=recipe)
    assert str(e.value).splitlines() == [
        f"the recipe 'mine' does not fit {path}:",
        "  embed.weight: no rule takes it; the nearest name is embedding.weight",
        "  layers.0.w and 1 more like it: no rule takes it; the nearest name is layers.{i}.v",
        "  rule embedding.weight: it takes nothing; the nearest name is embed.weight",
        "  rule layers.{i}.v: it takes nothing; the nearest name is layers.1.w",
    ]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule("layers.{i}.w", "a", "w", "i a"), r"expected 1 axes, found the shape \[2, 3\]"),
        (
            Rule("layers.{i}.w", "(n h) b", "w", "i n h b"),
            r"the sizes of n, h do not follow from the shape \[2, 3\]",
        ),
        (
            Rule("layers.{i}.w", "(n h) b", "w", "i n h b", sizes={"h": 3}),
            r"2 for \(n h\) is no multiple of 3",
        ),
        (
            Rule("layers.{i}.w", "a b", "w", "i a b", sizes={"b": 4}),
            "expected 4 for b .*, found 3",
        ),
        (
            Rule("layers.{i}.w", "a b", "w", "i a b", sizes={"i": 3}),
            "layers.2.w is missing",
        ),
        (
            Rule("layers.{i}.w", "a b", "w", "i a b", pad={"b": 2}),
            "pad: b has 3 elements, more than 2",
        ),
        (
            Rule("layers.{i}.w", "a b", "w", "i a b", pad={"b": 10**15}),
            "pad: 1000000000000000 for b, which has 3 elements: expected at most 65536 more",
        ),
        (
            Rule("layers.{i}.w", "a b", "w", "i a b", scale="h"),
            "the size 'h' of scale or add is not known",
        ),
        (Rule("layers.{i}.w", "a b", "w", "i a b", scale=0), "scale is 0"),
        (
            Rule("layers.{i}.w", "a c", ["v", "w"], "i a c", cat={"c": ["a - 1", "a - 1"]}),
            r"cat: expected 1 \+ 1 = 2 for c, found 3",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named_with_the_rule(
    path: Path, rule: Rule, reason: str
) -> None:
    with pytest.raises(MismatchError, match=reason):
        cordwood.load(path, recipe=Recipe([EMBED, rule]))


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("i+j", "has the indices i, j: expected one"),
        ("i*i", "has to rise by the same step for each i"),
        ("0-i", "is -1: expected a whole number"),
        ("i+first", "the size 'first' is not known"),
    ],
)
def test_a_field_that_is_no_index(path: Path, field: str, reason: str) -> None:
    rule = Rule(f"layers.{{{field}}}.{{j}}.w", "a b", "w", "i j a b", optional=True)
    with pytest.raises(MismatchError, match=reason):
        cordwood.load(path, recipe=Recipe([EMBED, rule]))


def test_a_layer_in_the_middle_that_is_missing(tmp_path: Path) -> None:
    tree = {f"layers.{i}.w": np.ones(2) for i in (0, 1, 3, 4, 6, 7, 9)}
    cordwood.save(tmp_path / "t.safetensors", tree)
    with pytest.raises(MismatchError, match=r"layers.2.w, layers.5.w, layers.8.w are missing"):
        cordwood.load(
            tmp_path / "t.safetensors", recipe=Recipe([Rule("layers.{i}.w", "a", "w", "i a")])
        )


def test_a_rule_that_makes_one_path_of_two_shapes(path: Path) -> None:
    recipe = Recipe([Rule("embed.weight", "v d", "w", "d v"), LAYERS])
    with pytest.raises(MismatchError, match="twice, once as"):
        cordwood.load(path, recipe=recipe)


def test_a_path_inside_of_another(path: Path) -> None:
    recipe = Recipe([Rule("embed.weight", "v d", "w/x", "v d"), LAYERS])
    with pytest.raises(MismatchError, match=r"1 leaf is below another leaf:\n\s+w/x"):
        cordwood.load(path, recipe=recipe)


def test_options_that_do_the_same_are_refused(path: Path) -> None:
    recipe = Recipe([EMBED, LAYERS])
    with pytest.raises(ValueError, match="recipe and rename"):
        cordwood.load(path, recipe=recipe, rename={"embed": "x"})
    with pytest.raises(ValueError, match="recipe and transpose"):
        cordwood.convert(path, path.parent / "x", recipe=recipe, transpose="**")
    with pytest.raises(TypeError, match=r"expected a cordwood\.recipes\.Recipe, found dict"):
        cordwood.open(path, recipe={"rules": []})  # type: ignore[arg-type]


def test_selected_leaves_need_a_part_of_the_rules(path: Path) -> None:
    tree = cordwood.load(path, select="embed*", recipe=Recipe([EMBED, LAYERS]))
    assert tree.keys() == {"embed"}


def test_like_describes_what_the_recipe_makes(path: Path) -> None:
    like = {"embed": np.zeros((4, 2), np.float32), "w": np.zeros((2, 2, 3), np.float32)}
    tree = cordwood.load(path, like, recipe=Recipe([EMBED, LAYERS]))
    np.testing.assert_array_equal(tree["w"][0], TREE["layers.0.w"])
    with pytest.raises(MismatchError, match="w: expected"):
        cordwood.load(path, like | {"w": np.zeros((2, 3, 3))}, recipe=Recipe([EMBED, LAYERS]))


def test_arithmetic_that_does_not_come_back_is_refused_with_the_share(tmp_path: Path) -> None:
    import ml_dtypes

    path = tmp_path / "norm.safetensors"
    weight = np.linspace(-0.1, 0.1, 1000).astype(ml_dtypes.bfloat16)
    cordwood.save(path, {"norm": weight})
    recipe = Recipe([Rule("norm", "d", "scale", "d", add=1)])
    with pytest.raises(
        LossError, match=r"of 1000 elements of bfloat16, \d+ \(9\d.\d %\) would"
    ) as e:
        cordwood.load(path, recipe=recipe)
    assert 'recipe.replace(store_dtype="float32")' in str(e.value)
    exact = recipe.replace(store_dtype="float32")
    tree = cordwood.load(path, recipe=exact)
    assert tree["scale"].dtype == np.float32
    np.testing.assert_array_equal(tree["scale"], weight.astype(np.float32) + 1)
    cordwood.save(tmp_path / "out", tree)
    back = recipe.inverse().replace(store_dtype="bfloat16")
    np.testing.assert_array_equal(cordwood.load(tmp_path / "out", recipe=back)["norm"], weight)
    rounded = cordwood.load(path, recipe=recipe.replace(lossy=True))["scale"]
    np.testing.assert_array_equal(rounded, (weight.astype(np.float32) + 1).astype(weight.dtype))
    with pytest.raises(LossError, match="would not come back"):
        cordwood.convert(path, tmp_path / "converted", recipe=recipe)
    assert not (tmp_path / "converted").exists()
    cordwood.convert(path, tmp_path / "converted", recipe=recipe, lossy=True)


def test_a_scale_that_is_a_power_of_two_is_exact(tmp_path: Path) -> None:
    weight = np.arange(-500, 500).astype(np.float16)
    cordwood.save(tmp_path / "q.safetensors", {"q": weight})
    recipe = Recipe([Rule("q", "(n h)", "q", "n h", scale="h**-0.5")], sizes={"h": 4})
    scaled = cordwood.load(tmp_path / "q.safetensors", recipe=recipe)["q"]
    np.testing.assert_array_equal(scaled, (weight / 2).reshape(-1, 4))


def test_arithmetic_is_for_floating_arrays(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "i.safetensors", {"i": np.arange(3)})
    with pytest.raises(MismatchError, match="for floating arrays, found int64"):
        cordwood.load(tmp_path / "i.safetensors", recipe=Recipe([Rule("i", "d", "i", "d", add=1)]))


@pytest.mark.parametrize(("stored", "helps"), [("bfloat16", "float32"), ("float32", "float64")])
def test_the_dtype_that_an_error_advises_is_exact(stored: str, helps: str, tmp_path: Path) -> None:
    import ml_dtypes

    path = tmp_path / "norm.safetensors"
    dtype = ml_dtypes.bfloat16 if stored == "bfloat16" else np.float32
    weight = np.linspace(-0.1, 0.1, 1000).astype(dtype)
    cordwood.save(path, {"norm": weight})
    recipe = Recipe([Rule("norm", "d", "scale", "d", add=1)])
    with pytest.raises(LossError, match=rf'recipe.replace\(store_dtype="{helps}"\)'):
        cordwood.load(path, recipe=recipe)
    wide = recipe.replace(store_dtype=helps)
    cordwood.save(tmp_path / "tree", cordwood.load(path, recipe=wide))
    back = cordwood.load(tmp_path / "tree", recipe=wide.inverse().replace(store_dtype=stored))
    np.testing.assert_array_equal(back["norm"], weight)


@pytest.mark.parametrize("second", [np.arange(3.0), np.ones(3)])
def test_two_names_for_one_path_are_refused(second: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    cordwood.save(path, {"a": np.arange(3.0), "b": second})
    recipe = Recipe([Rule("a", "x", "c", "x"), Rule("b", "x", "c", "x")])
    with pytest.raises(MismatchError, match=r"makes c of .* twice, once as .* of a and .* of b"):
        cordwood.load(path, recipe=recipe)


def test_a_condition_without_a_number_is_refused(path: Path) -> None:
    recipe = Recipe([Rule("**", paths="**", when="1 - tied"), Rule("**", when="tied")])
    for some in (recipe, recipe.with_config({"tide": 0}), recipe.with_config({"tied": None})):
        with pytest.raises(MismatchError, match=r"the condition needs 'tied'.*with_config"):
            cordwood.load(path, recipe=some)
    assert cordwood.load(path, recipe=recipe.with_config({"tied": False}))
    for value in ("no", [0], float("nan")):
        with pytest.raises(ValueError, match="config: tied: expected a number, true or false"):
            recipe.with_config({"tied": value})
    with pytest.raises(TypeError, match=r"contents of a config\.json"):
        recipe.with_config("config.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64"])
def test_results_of_arithmetic_are_stored_as_floats(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"floating dtype such as 'float32', found '{dtype}'"):
        Recipe([EMBED], store_dtype=dtype)


def test_rules_of_another_type_are_named() -> None:
    with pytest.raises(TypeError, match="rules: expected a list of Rules, found Rule"):
        Recipe(EMBED)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rules: expected Rule\(names.*of type tuple"):
        Recipe([("a", "x", "b", "x")])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="roots: expected a list of strings, found 'params'"):
        Recipe([EMBED], roots="params")
