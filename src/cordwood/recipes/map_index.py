"""The mapping of an index by a recipe: the same bytes under other names and shapes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from cordwood.did_you_mean import nearest_name
from cordwood.errors import MismatchError
from cordwood.index import LEAF, Index, Leaf, Naming, Node, leaf_text
from cordwood.keypath import KeyPath, format_path, parse_path
from cordwood.message_text import counted, first_lines
from cordwood.plan.arrangements import as_arranged
from cordwood.plan.moved_structure import TreeEnd, items_of, moved_structure
from cordwood.plan.path_patterns import Select
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.recipes.arrange_rule import (
    ArithmeticOptions,
    Made,
    OtherSizes,
    RuleArrangement,
    RuleError,
    UnknownSizesError,
)
from cordwood.recipes.index_ranges import AppliedRule, IndexRanges
from cordwood.recipes.match_rules import (
    DirectedRule,
    RuleMatches,
    match_rules,
    plain_leaf_name,
)
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.sizes_of_like import SizesOfLike

_MAX_LINES = 100
_DIGITS = re.compile(r"\d+")


def map_index(
    index: Index, recipe: Recipe, *, where: str, like: Index | None = None, partial: bool = False
) -> SelectedLeaves:
    """Return the leaves that a recipe makes of those of an index. Nothing is read.

    Args:
        index: the index of a checkpoint.
        recipe: the recipe.
        where: the checkpoint's name for errors.
        like: the index of a tree with the shapes that the leaves should have: it tells sizes that
            are not known otherwise.
        partial: True if the index has some leaves of a tree only: a rule may take nothing.

    Raises:
        MismatchError: a leaf is taken by no rule, a rule takes nothing, shapes do not fit or sizes
            are missing; the message has all of it.
    """
    if index.naming == "positions":
        raise MismatchError(f"{where} holds arrays without names, which a recipe needs")
    try:
        rules = [DirectedRule(rule, recipe) for rule in recipe.active_rules()]
    except ValueError as e:
        raise MismatchError(f"the {recipe.label} cannot be applied to {where}: {e}") from e
    matches = match_rules(recipe, rules, index.leaves, index.naming)
    problems = _unmatched(index, recipe, rules, matches, partial=partial)
    made, misfits = _made(index.leaves, recipe, rules, matches, like=like, partial=partial)
    if problems or misfits:
        lines = first_lines([*problems, *misfits], _MAX_LINES)
        hint = _inverse_hint(index, recipe, partial=partial) if problems else ""
        raise MismatchError(f"the {recipe.label} does not fit {where}:\n{lines}{hint}")
    return _placed(index, recipe, made, matches.others, where=where)


def _inverse_hint(index: Index, recipe: Recipe, *, partial: bool) -> str:
    """Return a line for the error of a recipe whose inverse takes all names; else nothing."""
    inverse = recipe.inverse()
    try:
        rules = [DirectedRule(rule, inverse) for rule in inverse.active_rules()]
    except ValueError:
        return ""
    matches = match_rules(inverse, rules, index.leaves, index.naming)
    makes_some = any(
        taken and rule.target.templates for rule, taken in zip(rules, matches.taken, strict=True)
    )
    if not makes_some or _unmatched(index, inverse, rules, matches, partial=partial):
        return ""
    return (
        "\nrecipe.inverse() fits these names: it is for the other direction; in a command, add "
        "--inverse, or leave it out"
    )


def require_alone(recipe: object, *, rename: object = None, transpose: object = None) -> None:
    """Raise unless a recipe is one, and there are no other options that do the same."""
    if not isinstance(recipe, Recipe):
        raise TypeError(
            f"recipe: expected a cordwood.recipes.Recipe, found {type(recipe).__name__}; "
            "Recipe.from_json reads one from the text of a file"
        )
    if rename or transpose is not None:
        name = "rename" if rename else "transpose"
        raise ValueError(f"recipe and {name}: put what {name} does into the rules of the recipe")


def map_selected(
    index: Index, recipe: Recipe, *, select: Select | None, where: str, like: Index | None = None
) -> SelectedLeaves:
    """Return the leaves that a recipe makes of the selected leaves of an index.

    Args:
        index: the index of a checkpoint.
        recipe: the recipe.
        select: patterns over the key paths of the index; None: everything.
        where: the checkpoint's name for errors.
        like: as for `map_index`.

    Raises MismatchError as `map_index` does, and for a pattern that matches nothing.
    """
    if select is None:
        return map_index(index, recipe, where=where, like=like)
    part = select_leaves(index, select=select, rename=None, where=where)
    mapped = map_index(part.stored, recipe, where=where, like=like, partial=True)
    return mapped._replace(numbers=tuple([part.numbers[number] for number in mapped.numbers]))


def _made(
    leaves: Sequence[Leaf],
    recipe: Recipe,
    rules: Sequence[DirectedRule],
    matches: RuleMatches,
    *,
    like: Index | None,
    partial: bool,
) -> tuple[list[Made], list[str]]:
    """Return the leaves that the rules make, and a line for each rule that does not fit."""
    options = ArithmeticOptions(recipe.store_dtype, recipe.lossy)
    applied = [
        AppliedRule(rule, RuleArrangement(rule, reverse=recipe.reverse, options=options), taken)
        for rule, taken in zip(rules, matches.taken, strict=True)
        if taken and rule.target.templates
    ]
    ranges = IndexRanges([] if partial else applied, leaves)
    lengths = ranges.lengths()
    made: list[Made] = []
    problems: list[str] = []
    sizes = _SizesOfOthers(recipe, applied, leaves, like)
    for number, each in enumerate(applied):
        misfits = [] if partial else list(ranges.problems(each))
        problems += [f"rule {each.rule.rule.label}: {text}" for text in misfits]
        if misfits:
            continue
        try:
            made += _made_by(each, leaves, lengths, sizes.attempts(number))
        except RuleError as e:
            problems.append(f"rule {each.rule.rule.label}: {e}")
    return made, problems


def _made_by(
    rule: AppliedRule,
    leaves: Sequence[Leaf],
    lengths: Mapping[tuple[str, str], int],
    attempts: Iterator[OtherSizes],
) -> list[Made]:
    """Return the leaves that a rule makes, by the first sizes that are enough."""
    for others in attempts:
        try:
            return list(rule.arrangement.make(rule.taken, leaves, lengths, others))
        except UnknownSizesError as e:
            error = e
    raise error


class _SizesOfOthers:
    """Sizes for axes of rules that the shapes of their leaves do not tell."""

    def __init__(
        self,
        recipe: Recipe,
        rules: Sequence[AppliedRule],
        leaves: Sequence[Leaf],
        like: Index | None,
    ) -> None:
        self._recipe = recipe
        self._rules = rules
        self._leaves = leaves
        self._like = like

    def attempts(self, number: int) -> Iterator[OtherSizes]:
        """Yield the sizes to try for a rule: none, those of other leaves, and those of `like`."""
        yield OtherSizes()
        yield OtherSizes(self._inferred)
        if self._of_like is not None:
            yield OtherSizes(self._inferred, self._of_like.of_rule(number))

    @cached_property
    def _inferred(self) -> dict[str, int]:
        """The sizes that the shapes of other leaves tell, where all of them agree."""
        sizes: dict[str, set[int]] = {}
        for _, arrangement, taken in self._rules:
            try:
                solved = arrangement.sizes(taken, self._leaves)
            except ValueError:
                continue
            for name, size in solved.items():
                sizes.setdefault(name, set()).add(size)
        return {name: next(iter(some)) for name, some in sizes.items() if len(some) == 1}

    @cached_property
    def _of_like(self) -> SizesOfLike | None:
        if self._like is None:
            return None
        return SizesOfLike(self._recipe, [each.rule for each in self._rules], self._like)


def _unmatched(
    index: Index,
    recipe: Recipe,
    rules: Sequence[DirectedRule],
    matches: RuleMatches,
    *,
    partial: bool,
) -> list[str]:
    """Return a line for each name that no rule takes, and for each rule that takes nothing."""
    names = [plain_leaf_name(leaf, index.naming, recipe) for leaf in index.leaves]
    templates = [template.text for rule in rules for template in rule.source.templates]
    shown = [format_path(leaf.key_path) for leaf in index.leaves]
    lines = [] if partial else _unmatched_roots(recipe, names, matches)
    alike: dict[str, list[int]] = {}
    for number in matches.untaken:
        alike.setdefault(_DIGITS.sub("0", names[number]), []).append(number)
    for numbers in alike.values():
        leaf = index.leaves[numbers[0]]
        more = f" and {len(numbers) - 1} more like it" if len(numbers) > 1 else ""
        text = f"{format_path(leaf.key_path)}{more}: no rule takes it"
        lines.append(text + _nearest(names[numbers[0]], templates))
    if partial:
        return lines
    for rule, taken in zip(rules, matches.taken, strict=True):
        optional = rule.rule.optional or not rule.target.templates
        if not (taken or optional) and rule.source.templates:
            text = " + ".join([template.text for template in rule.source.templates])
            lines.append(f"rule {text}: it takes nothing{_nearest(text, shown)}")
    return lines


def _unmatched_roots(recipe: Recipe, names: Sequence[str], matches: RuleMatches) -> list[str]:
    """Return a line for each root that is no container of a leaf."""
    containers = {name[: at.start()]: None for name in names for at in re.finditer("/", name)}
    lines = []
    for root in recipe.roots:
        if root not in matches.roots:
            others = [each.split("/")[-1] if "**/" in root else each for each in containers]
            nearest = _nearest(root.removeprefix("**/"), others)
            lines.append(f"root {root}: no leaf is below it{nearest}")
    return lines


def _nearest(name: str, others: Sequence[str]) -> str:
    """Return the end of a message on a name: the other one that it is most like."""
    plain = {_plain(other): other for other in others}
    close = nearest_name(_plain(name), plain)
    return "" if close is None else f"; the nearest name is {plain[close]}"


def _plain(name: str) -> str:
    return _DIGITS.sub("0", re.sub(r"\{[^}]*\}", "0", name)).replace(".", "/")


class _Placed(NamedTuple):
    """An item of the new tree, and what it is made of."""

    first: int  # the position of its first source, by which items are ordered
    item: TreeEnd
    path: KeyPath
    made: Made | None  # None for what stays as it is


def _placed(
    index: Index, recipe: Recipe, made: Sequence[Made], others: Sequence[int], *, where: str
) -> SelectedLeaves:
    """Return the leaves at their new paths, with those that stay, in a structure."""
    joined = recipe.reverse and recipe.separator == "."
    naming: Naming = "dotted" if joined else _naming_of_paths(index.naming)
    unique = _without_copies(made, recipe, index, where=where)
    placed = [
        _Placed(each.first, TreeEnd((), (), LEAF, i), path, each)
        for i, (path, each) in enumerate(unique.items())
    ]
    if recipe.roots != ("",):
        stay = set(others)
        roots = {path[:n] for path in unique for n in range(len(path) + 1)}
        items = items_of(index.structure, [leaf.key_path for leaf in index.leaves])
        first = 0
        for item in items:
            first = max(first, item.number)
            if item.number in stay or (item.number < 0 and item.path not in roots):
                placed.append(_Placed(first, item, item.path, None))
    placed.sort(key=lambda each: each.first)
    paths = [each.path for each in placed]
    _require_no_path_in_another(paths, where=where)
    if joined:
        keys = tuple([str(path[0]) for path in paths])
        structure = (Node("dict", len(keys), keys), *[LEAF] * len(keys))
        order: Sequence[int] = range(len(placed))
        moved = frozenset({(), *paths})
    else:
        structure, order, moved = moved_structure([each.item for each in placed], paths)
    leaves, numbers = [], []
    for position in order:
        _, item, path, one = placed[position]
        leaf = index.leaves[item.number] if one is None else one.leaf
        leaves.append(leaf._replace(key_path=path))
        numbers.append(item.number if one is None else one.first)
    stored = index._replace(structure=structure, leaves=tuple(leaves), naming=naming, shardings={})
    return SelectedLeaves(stored, tuple(numbers), moved=moved)


def _naming_of_paths(naming: Naming) -> Naming:
    return naming if naming in ("strings", "keys") else "exact"


def _without_copies(
    made: Sequence[Made], recipe: Recipe, index: Index, *, where: str
) -> dict[KeyPath, Made]:
    """Return the leaves by path; one that is made twice has the second as a copy to compare."""
    unique: dict[KeyPath, Made] = {}
    for each in made:
        path = _path(each, recipe, index)
        other = unique.get(path)
        if other is None:
            unique[path] = each
            continue
        one, two = other.leaf, each.leaf
        alike = (one.shape, one.dtype, one.kind) == (two.shape, two.dtype, two.kind)
        if not (recipe.reverse and alike):
            raise MismatchError(
                f"the recipe makes {format_path(path)} of {where} twice, once as "
                f"{leaf_text(one)} of {format_path(one.key_path)} and once as {leaf_text(two)} of "
                f"{format_path(two.key_path)}; a tie is one name with two paths"
            )
        storage = as_arranged(one)
        copies = (*storage.copies, as_arranged(two))
        unique[path] = other._replace(leaf=one._replace(storage=storage._replace(copies=copies)))
    return unique


def _path(made: Made, recipe: Recipe, index: Index) -> KeyPath:
    if recipe.reverse and recipe.separator == ".":
        root = made.root.replace("/", ".")
        return (f"{root}.{made.name}" if root else made.name,)
    keys = parse_path("/".join(filter(None, [made.root, made.name])))
    if _naming_of_paths(index.naming) != "exact":  # then every key is a string
        keys = tuple([str(key) if isinstance(key, int) else key for key in keys])
    return keys


def _require_no_path_in_another(paths: Sequence[KeyPath], *, where: str) -> None:
    """Raise MismatchError if a leaf would stand where others need a container."""
    leaves = set(paths)
    inside = [path for path in paths for n in range(len(path)) if path[:n] in leaves]
    if inside:
        names = first_lines([format_path(path) for path in inside], _MAX_LINES)
        count = counted(len(inside), "leaf is", "leaves are")
        raise MismatchError(f"{where}: by the recipe {count} below another leaf:\n{names}")
