"""New key paths for stored leaves and containers. Pure.

{"encoder": "backbone"}                         a leaf, or a container with all that is in it
{"params": ""}, {"": "params"}                  move out of a container; move everything into one
{"layers/*/attn": "blocks/*/attention"}         each `*` (part of a key) and `**` (any number of
{"model.layers.*.weight": "layers/*/kernel"}    keys) stands for the same text on both sides
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import MismatchError
from cordwood.index import Naming
from cordwood.keypath import KeyPath, parse_path
from cordwood.plan.path_patterns import (
    explain_unmatched,
    path_name,
    pattern_name,
    pattern_regex,
    split_keys,
)

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
    regex = pattern_regex(pattern_name(pattern, naming), capture=True)
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
