"""The range of each index of a recipe: all rules that use an index have the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    An index whose size is known has that range. Another one has the values from 0 to the greatest
    that occurs in any rule, in names or as the size of a stacked axis.

    Args:
        rules: the rules that make leaves of something.
        leaves: of the index.
    """

    def __init__(self, rules: Sequence[AppliedRule], leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._lengths: dict[tuple[str, str], int] = {}  # by root and index
        self._together: dict[tuple[str, Values | tuple[str, ...]], set[Values]] = {}
        for rule in rules:
            for each in rule.taken:
                for name, value in each.match.variables.items():
                    if name not in rule.rule.sizes:
                        self._extend((each.root, name), value + 1)
                for name, size in self._stacks(rule, each).items():
                    self._extend((each.root, name), size)
                free = rule.arrangement.free
                values = tuple([each.match.variables[name] for name in free])
                self._together.setdefault((each.root, free), set()).add(values)

    def lengths(self) -> dict[tuple[str, str], int]:
        """Return the number of values of each index of no known size, by root and index."""
        return self._lengths

    def problems(self, rule: AppliedRule) -> Iterator[str]:
        """Yield a text for each root where a rule lacks values that an index has."""
        by_place: dict[tuple[str, int, str], list[Taken]] = {}
        is_known = all(name in rule.rule.sizes for name in rule.arrangement.free)
        for each in rule.taken:
            # What stands for ** may differ from one index to the next, unless a size is known.
            rest = each.match.rest if is_known else ""
            by_place.setdefault((each.root, each.match.position, rest), []).append(each)
            for name, size in self._stacks(rule, each).items():
                expected = self._lengths[each.root, name]
                if size != expected:
                    yield f"expected {expected} for {name}, as in other arrays, found {size}"
                    return
        for (root, position, _), some in by_place.items():
            lengths = [self._length(rule, root, name) for name in rule.arrangement.free]
            if max(lengths, default=0) > MAX_MADE:
                yield f"an index has {max(lengths)} values: expected at most {MAX_MADE}"
                return
            missing = self._missing(rule, root, some, lengths)
            if missing:
                names = missing_names(missing, partial(_name, rule, root, position, some[0]))
                ranges = zip(rule.arrangement.free, lengths, strict=True)
                texts = [f"{name} from 0 to {length - 1}" for name, length in ranges]
                yield (
                    f"{names}: the recipe has {' and '.join(texts)}, by its sizes or other names; "
                    "a rule for some layers has an index of another name, or an expression of it "
                    "such as {2*j+1}"
                )

    def _extend(self, key: tuple[str, str], length: int) -> None:
        self._lengths[key] = max(length, self._lengths.get(key, 0))

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

    def _missing(
        self, rule: AppliedRule, root: str, taken: Sequence[Taken], lengths: Sequence[int]
    ) -> list[Values]:
        """Return the values that names of one template lack, of the indices on both sides."""
        free = rule.arrangement.free
        present = {tuple([each.match.variables[name] for name in free]) for each in taken}
        if all(name in rule.rule.sizes for name in free) and prod(lengths) <= MAX_MADE:
            return sorted(set(product(*map(range, lengths))) - present)
        missing = self._together[root, free] - present
        first = min(present)
        for i, length in enumerate(lengths):
            absent = {*range(length)} - {each[i] for each in present | missing}
            missing |= {(*first[:i], value, *first[i + 1 :]) for value in absent}
        return sorted(missing)

    def _length(self, rule: AppliedRule, root: str, name: str) -> int:
        sizes = rule.rule.sizes
        return int(sizes[name]) if name in sizes else self._lengths[root, name]


def _name(rule: AppliedRule, root: str, position: int, taken: Taken, values: Values) -> str:
    """Return the name of a leaf like one that a rule takes, with other indices."""
    template = rule.rule.source.templates[position]
    indices = dict(zip(rule.arrangement.free, values, strict=True))
    sizes = {**rule.rule.sizes, **taken.match.variables, **indices}
    name = template.render(sizes, taken.match.rest)
    return f"{root}{template.separator}{name}" if root else name
