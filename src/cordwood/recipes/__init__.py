"""Recipes: rules between the names and axes of two trees, which invert."""

from __future__ import annotations

from cordwood.recipes.explain_recipe import explain_recipe
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.rule import Rule
from cordwood.recipes.shipped_recipes import find_recipe

__all__ = ["Recipe", "Rule", "explain_recipe", "find_recipe"]
