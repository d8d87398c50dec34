"""Recipes as JSON: strictly read, with limits, so that a file from anywhere can be read. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import fields
from typing import Any, TypeVar, cast

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.recipes.field_types import MAX_ITEMS
from cordwood.recipes.rule import Rule

T = TypeVar("T")

VERSION = 1
MAX_BYTES = 4 << 20


def recipe_json(recipe: Any) -> str:
    """Return a `Recipe` as JSON, with a line for each rule."""
    head = _fields(recipe, leave_out={"rules"})
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    rules = ",\n".join([f"    {json.dumps(_fields(rule))}" for rule in recipe.rules])
    body = ",\n".join([f'  "cordwood_recipe": {VERSION}', *lines, f'  "rules": [\n{rules}\n  ]'])
    return f"{{\n{body}\n}}\n"


def parse_recipe(kind: type[T], text: str | bytes, *, name: str) -> T:
    """Return the recipe in a text; `kind` is `Recipe`. Raises as `Recipe.from_json` does."""
    if not isinstance(text, str | bytes):
        raise TypeError(f"from_json: expected JSON as str or bytes, found {type(text).__name__}")
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        raise FormatError(f"{name}: a recipe of {len(data)} bytes: expected at most {MAX_BYTES}")
    content = parse_json(data, name)
    version = content.pop("cordwood_recipe", None) if isinstance(content, dict) else None
    if type(version) is not int or version != VERSION:
        raise FormatError(
            f'{name} is no recipe: expected an object with "cordwood_recipe": {VERSION}'
        )
    rules = content.get("rules")
    if not isinstance(rules, list) or len(rules) > MAX_ITEMS:
        raise FormatError(f"{name}: rules: expected a list of at most {MAX_ITEMS} objects")
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
    for field_name in content:
        if field_name not in names:
            raise FormatError(
                f"{where}: unknown field {field_name!r:.80}: expected {', '.join(sorted(names))}"
            )
    try:
        return kind(**content)
    except (TypeError, ValueError) as e:
        raise FormatError(f"{where}: {e}") from e
