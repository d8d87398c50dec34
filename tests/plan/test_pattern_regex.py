"""The regular expressions of patterns: what they match, and that long names take no time."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from cordwood.plan.path_patterns import match_patterns
from cordwood.plan.pattern_regex import pattern_regex
from cordwood.plan.rename_paths import rename_key_paths


def splits(pattern: list[str], keys: list[str]) -> list[list[str]]:
    """Return all that the wildcards of a pattern can stand for, the shortest first."""
    if not pattern:
        return [[]]  # what follows is below a container
    if pattern == ["$"]:
        return [] if keys else [[]]
    part, *others = pattern
    if part != "**":
        heads = characters(part, keys[0]) if keys else []
        return [head + tail for head in heads for tail in splits(others, keys[1:])]
    if others in ([], ["$"]):
        return [["/".join(keys)]] if keys else []
    return [
        ["".join(f"{key}/" for key in keys[:n]), *tail]
        for n in range(len(keys) + 1)
        for tail in splits(others, keys[n:])
    ]


def characters(part: str, key: str) -> list[list[str]]:
    if not part:
        return [] if key else [[]]
    if part[0] == "*":
        rest = part.lstrip("*")
        return [[key[:n], *tail] for n in range(len(key) + 1) for tail in characters(rest, key[n:])]
    if part[0] == "[" and "]" in part[2:]:
        stop = part.index("]", 2)
        fits = bool(key) and ((key[0] in part[2:stop]) != (part[1] == "!"))
        if part[1] != "!":
            fits = bool(key) and key[0] in part[1:stop]
        return characters(part[stop + 1 :], key[1:]) if fits else []
    if key and part[0] in ("?", key[0]):
        return characters(part[1:], key[1:])
    return []


def test_the_groups_are_the_shortest_that_fit() -> None:
    rng = random.Random(7)
    matched = matched_at_end = 0
    for _ in range(20_000):
        pattern = []
        for _ in range(rng.randint(1, 4)):
            key = "".join(rng.choices(["a", "b", "*", "?", "[ab]", "[!a]"], k=rng.randint(1, 3)))
            pattern.append("**" if rng.random() < 0.35 else key)
        if ("**", "**") in itertools.pairwise(pattern):
            continue
        keys = ["".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(rng.randint(1, 5))]
        regex = re.compile(pattern_regex("/".join(pattern)) + "(?:/.*)?", re.DOTALL)
        match = regex.fullmatch("/".join(keys))
        expected = next(iter(splits(pattern, keys)), None)
        assert (match and list(match.groups())) == expected, ("/".join(pattern), "/".join(keys))
        matched += match is not None
        match = re.fullmatch(pattern_regex("/".join(pattern) + "$") + "(?:/.*)?", "/".join(keys))
        expected = next(iter(splits([*pattern, "$"], keys)), None)
        assert (match and list(match.groups())) == expected, ("/".join(pattern), "/".join(keys))
        matched_at_end += match is not None
    assert matched > 2_000
    assert matched_at_end > 1_000


LONG = [
    "attnmlp" * 12_000,
    "a" * 80_000,
    "a/" * 40_000 + "x",
    "/".join(["attnmlp" * 20] * 500),
]
PATTERNS = [
    "**/*attn*mlp*kernel",
    "*a*a*a*a*a*a*b",
    "**/a/**/a/**/a/**/a/**/b",
    "**/*a*/**/*a*/**/*a*/**/b",
    "*?*?*?*?*?*b",
    "**/*[a-z]*[a-z]*[!a-z]",
    "**/a/**/*t*n*/**/*q$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_long_names_take_no_time(pattern: str) -> None:
    """Without atomic groups each of these would take minutes to years."""
    regex = re.compile(pattern_regex(pattern) + "(?:/.*)?", re.DOTALL)
    for name in LONG:
        assert regex.fullmatch(name) is None


def test_long_names_of_a_checkpoint_are_selected_and_renamed() -> None:
    names = ["x/attn/mlp_kernel", "x/qattn_mlp_kernel", *LONG]
    chosen = match_patterns(names, PATTERNS[0], naming="exact", where="m")
    assert list(itertools.compress(names, chosen)) == ["x/qattn_mlp_kernel"]
    paths = [tuple(name.split("/")) for name in names]
    renamed = rename_key_paths(paths, {PATTERNS[0]: "**/*-*-*w"}, naming="exact", where="m")
    assert renamed[1] == [("x", "q-_-_w")]
    assert renamed[2:] == [[path] for path in paths[2:]]
