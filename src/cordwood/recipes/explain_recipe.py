"""The table of what a recipe makes of a tree: names, shapes, and where they come from. Pure."""

from __future__ import annotations

from typing import Any

from cordwood.index import Arranged, Index, Inline, Leaf, leaf_text
from cordwood.keypath import format_path
from cordwood.plan.arrangements import arranged_sources
from cordwood.recipes.map_index import map_index
from cordwood.recipes.recipe import Recipe
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf


def explain_recipe(recipe: Recipe, tree: Any, like: Any = None) -> str:
    """Return a table of the leaves that a recipe makes of a tree. Nothing is read.

    Args:
        recipe: the recipe.
        tree: an open checkpoint, or a tree of arrays or of jax.ShapeDtypeStructs.
        like: a tree as the result should be; leaves that differ from it are marked.

    Returns:
        A line for each leaf: its key path, dtype and shape, and those that it is made of.

    Raises:
        MismatchError: the recipe does not fit the tree; the message has all that does not fit.
    """
    index = _index_of(tree)
    mapped = map_index(index, recipe, where=getattr(tree, "path", "the tree"))
    expected = None if like is None else _texts(_index_of(like))
    rows, notes = [], []
    for leaf, number in zip(mapped.stored.leaves, mapped.numbers, strict=True):
        sources = [index.leaves[number]]
        if isinstance(leaf.storage, Arranged):
            sources = arranged_sources(leaf)
        path, text = format_path(leaf.key_path), leaf_text(leaf)
        rows.append((path, text, _sources_text(sources)))
        wanted = text if expected is None else expected.pop(path, "nothing")
        notes.append("" if wanted == text else f"  (like has {wanted})")
    widths = [max([len(row[column]) for row in rows], default=0) for column in (0, 1)]
    lines = [
        f"{path:{widths[0]}} {text:{widths[1]}} <- {sources}{note}"
        for (path, text, sources), note in zip(rows, notes, strict=True)
    ]
    lines += [f"{path} {text}: only in like" for path, text in (expected or {}).items()]
    return "\n".join(lines)


def _index_of(tree: Any) -> Index:
    """Return the index of an open checkpoint or of a tree."""
    index = getattr(tree, "index", None)
    if isinstance(index, Index):
        return index
    flat = flatten(tree)
    leaves = []
    for path, leaf in zip(flat.paths, flat.leaves, strict=True):
        spec = describe_leaf(path, leaf, abstract=True)
        leaves.append(Leaf(path, spec.kind, spec.shape, spec.dtype, Inline(leaf)))
    return Index("tree", flat.structure, tuple(leaves), ())


def _texts(index: Index) -> dict[str, str]:
    return {format_path(leaf.key_path): leaf_text(leaf) for leaf in index.leaves}


def _sources_text(sources: list[Leaf]) -> str:
    """Return the first and the last of the leaves that a leaf is made of, and their number."""
    names = list(dict.fromkeys([format_path(leaf.key_path) for leaf in sources]))
    text = f"{names[0]} {leaf_text(sources[0])}"
    return text if len(names) == 1 else f"{text} to {names[-1]}, {len(names)} in all"
