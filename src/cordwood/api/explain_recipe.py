"""Recipe.explain: the table of what a recipe makes of a checkpoint or a tree."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from cordwood.index import Index
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.recipe_table import RecipeTable
from cordwood.recipes.tabulate_recipe import tabulate_recipe
from cordwood.storage.locations import is_path, parse_location
from cordwood.tree.index_of_tree import index_of_tree


def explain_recipe(
    recipe: Recipe, tree: Any, like: Any = None, config: Mapping[str, Any] | None = None
) -> RecipeTable:
    """Return the table of the leaves that a recipe makes, as `Recipe.explain`."""
    if config is not None:
        recipe = recipe.with_config(config)
    with ExitStack() as opened:
        index, name = _index_of(tree, opened)
        expected = None if like is None else _index_of(like, opened)[0]
        return tabulate_recipe(index, recipe, expected, where=name)


def _index_of(value: Any, opened: ExitStack) -> tuple[Index, str]:
    """Return the index and the name of a path, an open checkpoint or a tree."""
    if is_path(value):
        value = opened.enter_context(open_at(locate_checkpoint(parse_location(value))))
    if isinstance(value, Checkpoint):
        return value.index, value.path
    return index_of_tree(value, abstract=True), "the tree"
