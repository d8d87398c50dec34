"""Recipes: rules between the names and axes of two trees, which invert."""

from __future__ import annotations

from cordwood.recipes.recipe import Recipe
from cordwood.recipes.rule import Rule

__all__ = ["Recipe", "Rule"]
