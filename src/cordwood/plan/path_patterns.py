"""Patterns over key paths: which leaves match, and new key paths for them. Pure.

params/**           every leaf under params; `params` alone does the same: a pattern that matches
                    a container selects all that is in it
layers/*/bias       `*` stands for any part of one key
**/kernel           `**` stands for any number of keys
layers/[0-3]/**     one character of a set; [!0-3] one character that is not in it
!opt_state/**       excludes leaves that the other patterns select

New paths, of `rename`:

{"encoder": "backbone"}                         a leaf, or a container with all that is in it
{"params": ""}, {"": "params"}                  move out of a container; move everything into one
{"layers/*/attn": "blocks/*/attention"}         each `*` (part of a key) and `**` (any number of
{"model.layers.*.weight": "layers/*/kernel"}    keys) stands for the same text on both sides
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from cordwood.errors import MismatchError
from cordwood.index import Naming
from cordwood.keypath import Key, KeyPath, format_path, parse_path
from cordwood.message_text import first_names, nearest_path

Select: TypeAlias = str | Sequence[str]

_QUOTED_POSITION = re.compile(r"(?<![^/])'([0-9]+)'(?![^/])")
_WILD = re.compile(r"[*?\[]")
_TOKEN = re.compile(r"\*+|\[(!?+)(.[^\]]*+)\]|.", re.DOTALL)
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


def pattern_regex(pattern: str) -> str:
    """Return a regular expression for the paths of a pattern: a group for each `*` and `**`."""
    if pattern in ("", "**"):
        return "(.*)" if pattern else ""
    parts = pattern.split("/")
    parts = [part for i, part in enumerate(parts) if part != "**" or parts[i - 1 : i] != ["**"]]
    text = ""
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part != "**":
            text += _TOKEN.sub(_token_as_regex, part) + ("" if last else "/")
        else:
            text += "(.+)" if last else "((?:[^/]+/)*?)"
    return text


def _token_as_regex(token: re.Match[str]) -> str:
    """Return the regular expression for a wildcard, a set or a letter of a key."""
    text, negated, members = token[0], token[1], token[2]
    if members is None:
        return {"*": "([^/]*?)", "?": "[^/]"}.get(text[0], re.escape(text))
    members = members.replace("\\", r"\\").replace("[", r"\[")
    first = "\\" if members[0] in ("^", "]") else ""
    return f"[{'^/' if negated else ''}{first}{members}]"


def _compiled(pattern: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(f"{pattern_regex(pattern)}(?:/.*)?", re.DOTALL)
    except re.error as e:
        raise ValueError(f"{option}: {pattern!r} is not a pattern: {e}") from e


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
    including = [each for each in patterns if not each.startswith("!")]
    excluding = [each for each in patterns if each.startswith("!")]
    selected = [not including] * len(names)
    problems = []
    for pattern in [*including, *excluding]:
        keep = not pattern.startswith("!")
        plain = pattern_name(pattern.removeprefix("!"), naming)
        match = _compiled(plain, option).fullmatch
        hits = [i for i, name in enumerate(names) if match(name)]
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
    head, rest = _literal_head(pattern)
    if head:
        depth = head.count("/") + 1
        heads = dict.fromkeys("/".join(name.split("/")[:depth]) for name in names)
        close = nearest_path(head, list(heads))
        if close is not None and close != head:
            return f"; did you mean {sign + close + rest!r}?"
    if not names:
        return "; there is none at all"
    return f"; found {first_names(names, _SHOWN)}"


def _literal_head(pattern: str) -> tuple[str, str]:
    """Split a pattern at the first key that has a wildcard."""
    parts = pattern.split("/")
    stop = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    rest = "/".join(parts[stop:])
    return "/".join(parts[:stop]), f"/{rest}" if rest else ""


_WILDCARDS = re.compile(r"(?<![^/])\*\*(?![^/])|\*+")
_UNUSABLE = re.compile(r"[?\[]")


class _Rule(NamedTuple):
    pattern: str
    match: Callable[[str], re.Match[str] | None]
    target: str


def rename_key_paths(
    paths: Sequence[KeyPath], rename: Mapping[str, str], *, naming: Naming, where: str
) -> list[KeyPath]:
    """Return the new key paths; for each path the first matching rule counts.

    The keys of a path after the part that a rule matches stay unchanged.

    Raises:
        ValueError: the wildcards of a rule differ on its two sides, or it makes no valid path.
        MismatchError: a rule matches nothing; the message names all such rules, and the nearest
            name for each.
    """
    if not isinstance(rename, Mapping):
        raise TypeError(f"rename: expected a dict of old and new key paths, found {rename!r:.80}")
    rules = [_rule(pattern, target, naming) for pattern, target in rename.items()]
    used: set[str] = set()
    new_paths = []
    for path in paths:
        name = path_name(path, naming)
        for rule in rules:
            match = rule.match(name)
            if match is not None:
                used.add(rule.pattern)
                new_paths.append(_new_path(rule, match, split_keys(path, naming), naming))
                break
        else:
            new_paths.append(path)
    names = [path_name(path, naming) for path in paths] if len(used) < len(rules) else []
    problems = [
        f"  {rule.pattern!r}{_unused(rule, names, naming)}"
        for rule in rules
        if rule.pattern not in used
    ]
    if problems:
        raise MismatchError(f"rename matches no leaf of {where}:\n" + "\n".join(problems))
    return new_paths


def _rule(pattern: str, target: str, naming: Naming) -> _Rule:
    for text in (pattern, target):
        if not isinstance(text, str):
            raise TypeError(f"rename: expected key paths that are str, found {text!r:.80}")
    if _UNUSABLE.search(pattern):
        raise ValueError(f"rename: {pattern!r}: only * and ** can stand for something in a rule")
    if _WILDCARDS.findall(pattern) != _WILDCARDS.findall(target):
        raise ValueError(
            f"rename: {pattern!r} has the wildcards {_listed(pattern)}, and {target!r} "
            f"{_listed(target)}: each must stand in both, in the same order"
        )
    regex = pattern_regex(pattern_name(pattern, naming))
    rest = "(?P<rest>/.*)?" if pattern else "(?P<rest>.*)"
    return _Rule(pattern, re.compile(regex + rest, re.DOTALL).fullmatch, target)


def _listed(pattern: str) -> str:
    return " ".join(_WILDCARDS.findall(pattern)) or "none"


def _new_path(rule: _Rule, match: re.Match[str], path: KeyPath, naming: Naming) -> KeyPath:
    rest = match["rest"] or ""
    kept = path[len(path) - rest.count("/") :] if rest else ()
    if not rule.pattern:
        kept = path
    groups = iter(match.groups()[:-1])  # the last one is the rest
    head = _WILDCARDS.sub(lambda _: (next(groups) or "").rstrip("/"), rule.target)
    try:
        keys = parse_path(re.sub("/{2,}", "/", head).strip("/"))
    except ValueError as e:
        raise ValueError(f"rename: {rule.pattern!r} makes {head!r}: {e}") from e
    if naming == "strings":  # then every key is a string
        keys = tuple(str(key) if isinstance(key, int) else key for key in keys)
    return (*keys, *kept)


def _unused(rule: _Rule, names: Sequence[str], naming: Naming) -> str:
    if any(map(rule.match, names)):
        return ": a rule before it takes what it matches"
    return explain_unmatched(pattern_name(rule.pattern, naming), names)
