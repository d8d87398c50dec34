"""Key paths that a pattern selects, and errors of patterns that select none."""

from __future__ import annotations

import pytest

from cordwood.errors import MismatchError
from cordwood.plan.path_patterns import match_patterns, path_name

NAMES = [
    "params/dense/kernel",
    "params/dense/bias",
    "params/layers/0/kernel",
    "params/layers/10/kernel",
    "opt_state/mu/dense/kernel",
    "step",
    "a%2Fb/'0'",
    "table/(3)",
    "odd[1]",
    "odd*",
]


def taken(select: str | list[str]) -> list[str]:
    selected = match_patterns(NAMES, select, naming="exact", where="ckpt")
    return [name for name, take in zip(NAMES, selected, strict=True) if take]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("**", NAMES),
        ("*", NAMES),  # every container, and so all that is in it
        ("step", ["step"]),
        ("params", NAMES[:4]),
        ("params/**", NAMES[:4]),
        ("params/dense/*", NAMES[:2]),
        ("params/*/kernel", NAMES[:1]),
        ("**/kernel", [*NAMES[:1], *NAMES[2:5]]),
        ("params/**/kernel", [NAMES[0], NAMES[2], NAMES[3]]),
        ("params/**/**/kernel", [NAMES[0], NAMES[2], NAMES[3]]),
        ("params/layers/?/kernel", [NAMES[2]]),
        ("params/layers/[0-3]/**", [NAMES[2]]),
        ("params/layers/[!0]*/**", [NAMES[3]]),
        ("p*s/d*/b*s", [NAMES[1]]),
        ("a%2Fb/'0'", [NAMES[6]]),
        ("table/(3)", [NAMES[7]]),
        ("odd[[]1]", [NAMES[8]]),
        ("odd[*]", [NAMES[9]]),
        (["step", "params/dense"], [*NAMES[:2], "step"]),
        (["params", "!**/bias"], [NAMES[0], NAMES[2], NAMES[3]]),
        (["!**/bias", "params"], [NAMES[0], NAMES[2], NAMES[3]]),
        (["!params", "!opt_state"], NAMES[5:]),
    ],
)
def test_what_a_pattern_takes(select: str | list[str], expected: list[str]) -> None:
    assert taken(select) == expected


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("parmas/**", "'parmas/**'; did you mean 'params/**'?"),
        ("!parmas", "'!parmas'; did you mean '!params'?"),
        ("params/dense/bais", "'params/dense/bais'; did you mean 'params/dense/bias'?"),
        ("params/dnse/*", "'params/dnse/*'; did you mean 'params/dense/*'?"),
        ("a/b/*", "'a/b/*'; '/' within a key is written %2F, as in \"a%2Fb/'0'\""),
        ("*/nothing", "found params/dense/kernel, params/dense/bias, params/layers/0/kernel and 7"),
        (["step", "x1", "y1"], "'x1'; found params/dense/kernel, "),
    ],
)
def test_a_pattern_that_takes_nothing(select: str | list[str], message: str) -> None:
    with pytest.raises(MismatchError) as error:
        taken(select)
    assert str(error.value).startswith("select matches no leaf of ckpt:\n  ")
    assert message in str(error.value)


def test_all_such_patterns_are_named() -> None:
    with pytest.raises(MismatchError) as error:
        taken(["step", "x1", "y1"])
    assert [line.split("'")[1] for line in str(error.value).splitlines()[1:]] == ["x1", "y1"]


def test_an_empty_list_of_patterns_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no pattern; None selects everything"):
        taken([])


@pytest.mark.parametrize("pattern", ["layers/0/w", "layers/'0'/w"])
def test_positions_where_every_key_is_a_string(pattern: str) -> None:
    names = [path_name(("layers", "0", "w"), "strings"), path_name(("layers", "00"), "strings")]
    assert names[0] == "layers/0/w"
    assert match_patterns(names, pattern, naming="strings", where="ckpt") == [True, False]
