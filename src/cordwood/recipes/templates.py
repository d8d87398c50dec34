"""Templates of names with index variables, such as `model.layers.{2*i+1}.mlp.weight`. Pure.

`{i}` stands for an integer; in it stands an expression of one index variable, and of sizes. `**`
stands for any number of keys, the same on both sides of a rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.recipes.expressions import Number, evaluate, expression_names, require_expression

_FIELD = re.compile(r"\{([^{}]*)\}")
_INTEGER = "(0|[1-9][0-9]{0,8})"
MAX_NAME = 1000  # characters

_ANY_KEYS = {  # `**` and the separator beside it, as `re.escape` writes them
    r"\*\*/": "(?P<rest>(?:[^/]+/)*)",
    r"/\*\*": "(?P<rest>(?:/[^/]+)*)",
    r"\*\*": "(?P<rest>.*)",
}


class NameTemplate(NamedTuple):
    """A template of names.

    Attributes:
        text: as it was written.
        separator: "." for names, "/" for key paths.
        literals: the text before, between and after the fields.
        fields: the expressions in braces.
    """

    text: str
    separator: str
    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names in all fields: index variables, and sizes."""
        return frozenset().union(*[expression_names(field) for field in self.fields])

    @property
    def has_any(self) -> bool:
        """True if `**` stands for any keys."""
        return any("**" in each for each in self.literals)

    def regex(self) -> re.Pattern[str]:
        """Return the regular expression of plain names; its groups are the integers, in order."""
        plain = [each.replace(self.separator, "/").replace("'", "") for each in self.literals]
        text = _INTEGER.join(map(re.escape, plain))
        for escaped, group in _ANY_KEYS.items():
            if escaped in text:
                text = text.replace(escaped, group, 1)
                break
        return re.compile(text, re.DOTALL)

    def match(
        self,
        pattern: re.Pattern[str],
        name: str,
        variables: frozenset[str],
        sizes: Mapping[str, Number],
    ) -> tuple[dict[str, int], str] | None:
        """Return the index variables of a plain name, and what `**` stands for; None: no match.

        Args:
            pattern: the `regex` of the template.
            name: a name in plain form: its keys joined by `/`.
            variables: the index variables of the rule.
            sizes: of everything else; a variable that has a size is below it.
        """
        match = pattern.fullmatch(name)
        if match is None:
            return None
        rest = match.groupdict().get("rest") or ""
        position = pattern.groupindex.get("rest")
        numbers = [text for i, text in enumerate(match.groups(), 1) if i != position]
        values: dict[str, int] = {}
        for field, number in zip(self.fields, numbers, strict=True):
            solved = solve_index(field, int(number), variables, sizes)
            if solved is None:
                return None
            variable, value = solved
            if variable and values.setdefault(variable, value) != value:
                return None
        return values, rest.strip("/")

    def render(self, values: Mapping[str, Number], rest: str) -> str:
        """Return the name for these index variables, and for what `**` stands for."""
        text = self.literals[0]
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            text += str(evaluate(field, values)) + literal
        if not self.has_any:
            return text
        keys = text.split(self.separator)
        keys[keys.index("**")] = rest.replace("/", self.separator)
        return self.separator.join(filter(None, keys))


def parse_template(text: str, *, separator: str) -> NameTemplate:
    """Return the template of a text. Raises ValueError if its fields are no expressions."""
    if not text or len(text) > MAX_NAME:
        raise ValueError(f"a name of {len(text)} characters: expected 1 to {MAX_NAME}")
    fields = tuple(_FIELD.findall(text))
    literals = tuple(_FIELD.split(text)[::2])
    if any("{" in literal or "}" in literal for literal in literals):
        raise ValueError(f"{text!r}: a brace is not closed")
    fixed = "0".join(literals)
    if fixed.count("*") != 2 * fixed.split(separator).count("**"):
        raise ValueError(f"{text!r}: ** has to be a key of its own")
    if fixed.count("**") > 1:
        raise ValueError(f"{text!r}: expected ** once at most")
    for field in fields:
        require_expression(field)
    return NameTemplate(text, separator, literals, fields)


def solve_index(
    field: str, number: int, variables: frozenset[str], sizes: Mapping[str, Number]
) -> tuple[str, int] | None:
    """Return the variable of a field and its value; None if no value gives that number.

    The variable is "" if the field has none: then its value has to be the number.

    >>> solve_index("2*i+1", 7, frozenset("i"), {})
    ('i', 3)
    """
    names = expression_names(field) & variables
    if not names:
        return ("", 0) if evaluate(field, sizes) == number else None
    (name,) = names
    first, second = (evaluate(field, {**sizes, name: value}) for value in (0, 1))
    step = second - first
    if step <= 0 or (number - first) % step or number < first:
        return None
    value = int((number - first) // step)
    limit = sizes.get(name)
    if (limit is not None and value >= limit) or evaluate(field, {**sizes, name: value}) != number:
        return None
    return name, value
