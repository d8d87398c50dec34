"""The options of commands that take a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cordwood.recipes.recipe import Recipe

F = TypeVar("F", bound=Callable[..., Any])

MAX_CONFIG_BYTES = 16 << 20


def recipe_options(command: F) -> F:
    """Add --recipe, --inverse and --config to a command; it gets them as `recipe_of` takes them."""
    options = [
        click.option(
            "--recipe",
            "recipe_name",
            metavar="FILE|TARGET",
            help="Apply the recipe in this JSON file: other names, shapes and axes. Or the shipped "
            "one from files of Hugging Face to flax, maxtext, tunix or easydel.",
        ),
        click.option("--inverse", is_flag=True, help="Apply the inverse of the recipe."),
        click.option(
            "--config",
            "config_file",
            metavar="FILE",
            help="The config.json of the model: its family, and the sizes that the recipe needs. "
            "Also hf://org/model/config.json.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def recipe_of(recipe_name: str | None, config_file: str | None, *, inverse: bool) -> Recipe | None:
    """Return the recipe that the options ask for; None without --recipe.

    Raises click.UsageError for the other options without it, and FormatError for other files.
    """
    if recipe_name is None:
        if inverse or config_file is not None:
            raise click.UsageError("--inverse and --config are about a recipe: pass --recipe FILE")
        return None
    recipe = _recipe(recipe_name, config_file)
    return recipe.inverse() if inverse else recipe


def _recipe(name: str, config_file: str | None) -> Recipe:
    from cordwood.recipes.recipe import Recipe
    from cordwood.recipes.shipped_recipes import TARGETS, find_recipe

    config = None if config_file is None else _configuration(config_file)
    path = Path(name)
    if path.is_file():
        recipe = Recipe.from_json(path.read_bytes(), name=name)
        return recipe if config is None else recipe.with_config(config)
    if name not in TARGETS:
        raise click.UsageError(
            f"--recipe: the file {name} does not exist, and it is no target of the shipped "
            f"recipes ({', '.join(TARGETS)})"
        )
    if config is None:
        raise click.UsageError(f"--recipe {name} needs --config: the config.json of the model")
    try:
        return find_recipe(to=name, config=config)
    except ValueError as e:
        raise click.UsageError(str(e)) from e


def _configuration(name: str) -> dict[str, Any]:
    """Return the object in a JSON file, of a disk or of a model on the hub."""
    from cordwood.errors import FormatError
    from cordwood.loading.locate_step import locate_checkpoint
    from cordwood.storage.locations import parse_location, require_local

    path = Path(require_local(locate_checkpoint(parse_location(name))))
    data = path.read_bytes()
    if len(data) > MAX_CONFIG_BYTES:
        raise FormatError(f"{path}: expected at most {MAX_CONFIG_BYTES} bytes, found {len(data)}")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path} is not JSON: {e}") from e
    if not isinstance(config, dict):
        raise FormatError(f"{path}: expected an object, found {type(config).__name__}")
    return config
