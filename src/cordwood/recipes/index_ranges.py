"""The range of each index of a recipe: all rules that use an index have the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from cordwood.index import Leaf
from cordwood.recipes.arrange_rule import MAX_MADE, RuleArrangement, missing_names
from cordwood.recipes.match_rules import DirectedRule, Taken

Values = tuple[int, ...]  # of some indices, in the order of their names


class AppliedRule(NamedTuple):
    """A rule with the leaves that it takes."""

    rule: DirectedRule
    arrangement: RuleArrangement
    taken: Sequence[Taken]


class IndexRanges:
    """The values of the indices in a tree, by the container below which the recipe is applied.

    An index whose size is known has that range. Another one has the values that occur in any rule,
    in names or as the size of a stacked axis.

    Args:
        rules: the rules that make leaves of something.
        leaves: of the index.
    """

    def __init__(self, rules: Sequence[AppliedRule], leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._values: dict[tuple[str, str], set[int]] = {}  # by root and index
        self._together: dict[tuple[str, Values | tuple[str, ...]], set[Values]] = {}
        for rule in rules:
            for each in rule.taken:
                for name, value in each.match.variables.items():
                    if name not in rule.rule.sizes:
                        self._values.setdefault((each.root, name), set()).add(value)
                for name, size in self._stacks(rule, each).items():
                    self._values.setdefault((each.root, name), set()).update(range(size))
                free = rule.arrangement.free
                values = tuple([each.match.variables[name] for name in free])
                self._together.setdefault((each.root, free), set()).add(values)

    def lengths(self) -> dict[tuple[str, str], int]:
        """Return the number of values of each index of no known size, if it is stacked."""
        return {key: max(values, default=-1) + 1 for key, values in self._values.items()}

    def problems(self, rule: AppliedRule) -> Iterator[str]:
        """Yield a text for each root where a rule lacks values that an index has."""
        by_place: dict[tuple[str, int, str], list[Taken]] = {}
        is_known = all(name in rule.rule.sizes for name in rule.arrangement.free)
        for each in rule.taken:
            # What stands for ** may differ from one index to the next, unless a size is known.
            rest = each.match.rest if is_known else ""
            by_place.setdefault((each.root, each.match.position, rest), []).append(each)
            for name, size in self._stacks(rule, each).items():
                expected = max(self._values[each.root, name]) + 1
                if size != expected:
                    yield f"expected {expected} for {name}, as in other arrays, found {size}"
                    return
        if rule.rule.rule.optional:
            return
        for (root, position, _), some in by_place.items():
            missing = self._missing(rule, root, some)
            if missing:
                names = missing_names(missing, partial(_name, rule, root, position, some[0]))
                indices = ", ".join(rule.arrangement.free)
                yield (
                    f"{names}, as the recipe's other rules or its sizes have more values "
                    f"of {indices}; a rule with fewer needs an index of another name, or "
                    "optional=True"
                )

    def _stacks(self, rule: AppliedRule, taken: Taken) -> dict[str, int]:
        """Return the sizes of axes of a leaf that are indices on the other side."""
        names = [name for name in rule.arrangement.unstacked if name not in rule.rule.sizes]
        if not names:
            return {}
        try:
            sizes = rule.arrangement.sizes([taken], self._leaves)
        except ValueError:  # the rule says so where its shapes are solved
            return {}
        return {name: sizes[name] for name in names if name in sizes}

    def _missing(self, rule: AppliedRule, root: str, taken: Sequence[Taken]) -> list[Values]:
        """Return the values that names of one template lack, of the indices on both sides."""
        free = rule.arrangement.free
        present = {tuple([each.match.variables[name] for name in free]) for each in taken}
        ranges = [self._range(rule.rule.sizes, root, name) for name in free]
        is_known = all(name in rule.rule.sizes for name in free)
        if is_known and prod(map(len, ranges)) <= MAX_MADE:
            return sorted(set(product(*ranges)) - present)
        missing = self._together[root, free] - present
        first = min(present)
        for i, values in enumerate(ranges):
            absent = set(values) - {each[i] for each in present} - {each[i] for each in missing}
            missing |= {(*first[:i], value, *first[i + 1 :]) for value in absent}
        return sorted(missing)

    def _range(self, sizes: Mapping[str, float], root: str, name: str) -> Sequence[int] | set[int]:
        return range(int(sizes[name])) if name in sizes else self._values[root, name]


def _name(rule: AppliedRule, root: str, position: int, taken: Taken, values: Values) -> str:
    """Return the name of a leaf like one that a rule takes, with other indices."""
    template = rule.rule.source.templates[position]
    indices = dict(zip(rule.arrangement.free, values, strict=True))
    sizes = {**rule.rule.sizes, **taken.match.variables, **indices}
    name = template.render(sizes, taken.match.rest)
    return f"{root}{template.separator}{name}" if root else name
