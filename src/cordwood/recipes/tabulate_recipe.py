"""The making of the table of what a recipe makes of a tree. Pure."""

from __future__ import annotations

from cordwood.index import Arranged, Index, Leaf, leaf_text
from cordwood.keypath import format_path
from cordwood.plan.arrangements import arranged_sources
from cordwood.recipes.map_index import map_index
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.recipe_table import RecipeRow, RecipeTable


def tabulate_recipe(index: Index, recipe: Recipe, like: Index | None, *, where: str) -> RecipeTable:
    """Return the table of the leaves that a recipe makes of those of an index.

    Args:
        index: of the checkpoint or tree.
        recipe: the recipe.
        like: of a tree as the result should be.
        where: the name of the checkpoint or tree for errors.

    Raises MismatchError as `map_index` does.
    """
    mapped = map_index(index, recipe, where=where, like=like)
    expected = None if like is None else _types(like)
    rows = []
    for leaf, number in zip(mapped.stored.leaves, mapped.numbers, strict=True):
        sources = [index.leaves[number]]
        if isinstance(leaf.storage, Arranged):
            sources = arranged_sources(leaf)
        path = format_path(leaf.key_path)
        other = None if expected is None else expected.pop(path, "nothing")
        rows.append(RecipeRow(path, leaf_text(leaf), _sources_text(sources), other))
    rows += [RecipeRow(path, "", "", text) for path, text in (expected or {}).items()]
    return RecipeTable(tuple(rows))


def _types(index: Index) -> dict[str, str]:
    leaves = [leaf for leaf in index.leaves if leaf.kind != "opaque"]
    return {format_path(leaf.key_path): leaf_text(leaf) for leaf in leaves}


def _sources_text(sources: list[Leaf]) -> str:
    """Return the first and the last of the leaves that a leaf is made of, and their number."""
    names = list(dict.fromkeys([format_path(leaf.key_path) for leaf in sources]))
    text = f"{names[0]} {leaf_text(sources[0])}"
    return text if len(names) == 1 else f"{text} to {names[-1]}, {len(names)} in all"
