"""Expressions of sizes, such as `hidden_size // heads` or `h ** -0.5`. Pure; nothing is evaluated.

Numbers, names, + - * / // % **, unary minus and parentheses, with the precedence of Python. Two or
more alternatives are separated by `|`: the first one whose names are all defined counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Number: TypeAlias = int | float

MAX_LENGTH = 200  # characters of an expression
MAX_DEPTH = 20  # of parentheses and powers
MAX_VALUE = 1 << 62
_MAX_EXPONENT = 64

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<sign>\*\*|//|[-+*/%()|]))"
)
_FUNCTIONS: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def evaluate(text: str, values: Mapping[str, Number]) -> Number:
    """Return the value of an expression.

    Raises:
        KeyError: a name has no value.
        ValueError: the text is no expression, or its value is out of range.

    >>> evaluate("hidden_size // heads", {"hidden_size": 64, "heads": 4})
    16
    >>> evaluate("head_dim | hidden_size // heads", {"hidden_size": 64, "heads": 4})
    16
    """
    alternatives = text.split("|")
    for alternative in alternatives[:-1]:
        if expression_names(alternative) <= values.keys():
            return _Parser(alternative).value(values)
    return _Parser(alternatives[-1]).value(values)


def expression_names(text: str) -> frozenset[str]:
    """Return the names in an expression. Raises ValueError for text that is none."""
    return frozenset(name for each in text.split("|") for name in _Parser(each).names)


def require_expression(text: str) -> None:
    """Raise ValueError unless the text is an expression, whatever its names are."""
    for each in text.split("|"):
        _Parser(each).check()


class _Parser:
    """A parser of one expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        if len(text) > MAX_LENGTH:
            raise ValueError(
                f"an expression of {len(text)} characters: expected at most {MAX_LENGTH}"
            )
        self._tokens: list[str] = []
        at = 0
        while at < len(self._text):
            token = _TOKEN.match(self._text, at)
            if token is None:
                raise self._error(f"{self._text[at : at + 10]!r} is no number, name or operator")
            self._tokens.append(token[0].strip())
            at = token.end()
        self._at = 0
        self._depth = 0
        self._values: Mapping[str, Number] | None = None

    @property
    def names(self) -> set[str]:
        return {token for token in self._tokens if token[0].isalpha() or token[0] == "_"}

    def check(self) -> None:
        """Raise ValueError unless the tokens are an expression."""
        self._parse()

    def value(self, values: Mapping[str, Number]) -> Number:
        self._values = values
        return self._parse()

    def _parse(self) -> Number:
        result = self._sum()
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at]!r}")
        return result

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"{self._text!r} is no expression of sizes: {reason}")

    def _next(self, *tokens: str) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at] in tokens:
            self._at += 1
            return self._tokens[self._at - 1]
        return None

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels")
        result = self._product()
        while sign := self._next("+", "-"):
            result = self._apply(sign, result, self._product())
        self._depth -= 1
        return result

    def _product(self) -> Number:
        result = self._power()
        while sign := self._next("*", "//", "/", "%"):
            result = self._apply(sign, result, self._power())
        return result

    def _power(self) -> Number:
        if self._next("-"):
            return -self._nested(self._power)
        base = self._atom()
        if not self._next("**"):
            return base
        exponent = self._nested(self._power)
        if self._values is None:
            return 1
        if abs(exponent) > _MAX_EXPONENT or (base < 0 and exponent != int(exponent)):
            raise self._error(f"{base} ** {exponent} is out of range")
        if base == 0 and exponent < 0:
            raise self._error("division by zero")
        return self._checked(base**exponent)

    def _nested(self, parse: Callable[[], Number]) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels")
        result = parse()
        self._depth -= 1
        return result

    def _atom(self) -> Number:
        if self._next("("):
            result = self._sum()
            if not self._next(")"):
                raise self._error("a parenthesis is not closed")
            return result
        if self._at == len(self._tokens):
            raise self._error("it ends too early")
        token = self._tokens[self._at]
        self._at += 1
        if token[0].isdigit():
            return self._checked(float(token) if "." in token else int(token[:20]))
        if not (token[0].isalpha() or token[0] == "_"):
            raise self._error(f"unexpected {token!r}")
        return 1 if self._values is None else self._values[token]

    def _apply(self, sign: str, a: Number, b: Number) -> Number:
        if self._values is None:
            return 1
        if sign in ("/", "//", "%") and b == 0:
            raise self._error("division by zero")
        return self._checked(_FUNCTIONS[sign](a, b))

    def _checked(self, value: Number) -> Number:
        if not -MAX_VALUE < value < MAX_VALUE:
            raise self._error(f"a value is not below {MAX_VALUE}")
        return value
