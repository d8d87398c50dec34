"""The recipes that cordwood ships: one table for each family of models, in families/. Pure."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cordwood.did_you_mean import nearest_name
from cordwood.keypath import parse_path
from cordwood.recipes.field_types import is_strings
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.rule import Rule
from cordwood.recipes.size_expressions import evaluate, expression_names

FAMILIES = (
    "bert",
    "clip",
    "gemma2",
    "gemma3",
    "gpt2",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "t5",
    "vit",
    "whisper",
)

TARGETS = ("flax", "maxtext", "tunix", "easydel")

# Other names of families, and the `model_type` of a `config.json` where it is another one.
ALIASES = {
    "clip_text_model": "clip",
    "clip_vision_model": "clip",
    "gemma-2": "gemma2",
    "gemma-3": "gemma3",
    "gemma3_text": "gemma3",
    "llama2": "llama",
    "llama3": "llama",
    "qwen2.5": "qwen2",
    "qwen3-moe": "qwen3_moe",
}

# The container that holds the parameters in a checkpoint of the framework.
CONTAINERS = {"maxtext": "params/params"}


def find_recipe(
    family: str | None = None,
    *,
    to: str,
    config: Mapping[str, Any] | None = None,
    container: str | None = None,
) -> Recipe:
    """Return a shipped recipe, from the names of Hugging Face files to a tree of JAX.

    docs/recipes has a page for each family, with its tables.

    Args:
        family: such as "qwen3" or "gemma2". None: the `model_type` of `config`.
        to: "flax" (a plain nested tree), "maxtext" (scanned layers), "tunix" or "easydel".
        config: the contents of the `config.json` beside the files. It tells the numbers of heads
            and layers, whether the embedding is tied, and which part of a model the files hold.
        container: the path of the container that holds the parameters in the tree of JAX, or "".
            None: as the framework saves them, "params/params" for MaxText, "" for the others.

    Raises:
        TypeError: an argument has another type, or the container is no path.
        ValueError: there is no such family or target, or the table needs numbers that `config`
            does not have.

    Examples:
        >>> config = {"num_attention_heads": 12, "num_hidden_layers": 12}
        >>> recipe = find_recipe("vit", to="flax", config=config)
        >>> print(recipe.active_rules()[0])
        vit.embeddings.cls_token [1 1 d] <-> embed/class_token [1 1 d]
    """
    _require("to", to, isinstance(to, str), "a string")
    _require("family", family, isinstance(family, str | None), "a string")
    _require("config", config, isinstance(config, Mapping | None), "the contents of a config.json")
    _require("container", container, container is None or _is_container(container), "a path or ''")
    model_type = (config or {}).get("model_type") if family is None else family
    if model_type is None:
        raise ValueError("find_recipe: expected a family, or a config with model_type")
    _require("model_type", model_type, isinstance(model_type, str), "a string")
    name = model_type.lower()
    name = ALIASES.get(name, name)
    if name not in FAMILIES:
        raise ValueError(_unknown("family", name, [*FAMILIES, *ALIASES]))
    table = read_table(name)
    if to not in table["to"]:
        raise ValueError(_unknown(f"target of {name}", to, sorted(table["to"])))
    recipe = _recipe(name, to, CONTAINERS.get(to, "") if container is None else container)
    if config is not None:
        recipe = _with_required(recipe, table.get("required", {}), config)
        architectures = config.get("architectures") or []
        _require("architectures", architectures, is_strings(architectures), "a list of strings")
        recipe = _for_model(recipe, table.get("models", {}), architectures)
        checked = Recipe(recipe.rules, sizes={**recipe.sizes, **table.get("checked", {})})
        recipe = recipe.replace(sizes={**recipe.sizes, **checked.with_config(config).values})
        recipe = recipe.with_config(config)
    missing = _missing_numbers(recipe)
    if missing:
        raise ValueError(
            f"find_recipe: {name} to {to} needs {' and '.join(missing)}: pass the contents of the "
            "config.json beside the files as config="
        )
    return recipe


@cache
def read_table(family: str) -> Any:
    """Return the table of a family: title, notes, sizes, and the rules by target.

    The sizes in "checked" are those that shapes tell too: a file has to have them. "required" has
    the beginnings of names that are optional unless the configuration has a value; "models" has
    the beginnings of all names of a class of models, by those in the rules.
    """
    data = pkgutil.get_data("cordwood.recipes", f"families/{family}.json")
    return json.loads(data or b"")


def _recipe(family: str, to: str, container: str) -> Recipe:
    """Return the recipe of a table, with its paths below a container."""
    table = read_table(family)
    rules = [dict(rule) for rule in table["to"][to]]
    if container:
        for rule in rules:
            paths = rule.get("paths")
            if isinstance(paths, str):
                rule["paths"] = f"{container}/{paths}"
            elif paths is not None:
                rule["paths"] = [f"{container}/{path}" for path in paths]
    fields = {"sizes": table["sizes"], "prefixes": table.get("prefixes", {}), "rules": rules}
    text = json.dumps({"cordwood_recipe": 1, "name": f"{family} to {to}", **fields})
    return Recipe.from_json(text, name=f"families/{family}.json")


def _with_required(
    recipe: Recipe, required: Mapping[str, Mapping[str, Sequence[str]]], config: Mapping[str, Any]
) -> Recipe:
    """Return the recipe with rules that are optional in the table and not for this configuration.

    Args:
        recipe: the recipe.
        required: beginnings of names, by a key of the configuration and a value that it may have.
        config: the configuration.
    """
    beginnings: list[str] = []
    for key, by_value in required.items():
        value = config.get(key)
        for each in value if isinstance(value, list) else [value]:
            beginnings += by_value.get(str(each), ())
    rules = [
        replace(rule, optional=False) if rule.path_list and _begins(rule, beginnings) else rule
        for rule in recipe.rules
    ]
    return recipe.replace(rules=rules)


def _for_model(
    recipe: Recipe, models: Mapping[str, Mapping[str, str]], architectures: Sequence[str]
) -> Recipe:
    """Return the recipe for a class of models whose files have names with other beginnings.

    Names with beginnings that the class does not have may be missing: they are of its other parts.
    """
    beginnings = next((models[each] for each in architectures if each in models), None)
    if beginnings is None:
        return recipe
    rules = []
    for rule in recipe.rules:
        standard = next((each for each in beginnings if _begins(rule, [each])), None)
        if standard is None:
            rules.append(replace(rule, optional=True))
        else:
            other = beginnings[standard]
            names = [other + name.removeprefix(standard) for name in rule.name_list]
            rules.append(replace(rule, names=names if len(names) > 1 else names[0]))
    prefixes: dict[str, Sequence[str]] = {}
    for standard, others in recipe.prefixes.items():
        first = beginnings.get(standard, standard)
        prefixes[first] = [each for each in (standard, *others) if each != first]
    return recipe.replace(rules=rules, prefixes=prefixes)


def _begins(rule: Rule, beginnings: Sequence[str]) -> bool:
    """Return True if all names of a rule have one of these beginnings."""
    return all(name.startswith(tuple(beginnings)) for name in rule.name_list)


def _missing_numbers(recipe: Recipe) -> list[str]:
    """Return the names in a config that rules need and that have no number."""
    unsolved = {name: size for name, size in recipe.sizes.items() if isinstance(size, str)}
    rules = [
        rule
        for rule in recipe.rules
        if rule.when is None
        or not expression_names(rule.when) <= recipe.values.keys()
        or evaluate(rule.when, recipe.values)
    ]
    texts = [str(rule) for rule in rules]
    words = {word for text in texts for word in re.findall(r"[A-Za-z_][\w.]*", text)}
    expressions = [
        [part for part in size.split("|") if expression_names(part)][-1]
        for name, size in unsolved.items()
        if name in words
    ]
    return sorted(frozenset().union(*map(expression_names, expressions)))


def _require(name: str, value: object, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise TypeError(f"find_recipe: {name}: expected {expected}, found {value!r:.80}")


def _is_container(path: object) -> bool:
    if not isinstance(path, str) or set(path) & set("{}*"):
        return False
    try:
        parse_path(path)
    except ValueError:
        return False
    return True


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    close = nearest_name(name, known)
    hint = "" if close is None else f"; did you mean {close!r}?"
    return f"find_recipe: no {kind} {name!r}: expected one of {', '.join(sorted(known))}{hint}"
