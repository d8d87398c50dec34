"""Random recipes from the grammar, with the trees on both sides of them, made by numpy."""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import numpy as np

from cordwood.recipes import Recipe, Rule

Array = np.ndarray[Any, Any]

_ATOMS = "abcdef"


class Example(NamedTuple):
    """A recipe, and the trees on both sides of it, flat: names and key paths to arrays."""

    recipe: Recipe
    names: dict[str, Array]
    paths: dict[str, Array]


def random_example(seed: int, rules: int = 4) -> Example:
    """Return a recipe of some rules and both of its trees."""
    rng = random.Random(seed)
    made = [_random_rule(rng, number) for number in range(rules)]
    names = {name: array for _, some, _ in made for name, array in some.items()}
    paths = {path: array for _, _, some in made for path, array in some.items()}
    return Example(Recipe([rule for rule, _, _ in made]), names, paths)


class _Axes(NamedTuple):
    text: str
    groups: list[list[str]]


def _random_axes(rng: random.Random, atoms: list[str]) -> _Axes:
    """Return the atoms in a random order, some of them grouped to one axis."""
    atoms = rng.sample(atoms, len(atoms))
    groups: list[list[str]] = []
    for atom in atoms:
        if groups and rng.random() < 0.4:
            groups[-1].append(atom)
        else:
            groups.append([atom])
    texts = [f"({' '.join(group)})" if len(group) > 1 else group[0] for group in groups]
    return _Axes(" ".join(texts), groups)


def _random_rule(
    rng: random.Random, number: int
) -> tuple[Rule, dict[str, Array], dict[str, Array]]:
    """Return a rule with the arrays of its names and of its paths.

    The elements of a rule are one array with an axis for each atom, index and list. A leaf is a
    part of it, transposed and reshaped.
    """
    sizes = {atom: rng.randint(1, 5) for atom in rng.sample(_ATOMS, rng.randint(1, 4))}
    shared = list(sizes)
    name_vars, path_vars = [], []  # indices in the names of one side, axes of the other or free
    for index in rng.sample("ijk", rng.randint(0, 2)):
        sizes[index] = rng.randint(1, 4)
        name_vars.append(index)
    if rng.random() < 0.3:
        sizes["u"] = rng.randint(1, 4)
        path_vars.append("u")
    free = [index for index in name_vars if rng.random() < 0.4]
    stacked = [index for index in name_vars if index not in free]
    lists = rng.choice(["", "", "names", "paths"])
    if lists:
        sizes["L"] = rng.randint(2, 3)
    extra = ["L"] if lists else []
    axes = _random_axes(rng, [*shared, *path_vars, *(extra if lists == "paths" else [])])
    path_axes = _random_axes(rng, [*shared, *stacked, *(extra if lists == "names" else [])])
    order = list(sizes)
    whole = np.arange(math.prod(sizes.values())).reshape([sizes[name] for name in order])
    whole = (whole + 1000 * number).astype(np.float32)
    pad = {}
    if rng.random() < 0.3 and [shared[0]] in path_axes.groups:
        pad[shared[0]] = sizes[shared[0]] + rng.randint(0, 3)
    step, first = rng.randint(1, 3), rng.randint(0, 3)
    names = _templates(f"r{number}", name_vars, ".", lists == "names", sizes, (step, first))
    paths = _templates(f"r{number}", [*free, *path_vars], "/", lists == "paths", sizes, (1, 0))
    rule = Rule(
        [text for text, _ in names],
        axes.text,
        [text for text, _ in paths],
        path_axes.text,
        sizes={name: size for name, size in sizes.items() if name != "L"},
        pad=pad,
    )
    name_leaves = _leaves(names, name_vars, axes, whole, order, sizes, (step, first), ".")
    path_leaves = _leaves(paths, [*free, *path_vars], path_axes, whole, order, sizes, (1, 0), "/")
    for path, array in path_leaves.items():
        widths = [
            (0, pad.get(group[0], 0) - sizes[group[0]] if group[0] in pad else 0)
            for group in path_axes.groups
        ]
        path_leaves[path] = np.pad(array, widths)
    return rule, name_leaves, path_leaves


def _templates(
    start: str,
    variables: list[str],
    separator: str,
    is_list: bool,
    sizes: dict[str, int],
    line: tuple[int, int],
) -> list[tuple[str, int]]:
    step, first = line
    keys = [start, *[f"{{{step}*{name}+{first}}}" for name in variables]]
    count = sizes["L"] if is_list else 1
    return [(separator.join([*keys, f"w{n}"]), n) for n in range(count)]


def _leaves(
    templates: list[tuple[str, int]],
    variables: list[str],
    axes: _Axes,
    whole: Array,
    order: list[str],
    sizes: dict[str, int],
    line: tuple[int, int],
    separator: str,
) -> dict[str, Array]:
    """Return the leaves of one side."""
    step, first = line
    leaves = {}
    atoms = [atom for group in axes.groups for atom in group]
    for text, position in templates:
        for values in np.ndindex(*[sizes[name] for name in variables]):
            at = dict(zip(variables, values, strict=True))
            if len(templates) > 1:
                at["L"] = position
            part = whole[tuple([at.get(name, slice(None)) for name in order])]
            rest = [name for name in order if name not in at]
            part = part.transpose([rest.index(atom) for atom in atoms])
            shape = [math.prod(sizes[atom] for atom in group) for group in axes.groups]
            numbers = [str(step * value + first) for value in values]
            keys = [text.split(separator)[0], *numbers, text.split(separator)[-1]]
            leaves[separator.join(keys)] = part.reshape(shape)
    return leaves
