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
            "recipe_file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Apply the recipe in this JSON file: other names, shapes and axes.",
        ),
        click.option("--inverse", is_flag=True, help="Apply the inverse of the recipe."),
        click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The config.json with the sizes that the recipe needs.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def recipe_of(
    recipe_file: Path | None, config_file: Path | None, *, inverse: bool
) -> Recipe | None:
    """Return the recipe that the options ask for; None without --recipe.

    Raises click.UsageError for the other options without it, and FormatError for other files.
    """
    if recipe_file is None:
        if inverse or config_file is not None:
            raise click.UsageError("--inverse and --config are about a recipe: pass --recipe FILE")
        return None
    from cordwood.recipes.recipe import Recipe

    recipe = Recipe.from_json(recipe_file.read_bytes(), name=str(recipe_file))
    if config_file is not None:
        recipe = recipe.with_config(_configuration(config_file))
    return recipe.inverse() if inverse else recipe


def _configuration(path: Path) -> dict[str, Any]:
    from cordwood.errors import FormatError

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
