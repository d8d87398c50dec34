"""The rules that take the leaves of a tree, by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.index import Leaf, Naming
from cordwood.plan.path_patterns import path_name
from cordwood.plan.path_spellings import plain_name
from cordwood.recipes.name_matcher import NameMatcher, index_field
from cordwood.recipes.parse_axes import parse_axes
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.rule import Rule
from cordwood.recipes.size_expressions import solve_sizes, whole_number
from cordwood.recipes.templates import parse_template


class Side:
    """One side of a rule: templates and axes.

    Args:
        texts: the templates.
        axes: the axes.
        separator: of the keys.
    """

    def __init__(self, texts: Sequence[str], axes: str, separator: str) -> None:
        self.templates = [parse_template(text, separator=separator) for text in texts]
        self.axes = parse_axes(axes)
        self.has_any = any(template.has_any for template in self.templates)


class DirectedRule:
    """A rule of a recipe in one direction, with the sizes that are known before a tree is.

    Attributes:
        rule: the rule.
        source, target: its sides.
        variables: the index variables in the names of both sides, or of the one side that there is.
        sizes: of axes, variables and everything else.

    Raises ValueError for a name whose fields are no indices.
    """

    def __init__(self, rule: Rule, recipe: Recipe) -> None:
        names = Side(rule.name_list, rule.axes, recipe.separator)
        paths = Side(rule.path_list, rule.path_axes, "/")
        self.rule = rule
        self.source, self.target = (paths, names) if recipe.reverse else (names, paths)
        self.sizes = solve_sizes(rule.sizes, recipe.values)
        one, other = (
            frozenset().union(*[template.names for template in side.templates])
            for side in (names, paths)
        )
        atoms = {*names.axes.atoms, *paths.axes.atoms}
        both = one | other if rule.is_ignoring else one & other
        self.variables = both | ((one | other) & atoms)
        for name in (atoms | self.variables) & self.sizes.keys():
            self.sizes[name] = whole_number(self.sizes[name], name)
        self._matchers = [
            NameMatcher(template, self.variables, self.sizes) for template in self.source.templates
        ]
        for template in self.target.templates:
            for field in template.fields:
                index_field(field, self.variables, self.sizes)

    def match(self, name: str, rank: int) -> RuleMatch | None:
        """Return how the rule takes a leaf, by its plain name; None if it does not."""
        source = self.source
        if source.has_any and not source.axes.fits(rank):
            return None
        for number, matcher in enumerate(self._matchers):
            result = matcher.match(name)
            if result is not None:
                return RuleMatch(number, *result)
        return None


class RuleMatch(NamedTuple):
    """A name as one that a rule takes."""

    position: int  # in the list of names
    variables: Mapping[str, int]
    rest: str  # what ** stands for


class Taken(NamedTuple):
    """A leaf that a rule takes."""

    number: int  # of the leaf
    root: str  # the container below which the rule applies, in plain form; "" for the tree
    match: RuleMatch


class RuleMatches(NamedTuple):
    """The leaves that each rule takes, and what is left over."""

    taken: list[list[Taken]]  # by rule
    untaken: list[int]  # leaves below a root that no rule takes
    others: list[int]  # leaves below no root
    roots: set[str]  # the patterns of the recipe that have leaves


def plain_leaf_name(leaf: Leaf, naming: Naming, recipe: Recipe) -> str:
    """Return the name of a leaf with its keys joined by `/`, without quotes.

    Names that the recipe joins by dots are split, also where they are one key of a dict.
    """
    is_dotted = recipe.separator == "." and not recipe.reverse
    return plain_name(path_name(leaf.key_path, naming), "dotted" if is_dotted else naming)


def match_rules(
    recipe: Recipe, rules: Sequence[DirectedRule], leaves: Sequence[Leaf], naming: Naming
) -> RuleMatches:
    """Return the leaves that each rule takes. A leaf may be taken by several, unless by `**`."""
    result = RuleMatches([[] for _ in rules], [], [], set())
    roots = {root: re.compile(_root_regex(root)) for root in recipe.roots}
    for number, leaf in enumerate(leaves):
        name = plain_leaf_name(leaf, naming, recipe)
        below = {pattern: match for pattern in roots if (match := roots[pattern].fullmatch(name))}
        result.roots.update(below)
        match = next(iter(below.values()), None)
        if match is None:
            result.others.append(number)
            continue
        root = match["root"] or ""
        for spelling in _spellings(recipe, match["rest"]):
            is_taken = False
            for i, rule in enumerate(rules):
                if is_taken and rule.source.has_any:
                    continue
                one = rule.match(spelling, len(leaf.shape))
                if one is not None:
                    is_taken = True
                    result.taken[i].append(Taken(number, root, one))
                    if rule.source.has_any:
                        break
            if is_taken:
                break
        else:
            result.untaken.append(number)
    return result


def _root_regex(root: str) -> str:
    if not root:
        return "(?P<root>)(?P<rest>.*)"
    start = "(?:.*/)?" if root.startswith("**/") else ""
    return f"(?P<root>{start}{re.escape(root.removeprefix('**/'))})/(?P<rest>.*)"


def _spellings(recipe: Recipe, name: str) -> list[str]:
    """Return a plain name, and it with other beginnings as the recipe allows."""
    names = [name]
    if not recipe.reverse:
        for prefix, others in recipe.prefixes.items():
            first = prefix.replace(recipe.separator, "/")
            for other in others:
                other = other.replace(recipe.separator, "/")
                if name.startswith(other):
                    names.append(first + name.removeprefix(other))
    return names
