"""The matching of names with a template: which indices they have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cordwood.recipes.size_expressions import Number, evaluate, expression_names, whole_number
from cordwood.recipes.templates import NameTemplate


class IndexField(NamedTuple):
    """A field of a template: the numbers first, first + step, ... for the indices 0, 1, ..."""

    variable: str  # "" for a single number
    first: int
    step: int
    limit: int | None  # indices are below it

    def solve(self, number: int) -> int | None:
        """Return the index that gives a number; None if there is none."""
        offset = number - self.first
        if not self.variable:
            return 0 if offset == 0 else None
        if offset < 0 or offset % self.step:
            return None
        index = offset // self.step
        return index if self.limit is None or index < self.limit else None


def index_field(field: str, variables: frozenset[str], sizes: Mapping[str, Number]) -> IndexField:
    """Return a field as numbers of an index.

    Raises:
        ValueError: it has several indices, or is not linear and rising in its index, or a size in
            it is not known.

    >>> index_field("2*i+1", frozenset("i"), {}).solve(7)
    3
    """
    names = expression_names(field) & variables
    if len(names) > 1:
        raise ValueError(f"{{{field}}} has the indices {', '.join(sorted(names))}: expected one")
    try:
        (name,) = names or {""}
        first, second, third = [
            whole_number(evaluate(field, {**sizes, name: value}), f"{{{field}}}")
            for value in range(3)
        ]
    except KeyError as e:
        raise ValueError(f"{{{field}}}: the size {e} is not known: give it in sizes") from e
    step = second - first
    if not name:
        return IndexField("", first, 0, None)
    if step <= 0 or third - second != step:
        raise ValueError(f"{{{field}}} has to rise by the same step for each {name}")
    limit = sizes.get(name)
    return IndexField(name, first, step, None if limit is None else int(limit))


class NameMatcher:
    """A template that is matched with many names.

    Args:
        template: the template.
        variables: the index variables of the rule.
        sizes: of everything else; a variable that has a size is below it.

    Raises ValueError for a field that is no index.
    """

    def __init__(
        self, template: NameTemplate, variables: frozenset[str], sizes: Mapping[str, Number]
    ) -> None:
        self._pattern = template.regex()
        self._start = template.plain_literals[0].partition("*")[0]
        self._fields = [index_field(field, variables, sizes) for field in template.fields]
        self._rest = self._pattern.groupindex.get("rest")

    def match(self, name: str) -> tuple[dict[str, int], str] | None:
        """Return the index variables of a plain name, and what `**` stands for; None: no match."""
        match = self._pattern.fullmatch(name) if name.startswith(self._start) else None
        if match is None:
            return None
        texts = [text for i, text in enumerate(match.groups(), 1) if i != self._rest]
        indices: dict[str, int] = {}
        for field, text in zip(self._fields, texts, strict=True):
            index = field.solve(int(text))
            if index is None or indices.setdefault(field.variable, index) != index:
                return None
        indices.pop("", None)
        return indices, (match["rest"] or "").strip("/") if self._rest else ""
