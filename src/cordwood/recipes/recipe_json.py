"""Recipes as JSON: strictly read, with limits, so that a file from anywhere can be read. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.recipes.rule import Rule

T = TypeVar("T")

VERSION = 1
MAX_BYTES = 4 << 20

_STRINGS = "a string, a list of strings or null"
_SIZES = "an object of numbers and expressions"
_TYPES: Mapping[str, str] = {
    **dict.fromkeys(["names", "paths"], _STRINGS),
    **dict.fromkeys(["axes", "path_axes", "name"], "a string"),
    **dict.fromkeys(["sizes", "pad"], _SIZES),
    **dict.fromkeys(["cat", "prefixes"], "an object of lists"),
    **dict.fromkeys(["scale", "add"], "a number, an expression or null"),
    **dict.fromkeys(["when", "store_dtype"], "a string or null"),
    **dict.fromkeys(["optional", "lossy", "reverse"], "true or false"),
    "roots": "a list of strings",
    "rules": "a list of objects",
}


def recipe_json(recipe: Any) -> str:
    """Return a `Recipe` as JSON, with a line for each rule."""
    head = _fields(recipe, leave_out={"rules"})
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    rules = ",\n".join([f"    {json.dumps(_fields(rule))}" for rule in recipe.rules])
    body = ",\n".join([f'  "cordwood_recipe": {VERSION}', *lines, f'  "rules": [\n{rules}\n  ]'])
    return f"{{\n{body}\n}}\n"


def parse_recipe(kind: type[T], text: str | bytes, *, name: str) -> T:
    """Return the recipe in a text; `kind` is `Recipe`. Raises as `Recipe.from_json` does."""
    data = text.encode() if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        raise FormatError(f"{name}: a recipe of {len(data)} bytes: expected at most {MAX_BYTES}")
    content = parse_json(data, name)
    version = content.pop("cordwood_recipe", None) if isinstance(content, dict) else None
    if type(version) is not int or version != VERSION:
        raise FormatError(
            f'{name} is no recipe: expected an object with "cordwood_recipe": {VERSION}'
        )
    rules = content.get("rules")
    if not isinstance(rules, list):
        raise FormatError(f"{name}: rules: expected a list of objects")
    content["rules"] = [_made(Rule, rule, f"{name}: rules[{i}]") for i, rule in enumerate(rules)]
    return _made(kind, content, name)


def _fields(value: Any, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes that differ from their defaults."""
    shown: dict[str, Any] = {}
    for each in fields(value):
        content = getattr(value, each.name)
        default = each.default_factory() if callable(each.default_factory) else each.default
        if each.name not in leave_out and content != default:
            shown[each.name] = content
    return shown


def _made(kind: type[T], content: Any, where: str) -> T:
    """Return a recipe or a rule of these fields."""
    if not isinstance(content, dict):
        raise FormatError(f"{where}: expected an object, found {type(content).__name__}")
    names = {each.name for each in fields(cast("Any", kind))}
    for field_name, value in content.items():
        if field_name not in names:
            raise FormatError(
                f"{where}: unknown field {field_name!r:.80}: expected {', '.join(sorted(names))}"
            )
        if not _fits(value, _TYPES[field_name]):
            raise FormatError(
                f"{where}: {field_name}: expected {_TYPES[field_name]}, found {value!r:.80}"
            )
    try:
        return kind(**content)
    except (TypeError, ValueError) as e:
        raise FormatError(f"{where}: {e}") from e


def _fits(value: Any, expected: str) -> bool:
    """Return True if a value of JSON is of a type as `_TYPES` describes it."""
    if value is None:
        return "null" in expected
    if isinstance(value, bool):
        return expected == "true or false"
    if isinstance(value, int | float):
        return "number" in expected and "object" not in expected
    if isinstance(value, str):
        return "a string" in expected or "an expression" in expected
    if isinstance(value, list):
        is_strings = all(isinstance(each, str) for each in value)
        return expected == "a list of objects" or ("list of strings" in expected and is_strings)
    if expected == "an object of lists":
        return all(isinstance(each, list) and all(map(_is_size, each)) for each in value.values())
    return expected == _SIZES and all(map(_is_size, value.values()))


def _is_size(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
