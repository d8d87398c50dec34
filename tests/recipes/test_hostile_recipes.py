"""Values of other types and sizes for each argument: one clear error, at once, of few bytes."""

from __future__ import annotations

import itertools
import json
import traceback
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import CordwoodError, FormatError, MismatchError
from cordwood.recipes import Recipe, Rule, find_recipe

RULE: dict[str, Any] = {"names": "a.{i}", "axes": "d", "paths": "a", "path_axes": "i d"}
RECIPE = Recipe([Rule(**RULE)], name="mine")

# Values of every kind that none of the arguments below takes, besides those that some take.
NEVER = [
    *(b"x", object(), 1j, {1, 2}, itertools.count(), range(10**15), np.zeros(3), [[[]]], {3: 4}),
    *({"d": object()}, {"d": {"d": 1}}, [b"x"], [None], int, lambda: 1),
]
TEXT = [3, 1.5, True, [], ["x"], {}, {"d": 1}]
NAMES = [3, 1.5, True, {}, {"d": 1}, [3], [["x"]]]
FLAG = [3, 0, 1.5, "yes", [], {}, None]
SIZES = [3, 1.5, True, "x", [], ["d"], None, {"d": None}, {"d": [1]}, {"d": float("nan")}]
SIZES += [{"d": float("inf")}, {"d": 10**400}, {"d": 1 << 62}]
FACTOR = [True, [], {}, {"d": 1}, float("nan"), float("-inf"), 10**400]
LISTS = [3, True, "x", [], ["d"], None, {"d": 1}, {"d": "x"}, {"d": [None]}, {"d": [[1]]}]

OF_RULE = {
    **dict.fromkeys(["names", "paths"], NAMES),
    "axes": [*TEXT, None],
    "path_axes": [*TEXT, None],
    **dict.fromkeys(["sizes", "pad"], SIZES),
    **dict.fromkeys(["scale", "add"], FACTOR),
    "cat": LISTS,
    "when": TEXT,
    "optional": FLAG,
}
OF_RECIPE = {
    "rules": [3, True, "x", {}, {"d": 1}, None, [1], ["x"], [("a", "d", "a", "d")], RULE],
    "name": [*TEXT, None],
    "sizes": SIZES,
    "prefixes": [*LISTS, {"d": [1]}],
    "roots": [3, True, "x", {}, None, [3]],
    "store_dtype": TEXT,
    "lossy": FLAG,
    "reverse": FLAG,
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{i}")
        for name, values in table.items()
        for i, value in enumerate([*values, *NEVER])
    ]


def refused(call: Callable[[], object], *kinds: type[Exception]) -> str:
    """Return the message of a call that is refused, having allocated little."""
    tracemalloc.start()
    try:
        with pytest.raises(kinds) as e:
            call()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    raised = traceback.extract_tb(e.value.__traceback__)[-1]
    assert "/cordwood/" in raised.filename, "an error from inside"
    assert str(raised.line).startswith("raise"), raised.line
    assert len(str(e.value)) < 1000
    return str(e.value)


@pytest.mark.parametrize(("name", "value"), cases(OF_RULE))
def test_every_argument_of_a_rule(name: str, value: Any) -> None:
    message = refused(lambda: Rule(**RULE | {name: value}), TypeError)
    assert f"Rule: {name}: expected " in message
    assert ", found " in message


@pytest.mark.parametrize(("name", "value"), cases(OF_RECIPE))
def test_every_attribute_of_a_recipe_and_its_replacement(name: str, value: Any) -> None:
    arguments = {"rules": RECIPE.rules, name: value}
    message = refused(lambda: Recipe(**arguments), TypeError)
    assert f"{name}: expected " in message
    assert ", found " in message
    assert refused(lambda: RECIPE.replace(**{name: value}), TypeError)


def files(table: dict[str, list[Any]]) -> list[Any]:
    """Return the cases whose values JSON can have."""
    result: list[Any] = []
    for name, value in [each.values for each in cases(table)]:
        if isinstance(value, dict) and 3 in value:  # {"3": 4} in JSON
            continue
        rule = RULE | ({name: value} if table is OF_RULE else {})
        recipe = {"cordwood_recipe": 1, "rules": [rule]} | (
            {} if table is OF_RULE else {name: value}
        )
        try:
            result.append(
                pytest.param(json.dumps(recipe, allow_nan=False), id=f"{name}-{len(result)}")
            )
        except (TypeError, ValueError):
            continue
    return result


@pytest.mark.parametrize("text", [*files(OF_RULE), *files(OF_RECIPE)])
def test_every_field_of_a_file(text: str) -> None:
    message = refused(lambda: Recipe.from_json(text, name="evil.json"), FormatError)
    assert message.startswith("evil.json")


def test_an_attribute_that_a_recipe_does_not_have() -> None:
    message = refused(lambda: RECIPE.replace(lossi=True), TypeError)
    assert message.endswith("did you mean 'lossy'?")


@pytest.mark.parametrize("text", [3, None, [], bytearray(b"{}"), object(), Path("x")])
def test_a_file_is_text_or_bytes(text: Any) -> None:
    message = refused(lambda: Recipe.from_json(text), TypeError)
    assert "from_json: expected JSON as str or bytes, found" in message


@pytest.mark.parametrize("text", ["\ud800", b"\xff\xfe", "", "null", "[" * 10_000, "9" * 10_000])
def test_a_file_of_other_bytes(text: Any) -> None:
    refused(lambda: Recipe.from_json(text, name="evil.json"), FormatError)


@pytest.mark.parametrize("config", [3, None, "config.json", [], object(), b"{}"])
def test_a_configuration_is_a_mapping(config: Any) -> None:
    assert "config.json as a dict" in refused(lambda: RECIPE.with_config(config), TypeError)
    if config is not None:
        message = refused(lambda: find_recipe("llama", to="flax", config=config), TypeError)
        assert "find_recipe: config: expected" in message


VALUES = ["x", [1], {"a": 1}, float("nan"), float("inf"), 10**400, 1 << 62, object(), 1j]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.20}".split(" at ")[0])
def test_a_number_of_a_configuration(value: Any) -> None:
    recipe = RECIPE.replace(sizes={"d": "width", "e": "text.width | 1"})
    message = refused(lambda: recipe.with_config({"width": value}), ValueError)
    assert message.startswith("config: width: expected a number, true or false, found ")
    message = refused(lambda: recipe.with_config({"text": {"width": value}}), ValueError)
    assert message.startswith("config: text.width: expected a number")


def test_other_contents_of_a_configuration_do_not_matter() -> None:
    labels = {f"LABEL_{i}": i for i in range(30_000)}
    config: dict[Any, Any] = {
        "label2id": labels,
        3: 4,
        None: 5,
        "big": 10**400,
        "width": 4,
        "d": "x",
    }
    recipe = RECIPE.replace(sizes={"d": "width"}).with_config(config)
    assert recipe.sizes == {"d": 4, "width": 4}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("llama", 3), "to: expected a string"),
        ((3, "flax"), "family: expected a string"),
        ((b"llama", "flax"), "family: expected a string"),
        (("llama", "flax", {}, 3), "container: expected a path"),
        (("llama", "flax", {}, "{i}"), "container: expected a path"),
        (("llama", "flax", {}, "a/**"), "container: expected a path"),
        (("llama", "flax", {}, "a//b"), "container: expected a path"),
        ((None, "flax", {"model_type": 3}), "model_type: expected a string"),
        (("vit", "flax", {"architectures": 3, "num_attention_heads": 2}), "architectures: expec"),
        (("vit", "flax", {"architectures": [3], "num_attention_heads": 2}), "architectures: expec"),
    ],
    ids=str,
)
def test_every_argument_of_find_recipe(arguments: tuple[Any, ...], reason: str) -> None:
    names = dict(zip(("family", "to", "config", "container"), arguments, strict=False))
    message = refused(lambda: find_recipe(**names), TypeError, ValueError)
    assert f"find_recipe: {reason}" in message


def test_a_size_that_does_not_divide_is_no_size() -> None:
    recipe = Recipe([Rule("q", "(n h)", "q", "n h")], sizes={"n": "heads", "h": "width // heads"})
    message = refused(lambda: recipe.with_config({"width": 65, "heads": 4}), ValueError)
    assert "the size 'h': 'width // heads': 65 // 4 has the remainder 1" in message
    refused(lambda: recipe.replace(sizes={"h": "9 // 2"}), ValueError)
    floor = recipe.replace(sizes={"h": "(width - width % heads) // heads"})
    assert floor.with_config({"width": 65, "heads": 4}).sizes["h"] == 16
    rule = Rule("q", "(n h)", "q", "n h", sizes={"h": "w // 2"})
    with pytest.raises(MismatchError, match="5 // 2 has the remainder 1"):
        Recipe([rule], sizes={"w": 5}).explain({"q": np.zeros(6)})


@pytest.mark.parametrize("size", ["3 / 2", 1.5, -1, "0 - 2"])
def test_a_size_of_an_axis_is_a_whole_number(size: Any) -> None:
    recipe = Recipe([Rule("q", "(n h)", "q", "n h")], sizes={"h": size})
    with pytest.raises(MismatchError, match=r"h is -?\d[.\d]*: expected a whole number"):
        recipe.explain({"q": np.zeros(6)})


@pytest.mark.parametrize("field", ["i/2", "i+0.5", "i-1", "i // 2", "2 - i", "i * i"])
def test_an_index_in_a_name_is_a_whole_number(field: str) -> None:
    recipe = Recipe([Rule(f"l.{{{field}}}", "d", "w", "i d", optional=True)])
    for each, tree in ((recipe, {"l.1": np.zeros(2)}), (recipe.inverse(), {"w": np.zeros((2, 2))})):
        with pytest.raises(MismatchError, match="cannot be applied to the tree: "):
            each.explain(tree)


def test_sizes_that_divide_evenly_are_whole_numbers() -> None:
    recipe = Recipe([Rule("l.{i+n/2}", "d", "w", "i d")], sizes={"n": 4})
    table = recipe.explain({"l.2": np.zeros(2), "l.3": np.zeros(2)})
    assert [row.type for row in table.rows] == ["float64[2,2]"]
    back = recipe.inverse().explain({"w": np.zeros((2, 2))})
    assert [row.path for row in back.rows] == ["l.2", "l.3"]


def test_sizes_do_not_depend_on_their_order() -> None:
    sizes: dict[str, Any] = {"h": "x | 5", "x": "y + 1", "y": "m", "m": 2}
    for names in itertools.permutations(sizes):
        assert Recipe([Rule(**RULE)], sizes={name: sizes[name] for name in names}).values["h"] == 3
    assert RECIPE.replace(sizes={"h": "h | 4"}).values["h"] == 4
    assert RECIPE.replace(sizes={"h": "h | 4"}).with_config({"h": 6}).values["h"] == 6
    assert "h" not in RECIPE.replace(sizes={"h": "x", "x": "h"}).values


def test_small_factors_are_numbers() -> None:
    for scale in (1e-05, "1e-05", "2.5e3"):
        Recipe([Rule("q", "d", "q", "d", scale=scale)]).explain({"q": np.zeros(2)})


def chain(count: int) -> dict[str, str | int]:
    return {"s0": 1, **{f"s{i}": f"s{i - 1} + 1" for i in range(count, 0, -1)}}


@pytest.mark.parametrize(
    "make",
    [
        lambda: RECIPE.replace(sizes=chain(9000)),
        lambda: RECIPE.replace(sizes={"d": "2.5 ** 64 ** 2"}),
        lambda: RECIPE.replace(sizes={"d": "4611686018427387000.5 ** 64"}),
        lambda: RECIPE.replace(sizes={"d": "0" * 40 + "5"}),
        lambda: RECIPE.replace(sizes={"d": "|".join(["a"] * 10**5)}),
        lambda: Rule("a" * 10**6, "d", "a", "d"),
        lambda: Rule("a.{" + "9" * 10**5 + "}", "d", "a", "d"),
        lambda: Rule("a", "d " * 10**6, "a", "d"),
        lambda: Rule("a", "(" * 10**6, "a", "d"),
        lambda: Rule("a." + "{i}" * 300, "d", "a", "i d"),
        lambda: Rule("a." + "{i}1" * 300, "d", "a", "i d"),
        lambda: Rule("a", "d", "/".join(["a"] * 1000), "d"),
        lambda: RECIPE.replace(roots=["a" * 10**6]),
    ],
)
def test_long_values_are_refused_at_once(make: Callable[[], object]) -> None:
    refused(make, ValueError)


@pytest.mark.parametrize(
    ("rule", "shapes"),
    [
        (Rule("w", "i d", "l.{i}", "d"), {"w": (1 << 40, 0)}),
        (Rule("l.{i}", "d", "w", "i d"), {"l.999999999": (2,)}),
        (Rule("l.{i}.{j}", "d", "w", "i j d"), {"l.99999.99999": (2,)}),
        (Rule("l.{i}", "d", "w", "i d", sizes={"i": 10**15}), {"l.0": (2,)}),
        (Rule("w", "d", "w", "d", pad={"d": 10**15}), {"w": (2,)}),
        (Rule("w", "d", "w", "d", pad={"d": "10 ** 15"}), {"w": (2,)}),
        (
            Rule("w", "a b c", "w", "a b c", pad={"a": 65_000, "b": 65_000, "c": 65_000}),
            {"w": (1, 1, 1)},
        ),
    ],
)
def test_a_tree_that_would_be_huge_is_refused(
    rule: Rule, shapes: dict[str, tuple[int, ...]]
) -> None:
    tree = {name: np.zeros(shape) for name, shape in shapes.items()}
    text = Recipe([rule]).to_json()
    recipe = Recipe.from_json(text)
    refused(lambda: recipe.explain(tree), CordwoodError)
    cordwood.save("huge.safetensors", tree)
    refused(lambda: cordwood.load("huge.safetensors", recipe=recipe), CordwoodError)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
