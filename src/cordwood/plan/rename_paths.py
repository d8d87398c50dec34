"""Other key paths for what is stored: leaves and containers under new names. Pure.

{"encoder": "backbone"}                         a leaf, or a container with all that is in it
{"params": ""}, {"": "params"}                  out of a container; everything into one
{"layers/*/attn": "blocks/*/attention"}         each `*` (part of a key) and `**` (any number
{"model.layers.*.weight": "layers/*/kernel"}    of keys) stands for what it stood for before
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
    """The paths under their new names; the first rule that matches one counts.

    The keys of a path behind what a rule matches stay as they are.

    Raises:
        ValueError: a rule has a wildcard too many or too few, or makes no key path.
        MismatchError: a rule matches nothing; suggests the nearest, and names them all.
    """
    if not isinstance(rename, Mapping):
        raise TypeError(f"rename: expected a dict of old and new key paths, found {rename!r:.80}")
    rules = [_rule(pattern, target, naming) for pattern, target in rename.items()]
    used: set[str] = set()
    found = []
    for path in paths:
        name = path_name(path, naming)
        for rule in rules:
            match = rule.match(name)
            if match is not None:
                used.add(rule.pattern)
                found.append(_new_path(rule, match, split_keys(path, naming), naming))
                break
        else:
            found.append(path)
    names = [path_name(path, naming) for path in paths] if len(used) < len(rules) else []
    problems = [
        f"  {rule.pattern!r}{_unused(rule, names, naming)}"
        for rule in rules
        if rule.pattern not in used
    ]
    if problems:
        raise MismatchError(f"rename matches no leaf of {where}:\n" + "\n".join(problems))
    return found


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
    if naming == "strings":  # where every key is one
        keys = tuple(str(key) if isinstance(key, int) else key for key in keys)
    return (*keys, *kept)


def _unused(rule: _Rule, names: Sequence[str], naming: Naming) -> str:
    if any(map(rule.match, names)):
        return ": a rule before it takes what it matches"
    return explain_unmatched(pattern_name(rule.pattern, naming), names)
