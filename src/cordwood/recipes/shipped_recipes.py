"""The recipes that cordwood ships: one table for each family of models, in families/. Pure."""

from __future__ import annotations

import difflib
import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cordwood.recipes.recipe import Recipe
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
        ValueError: there is no such family or target, or the table needs numbers that `config`
            does not have.

    Examples:
        >>> config = {"num_attention_heads": 12, "num_hidden_layers": 12}
        >>> recipe = find_recipe("vit", to="flax", config=config)
        >>> print(recipe.active_rules()[0])
        vit.embeddings.cls_token [1 1 d] <-> embed/class_token [1 1 d]
    """
    model_type = (config or {}).get("model_type") if family is None else family
    if model_type is None:
        raise ValueError("find_recipe: expected a family, or a config with model_type")
    name = str(model_type).lower()
    name = ALIASES.get(name, name)
    if name not in FAMILIES:
        raise ValueError(_unknown("family", name, [*FAMILIES, *ALIASES]))
    table = read_table(name)
    if to not in table["to"]:
        raise ValueError(_unknown(f"target of {name}", to, sorted(table["to"])))
    recipe = _recipe(name, to, CONTAINERS.get(to, "") if container is None else container)
    if config is not None:
        recipe = _for_model(recipe, table.get("models", {}), config.get("architectures") or ())
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

    The sizes in "checked" are those that shapes tell too: a file has to have them.
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


def _for_model(
    recipe: Recipe, models: Mapping[str, Mapping[str, str]], architectures: Sequence[str]
) -> Recipe:
    """Return the recipe for a class of models whose files have names with another beginning.

    Files of a model without its head lack what the names with other beginnings stand for.
    """
    beginnings = next((models[each] for each in architectures if each in models), None)
    if beginnings is None:
        return recipe
    ((standard, other),) = beginnings.items()
    rules = []
    for rule in recipe.rules:
        if all(name.startswith(standard) for name in rule.name_list):
            names = [other + name.removeprefix(standard) for name in rule.name_list]
            rules.append(replace(rule, names=names if len(names) > 1 else names[0]))
        else:
            rules.append(replace(rule, optional=True))
    return recipe.replace(rules=rules, prefixes={})


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
    return sorted({size.split(" | ")[-1] for name, size in unsolved.items() if name in words})


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"find_recipe: no {kind} {name!r}: expected one of {', '.join(sorted(known))}{hint}"
