"""Recipes: rules between the names and axes of two trees, which invert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.public_names import lazy_names

if TYPE_CHECKING:
    from cordwood.recipes.recipe import Recipe as Recipe
    from cordwood.recipes.rule import Rule as Rule
    from cordwood.recipes.shipped_recipes import find_recipe as find_recipe

_MODULE_OF = {
    "Recipe": "cordwood.recipes.recipe",
    "Rule": "cordwood.recipes.rule",
    "find_recipe": "cordwood.recipes.shipped_recipes",
}

__all__ = sorted(_MODULE_OF)

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
