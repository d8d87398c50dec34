"""Templates of names with index variables, such as `model.layers.{2*i+1}.mlp.weight`. Pure.

`{i}` stands for an integer; in it stands an expression of one index variable, and of sizes. `**`
stands for any number of keys, the same on both sides of a rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.recipes.size_expressions import Number, evaluate, expression_names, require_expression

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

    @property
    def plain_literals(self) -> list[str]:
        """The literals with keys joined by `/`, without quotes."""
        return [each.replace(self.separator, "/").replace("'", "") for each in self.literals]

    def regex(self) -> re.Pattern[str]:
        """Return the regular expression of plain names; its groups are the integers, in order."""
        text = _INTEGER.join(map(re.escape, self.plain_literals))
        for escaped, group in _ANY_KEYS.items():
            if escaped in text:
                text = text.replace(escaped, group, 1)
                break
        return re.compile(text, re.DOTALL)

    def render(self, values: Mapping[str, Number], rest: str) -> str:
        """Return the name for these index variables, and for what `**` stands for."""
        text = self.literals[0]
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            text += str(int(evaluate(field, values))) + literal
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
        raise ValueError(f"{text!r:.80}: a brace is not closed")
    fixed = "0".join(literals)
    if fixed.count("*") != 2 * fixed.split(separator).count("**"):
        raise ValueError(f"{text!r:.80}: ** has to be a key of its own")
    if fixed.count("**") > 1:
        raise ValueError(f"{text!r:.80}: expected ** once at most")
    for number, field in enumerate(fields, 1):
        require_expression(field)
        following = literals[number]
        if following[:1].isdigit() or (not following and number < len(fields)):
            raise ValueError(
                f"{text!r:.80}: expected a character that is no digit after {{{field}}}"
            )
    return NameTemplate(text, separator, literals, fields)
