"""The sizes of axes that the shapes of `like` tell, for each rule of a recipe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.index import Index, Leaf, leaf_text
from cordwood.keypath import format_path
from cordwood.recipes.arrange_rule import (
    ArithmeticOptions,
    RuleArrangement,
    RuleError,
    SizesOfLeaves,
)
from cordwood.recipes.match_rules import DirectedRule, Taken, match_rules
from cordwood.recipes.recipe import Recipe
from cordwood.recipes.rule import LIST


class SizesOfLike:
    """The sizes that the leaves of `like` have, which the inverse of a recipe takes.

    Args:
        recipe: the recipe.
        rules: those of its rules that apply.
        like: the index of the tree that the recipe should make.
    """

    def __init__(self, recipe: Recipe, rules: Sequence[DirectedRule], like: Index) -> None:
        inverse = recipe.inverse()
        self._leaves = like.leaves
        self._rules = [DirectedRule(each.rule, inverse) for each in rules]
        self._matches = match_rules(inverse, self._rules, like.leaves, like.naming)
        self._reverse = inverse.reverse

    def of_rule(self, number: int) -> Mapping[tuple[str, str], SizesOfLeaves]:
        """Return the sizes for a rule by its number, by root and by what stands for `**`.

        Raises RuleError for leaves of `like` that contradict each other, or the sizes of the rule.
        """
        groups: dict[tuple[str, str], list[Taken]] = {}
        for each in self._matches.taken[number]:
            groups.setdefault((each.root, each.match.rest), []).append(each)
        options = ArithmeticOptions(None, lossy=False)
        rule = self._rules[number]
        arrangement = RuleArrangement(rule, reverse=self._reverse, options=options)
        return {key: self._sizes(rule, arrangement, some) for key, some in groups.items()}

    def _sizes(
        self, rule: DirectedRule, arrangement: RuleArrangement, taken: Sequence[Taken]
    ) -> SizesOfLeaves:
        sizes: dict[str, int] = {}
        parts: dict[str, dict[int, int]] = {name: {} for name in rule.rule.cat}
        first = self._leaves[taken[0].number]
        for each in taken:
            leaf = self._leaves[each.number]
            try:
                solved = arrangement.solve(each, leaf)
            except ValueError as e:
                raise RuleError(f"{_text(leaf)} of like does not fit: {e}") from e
            for name, size in solved.items():
                if name in parts:
                    parts[name][each.match.position] = size
                elif name != LIST and sizes.setdefault(name, size) != size:
                    raise RuleError(
                        f"{name} is {sizes[name]} in {_text(first)} of like, and {size} in "
                        f"{_text(leaf)}"
                    )
        padded = {name: sizes[name] for name in rule.rule.pad if name in sizes}
        if self._reverse:
            sizes = {name: size for name, size in sizes.items() if name not in padded}
        count = len(rule.source.templates)
        return SizesOfLeaves(
            sizes,
            padded if self._reverse else {},
            {name: _listed(some) for name, some in parts.items() if len(some) == count},
            f"; like has {_text(first)}",
        )


def _listed(sizes: Mapping[int, int]) -> list[int]:
    """Return sizes in the order of their positions."""
    return [sizes[position] for position in sorted(sizes)]


def _text(leaf: Leaf) -> str:
    return f"{format_path(leaf.key_path)} {leaf_text(leaf)}"
