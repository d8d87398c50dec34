"""Expressions of sizes, such as `hidden_size // heads` or `h ** -0.5`. Pure; nothing is evaluated.

Numbers, names, + - * / // % **, unary minus and parentheses, with the precedence of Python. `//`
is for sizes that divide: a remainder is an error, because the size would be a wrong one. Two or
more alternatives are separated by `|`: the first one whose names are all defined counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Number: TypeAlias = int | float
Size: TypeAlias = Number | str  # a number, or an expression

MAX_LENGTH = 200  # characters of an expression
MAX_DEPTH = 20  # of parentheses and powers, and of sizes that are made of others
MAX_VALUE = 1 << 62
MAX_DIGITS = 30  # of a number
_MAX_EXPONENT = 64

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<sign>\*\*|//|[-+*/%()|]))"
)
_FUNCTIONS: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def evaluate(size: Size, values: Mapping[str, Number]) -> Number:
    """Return the value of an expression, or of a number.

    Raises:
        KeyError: a name has no value.
        ValueError: the text is no expression, its value is out of range, or `//` has a remainder.

    >>> evaluate("hidden_size // heads", {"hidden_size": 64, "heads": 4})
    16
    >>> evaluate("head_dim | hidden_size // heads", {"hidden_size": 64, "heads": 4})
    16
    """
    *parsers, last = _alternatives(size)
    for parser in parsers:
        if parser.names <= values.keys():
            return parser.value(values)
    return last.value(values)


def expression_names(size: Size) -> frozenset[str]:
    """Return the names in an expression. Raises ValueError for text that is none."""
    return frozenset().union(*[parser.names for parser in _alternatives(size)])


def require_expression(size: Size) -> None:
    """Raise ValueError unless the text is an expression, whatever its names are."""
    for parser in _alternatives(size):
        parser.check()


def whole_number(value: Number, name: str) -> int:
    """Return a number as an int. Raises ValueError unless it is whole and not negative."""
    if value != int(value) or value < 0:
        raise ValueError(f"{name} is {value}: expected a whole number")
    return int(value)


def solve_sizes(sizes: Mapping[str, Size], outer: Mapping[str, Number]) -> dict[str, Number]:
    """Return the values of those sizes that are numbers, or expressions of others that have one.

    Args:
        sizes: by name.
        outer: other values; also those of names in `sizes`, for expressions of the same name.

    Raises ValueError as `evaluate` does; the message names the size.

    >>> solve_sizes({"h": "n | 5", "n": "m", "x": "y"}, {"m": 3})
    {'m': 3, 'h': 3, 'n': 3}
    """
    values: dict[str, Number | None] = {n: v for n, v in outer.items() if n not in sizes}
    for name in sizes:
        _solve(name, sizes, outer, values, 0)
    return {name: value for name, value in values.items() if value is not None}


def _solve(
    name: str,
    sizes: Mapping[str, Size],
    outer: Mapping[str, Number],
    values: dict[str, Number | None],
    depth: int,
) -> None:
    """Set the value of a size, and before it those of the sizes that it is made of."""
    if name in values or name not in sizes:
        return
    if depth > MAX_DEPTH:
        raise ValueError(f"the size {name!r} is one of more than {MAX_DEPTH} that need each other")
    names = expression_names(sizes[name])
    for other in sorted(names - {name}):
        values.setdefault(name, None)  # one that needs itself by others has no value
        _solve(other, sizes, outer, values, depth + 1)
    present = {each: value for each in names if (value := values.get(each)) is not None}
    if name in names and name in outer:
        present[name] = outer[name]
    try:
        values[name] = evaluate(sizes[name], present)
    except KeyError:
        values[name] = None
    except ValueError as e:
        raise ValueError(f"the size {name!r}: {e}") from e


def _alternatives(size: Size) -> list[_Parser]:
    text = str(size)
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression of {len(text)} characters: expected at most {MAX_LENGTH}")
    return [_Parser(each) for each in text.split("|")]


class _Parser:
    """A parser of one expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
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
        try:
            return self._checked(base**exponent)
        except OverflowError as e:
            raise self._error(f"{base} ** {exponent} is out of range") from e

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
            if len(token) > MAX_DIGITS:
                raise self._error(f"a number of more than {MAX_DIGITS} digits")
            return self._checked(int(token) if token.isdigit() else float(token))
        if not (token[0].isalpha() or token[0] == "_"):
            raise self._error(f"unexpected {token!r}")
        return 1 if self._values is None else self._values[token]

    def _apply(self, sign: str, a: Number, b: Number) -> Number:
        if self._values is None:
            return 1
        if sign in ("/", "//", "%") and b == 0:
            raise self._error("division by zero")
        if sign == "//" and a % b:
            raise ValueError(
                f"{self._text!r}: {a} // {b} has the remainder {a % b}; (a - a % b) // b is rounded"
            )
        return self._checked(_FUNCTIONS[sign](a, b))

    def _checked(self, value: Number) -> Number:
        if not -MAX_VALUE < value < MAX_VALUE:
            raise self._error(f"a value is not below {MAX_VALUE}")
        return value
