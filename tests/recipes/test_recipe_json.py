"""Recipes as JSON: exact, and hostile files are refused with a clear error."""

from __future__ import annotations

import json

import pytest

from cordwood.errors import FormatError
from cordwood.recipes import Recipe, Rule

RECIPE = Recipe(
    [
        Rule("embed.weight", "v d", "embed", "v d", pad={"v": 128}, scale="d ** 0.5"),
        Rule(["k.{i}", "v.{i}"], "(n h) d", "kv", "i L n d h", sizes={"n": "heads"}),
        Rule(["q", "k"], "c d", "qk", "d c", cat={"c": ["heads", 2]}),
        Rule("**.rotary", optional=True, when="1 - tied | 1"),
    ],
    name="example",
    sizes={"h": "head_dim | d // heads", "heads": 4},
    prefixes={"model.": ["", "language_model."]},
    roots=["params", "**/mu"],
)


def test_a_recipe_comes_back_from_its_json() -> None:
    assert Recipe.from_json(RECIPE.to_json()) == RECIPE
    assert Recipe.from_json(RECIPE.inverse().to_json().encode()) == RECIPE.inverse()
    assert all(len(line) < 250 for line in RECIPE.to_json().splitlines())  # a rule a line


def with_rule(**fields: object) -> str:
    rule = {"names": "a.{i}", "axes": "d", "paths": "a", "path_axes": "i d"}
    return json.dumps({"cordwood_recipe": 1, "rules": [rule | fields]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "is no recipe"),
        ('{"cordwood_recipe": 2, "rules": []}', "is no recipe"),
        ('{"cordwood_recipe": true, "rules": []}', "is no recipe"),
        ('{"cordwood_recipe": 1}', "rules: expected a list"),
        ('{"cordwood_recipe": 1, "rules": []}', "expected 1 to"),
        ('{"cordwood_recipe": 1, "rules": [3]}', r"rules\[0\]: expected an object"),
        ('{"cordwood_recipe": 1, "rules": [], "rules": []}', "occurs twice"),
        ("{", "is not JSON"),
        ("[" * 100_000, "nests too deeply|is not JSON"),
        (with_rule(hook="os.system"), "unknown field 'hook'"),
        (with_rule(names=3), "names: expected a string, a list"),
        (with_rule(names=[["a"]]), "names: expected a string, a list"),
        (with_rule(optional="yes"), "optional: expected True or False"),
        (with_rule(sizes=[1]), "sizes: expected numbers or expressions by name"),
        (with_rule(scale="__import__('os').system('x')"), "is no expression"),
        (with_rule(scale=True), "scale: expected a number"),
        (with_rule(axes="d d"), "twice"),
        (with_rule(axes="(d"), "not closed"),
        (with_rule(axes="(d ...)"), "cannot stand there"),
        (with_rule(axes="d " * 40), "twice|at most"),
        (with_rule(axes="d e"), "the same axes on both sides"),
        (with_rule(names="a"), "the same axes on both sides"),
        (with_rule(names="a.{i"), "a brace is not closed"),
        (with_rule(names="a.{i+}"), "is no expression"),
        (with_rule(names="a.x**.{i}"), r"\*\* has to be a key of its own"),
        (with_rule(names="**.{i}"), r"\*\* on both sides"),
        (with_rule(names="a" * 2000), "2000 characters"),
        (with_rule(names=[f"a.{i}" for i in range(5000)]), "at most 4096 names"),
        (with_rule(pad={"x": 3}), "is no axis of the rule"),
        (with_rule(paths="a//b"), "a//b"),
        (with_rule(path_axes="d"), "i is in the names of one side only"),
        (with_rule(cat={"d": [1]}), "cat: expected a size"),
        (with_rule(path_axes="i d L"), "a list of names beside an axis L"),
        (with_rule(cat={"d": "ab"}), "cat: expected lists of numbers"),
        (with_rule(pad={"d": -1}), "pad: d is -1: expected a whole number"),
        (with_rule(pad={"d": 10**30}), "pad: expected numbers"),
        (with_rule(pad={"d": 1e300}), "pad: expected numbers"),
        (with_rule(scale="|".join(["a"] * 1000)), "a text of 1999 characters"),
        (with_rule(names="a.{i}{j}"), "a character that is no digit after {i}"),
        (with_rule(names="a.{i}1"), "a character that is no digit after {i}"),
        (json.dumps({"cordwood_recipe": 1, "rules": [{}] * 10_001}), "at most 10000"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        Recipe.from_json(text, name="evil.json")


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(FormatError, match="at most"):
        Recipe.from_json(b" " * (5 << 20))


def test_an_error_names_the_file_and_the_rule() -> None:
    with pytest.raises(FormatError, match=r"evil.json: rules\[0\]: recipe, rule a.\{i\} \[d d\]"):
        Recipe.from_json(with_rule(axes="d d"), name="evil.json")


def test_sizes_come_from_a_configuration() -> None:
    config = {"head_dim": 16, "text_config": {"n": 3}, "heads": 8, "tied": True, "name": "x"}
    sizes = RECIPE.replace(sizes={**RECIPE.sizes, "k": "text_config.n * 2"}).with_config(config)
    assert sizes.values["h"] == 16
    assert sizes.values["k"] == 6
    assert sizes.values["heads"] == 8  # a number in a recipe is a default
    assert sizes.values["tied"] == 1
    assert "name" not in sizes.values


def test_a_recipe_prints_its_rules() -> None:
    assert str(RECIPE).splitlines()[:3] == [
        "recipe example, names to paths:",
        "  embed.weight [v d] <-> embed [v d]  pad={'v': 128}, scale='d ** 0.5'",
        "  k.{i} + v.{i} [(n h) d] <-> kv [i L n d h]  sizes={'n': 'heads'}",
    ]
