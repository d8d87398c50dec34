"""Patterns over key paths: which leaves match. Pure.

params/**           every leaf under params; `params` alone does the same: a pattern that matches
                    a container selects all that is in it
layers/*/bias       `*` stands for any part of one key
**/kernel           `**` stands for any number of keys
layers/[0-3]/**     one character of a set; [!0-3] one character that is not in it
!opt_state/**       excludes leaves that the other patterns select
**/value$           the leaves whose last key is `value`: with `$` at its end, a pattern selects
                    no container, and the leaves themselves alone
a%2Ab               %2A, %3F, %5B, %21 and %24 stand for *, ?, [, ! and $ themselves

A pattern that is exactly the name of a leaf or container, such as ['w'] or !x, means that one.

A pattern that matches nothing may be another spelling of key paths (`plan.path_spellings`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from cordwood.did_you_mean import nearest_path
from cordwood.errors import MismatchError
from cordwood.index import Naming
from cordwood.keypath import Key, KeyPath, format_path
from cordwood.message_text import first_names
from cordwood.plan.path_spellings import plain_name, plain_pattern
from cordwood.plan.pattern_regex import pattern_regex

Select: TypeAlias = str | Sequence[str]

_QUOTED_POSITION = re.compile(r"(?<![^/])'([0-9]+)'(?=\$?\Z|/)")
_WILD = re.compile(r"[*?\[]")
_SHOWN = 3
_NONE_HINT = {"select": "None selects everything", "transpose": "None transposes nothing"}


def path_name(path: KeyPath, naming: Naming) -> str:
    """Return the string form of a key path that patterns are matched against.

    If the format has turned all keys into strings, '0' is written 0, as in the original path. If
    it has joined the keys by '/', they are separate keys again.
    """
    return pattern_name(format_path(split_keys(path, naming)), naming)


def split_keys(path: KeyPath, naming: Naming) -> KeyPath:
    """Return the keys of a path; keys that the format has joined by '/' are split."""
    if naming != "slashed":
        return path
    keys: list[Key] = []
    for key in path:
        keys += key.split("/") if isinstance(key, str) else [key]
    return tuple(keys)


def pattern_name(pattern: str, naming: Naming) -> str:
    """Return a pattern in the form that is matched against `path_name`."""
    return pattern if naming == "exact" else _QUOTED_POSITION.sub(r"\1", pattern)


def _compiled(pattern: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(f"{pattern_regex(pattern)}(?:/.*)?", re.DOTALL)
    except re.error as e:
        raise ValueError(f"{option}: {pattern!r} is not a pattern: {e}") from e


class ExactNames:
    """The names of leaves and of containers: those are meant first, whatever characters they have.

    Args:
        names: the names of the leaves.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __contains__(self, pattern: str) -> bool:
        if not (_WILD.search(pattern) or pattern.startswith("!") or pattern.endswith("$")):
            return False  # it has no other meaning
        return any(map(self._literal(pattern), self._names))

    def matcher(self, pattern: str) -> Callable[[str], re.Match[str] | None] | None:
        """Return the match of a name and of all below it; None for a pattern that is no name."""
        return self._literal(pattern) if pattern in self else None

    def _literal(self, pattern: str) -> Callable[[str], re.Match[str] | None]:
        return re.compile(f"{re.escape(pattern)}(?P<tail>/.*)?", re.DOTALL).fullmatch


def match_patterns(
    names: Sequence[str], select: Select, *, naming: Naming, where: str, option: str = "select"
) -> list[bool]:
    """Return, for each name, True if the patterns select it.

    Args:
        names: the names of leaves, as `path_name` returns them.
        select: a pattern or several; if all begin with '!', they exclude from all leaves.
        naming: the naming of the index.
        where: the checkpoint's name for errors.
        option: the name of the argument that holds the patterns, for errors.

    Raises:
        MismatchError: a pattern matches nothing; the message names all such patterns, and the
            nearest name for each.
    """
    if not isinstance(select, Iterable):
        raise TypeError(f"{option}: expected a pattern or several, found {select!r}")
    patterns = [select] if isinstance(select, str) else list(select)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{option}: expected patterns that are str, found {pattern!r}")
    exact = ExactNames(names)
    excluding = [
        each
        for each in patterns
        if each.startswith("!") and pattern_name(each, naming) not in exact
    ]
    including = [each for each in patterns if each not in excluding]
    selected = [not including] * len(names)
    problems = []
    for pattern in [*including, *excluding]:
        keep = pattern not in excluding
        plain = pattern_name(pattern if keep else pattern[1:], naming)
        match = exact.matcher(plain) or _compiled(plain, option).fullmatch
        hits = [i for i, name in enumerate(names) if match(name)]
        if not hits:
            match = _compiled(plain_pattern(plain, naming), option).fullmatch
            hits = [i for i, name in enumerate(names) if match(plain_name(name, naming))]
        if not hits:
            sign = "" if keep else "!"
            problems.append(f"  {pattern!r}{explain_unmatched(plain, names, sign=sign)}")
        for i in hits:
            selected[i] = keep
    if not patterns:
        raise ValueError(f"{option}: there is no pattern; {_NONE_HINT[option]}")
    if problems:
        raise MismatchError(f"{option} matches no leaf of {where}:\n" + "\n".join(problems))
    return selected


def explain_unmatched(pattern: str, names: Sequence[str], *, sign: str = "") -> str:
    """Return the end of a message on a pattern that matches no name: names that it may mean."""
    dotted = pattern.replace("**", "*").replace("/", ".")
    for separator, other in ((".", dotted), ("/", pattern.replace(".", "/"))):
        if other != pattern and any(map(_compiled(other, "").fullmatch, names)):
            return f"; the keys are joined by {separator!r}: did you mean {sign + other!r}?"
    match = _compiled(pattern, "").fullmatch
    slashed = [name for name in names if "%2F" in name and match(name.replace("%2F", "/"))]
    if slashed:  # haiku's module names, such as mlp/~/linear_0
        return f"; '/' within a key is written %2F, as in {slashed[0]!r}"
    head, tail = _literal_head(pattern)
    if head:
        depth = head.count("/") + 1
        heads = dict.fromkeys("/".join(name.split("/")[:depth]) for name in names)
        close = nearest_path(head, list(heads))
        if close is not None and close != head:
            return f"; did you mean {sign + close + tail!r}?"
    if not names:
        return "; there is none at all"
    return f"; found {first_names(names, _SHOWN)}"


def _literal_head(pattern: str) -> tuple[str, str]:
    """Split a pattern at the first key that has a wildcard."""
    parts = pattern.split("/")
    stop = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    tail = "/".join(parts[stop:])
    return "/".join(parts[:stop]), f"/{tail}" if tail else ""
