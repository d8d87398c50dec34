"""Expressions of sizes: their values are Python's, and nothing else is one."""

from __future__ import annotations

import pytest

from cordwood.recipes.size_expressions import MAX_DEPTH, MAX_LENGTH, evaluate, expression_names

VALUES = {"h": 64, "d": 2048, "text_config.n": 8}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("h", 64),
        ("2*3+4", 10),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("8 // 2 % 3", 1),
        ("(7 - 7 % 2) // 2", 3),
        ("1e3 + 2.5E-1", 1000.25),
        ("7 / 2", 3.5),
        ("-2**2", -4),
        ("2**-1", 0.5),
        ("2**3**0", 2),
        ("h**-0.5", 0.125),
        ("d // text_config.n", 256),
        ("missing | h", 64),
        ("missing * 2 | also_missing | h // 2", 32),
        ("10 - 3 - 2", 5),
    ],
)
def test_an_expression_has_the_value_that_python_gives(text: str, value: float) -> None:
    assert evaluate(text, VALUES) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "(1",
        "1)",
        "h h",
        "__import__('os')",
        "h[0]",
        "lambda: 1",
        "h.__class__ + ''",
        "1;2",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no expression"):
        evaluate(text, VALUES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9**9**9", "out of range"),
        ("2**65", "out of range"),
        ("h**60", "not below"),
        ("99999999999999999999", "not below"),
        ("1 // 0", "division by zero"),
        ("7 // 2", r"7 // 2 has the remainder 1; \(a - a % b\) // b is rounded"),
        ("h // 3", "64 // 3 has the remainder 1"),
        ("0" * 31, "more than 30 digits"),
        ("0**-1", "division by zero"),
        ("(-8)**0.5", "out of range"),
        ("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), "levels"),
        ("-" * (MAX_DEPTH + 2) + "1", "levels"),
        ("1" + "+1" * MAX_LENGTH, "characters"),
    ],
)
def test_what_would_take_long_or_grow_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        evaluate(text, VALUES)


def test_a_name_without_a_value() -> None:
    with pytest.raises(KeyError, match="layers"):
        evaluate("2 * layers", VALUES)
    assert expression_names("a + b | c") == {"a", "b", "c"}
