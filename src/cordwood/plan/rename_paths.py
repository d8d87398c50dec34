"""The option `rename`: new key paths for leaves and containers, by patterns. Pure.

{"encoder": "backbone"}                         a leaf, or a container with all that is in it
{"params": ""}, {"": "params"}                  move out of a container; move everything into one
{"layers/*/attn": "blocks/*/attention"}         each `*` (part of a key) and `**` (any number of
{"model.layers.*.weight": "layers/*/kernel"}    keys) stands for the same text on both sides
{"embed/w": ["embed/w", "head/w"]}              a leaf that is needed at several places
{"**/value$": "**"}                             without the last key, where that is `value`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from cordwood.errors import MismatchError
from cordwood.index import Naming
from cordwood.keypath import KeyPath, parse_path
from cordwood.plan.path_patterns import (
    ExactNames,
    explain_unmatched,
    path_name,
    pattern_name,
    split_keys,
)
from cordwood.plan.path_spellings import is_jax_path, listed_form, plain_name, plain_pattern
from cordwood.plan.pattern_regex import pattern_regex

Rename: TypeAlias = Mapping[str, str | Sequence[str]]

_WILDCARDS = re.compile(r"(?<![^/])\*\*(?![^/])|\*+")
_UNUSABLE = re.compile(r"[?\[]")


class _Rule(NamedTuple):
    pattern: str
    match: Callable[[str], re.Match[str] | None]
    targets: tuple[str, ...]
    is_plain: bool = False  # it matches the plain form of names
    is_literal: bool = False  # its targets have no wildcards


def rename_key_paths(
    paths: Sequence[KeyPath], rename: Rename, *, naming: Naming, where: str
) -> list[list[KeyPath]]:
    """Return the new key paths of each path; for each path the first matching rule counts.

    There is one new path, or one for each target if the rule has several. The keys of a path after
    the part that a rule matches stay unchanged.

    Raises:
        ValueError: the wildcards of a rule differ on its two sides, or it makes no valid path.
        MismatchError: a rule matches nothing; the message names all such rules, and the nearest
            name for each.
    """
    if not isinstance(rename, Mapping):
        raise TypeError(f"rename: expected a dict of old and new key paths, found {rename!r:.80}")
    names = [path_name(path, naming) for path in paths]
    exact = ExactNames(names)
    rules = [_rule(pattern, targets, naming, exact) for pattern, targets in rename.items()]
    applied = _first_matches(rules, names, naming)
    unused = set(range(len(rules))).difference(number for number, _ in applied.values())
    plain = {
        i: _plain_rule(rules[i], naming) for i in unused if not any(map(rules[i].match, names))
    }
    if plain:
        rules = [plain.get(i, rule) for i, rule in enumerate(rules)]
        applied = _first_matches(rules, names, naming)
        unused = set(range(len(rules))).difference(number for number, _ in applied.values())
    if unused:
        problems = [
            f"  {rules[i].pattern!r}{_unused(rules[i], names, naming)}" for i in sorted(unused)
        ]
        raise MismatchError(f"rename matches no leaf of {where}:\n" + "\n".join(problems))
    new_paths = []
    for i, path in enumerate(paths):
        if i not in applied:
            new_paths.append([path])
            continue
        number, match = applied[i]
        rule, keys = rules[number], split_keys(path, naming)
        new_paths.append([_new_path(rule, target, match, keys, naming) for target in rule.targets])
    return new_paths


def _first_matches(
    rules: Sequence[_Rule], names: Sequence[str], naming: Naming
) -> dict[int, tuple[int, re.Match[str]]]:
    """Return the first rule that matches each name, and its match, by the name's position."""
    result = {}
    for i, name in enumerate(names):
        for number, rule in enumerate(rules):
            match = rule.match(plain_name(name, naming) if rule.is_plain else name)
            if match is not None:
                result[i] = number, match
                break
    return result


def _rule(pattern: str, targets: str | Sequence[str], naming: Naming, exact: ExactNames) -> _Rule:
    is_sequence = isinstance(targets, Sequence) and not isinstance(targets, str)
    targets = cast("tuple[str, ...]", tuple(targets if is_sequence else [targets]))
    for text in (pattern, *targets):
        if not isinstance(text, str):
            raise TypeError(f"rename: expected key paths that are str, found {text!r:.80}")
    if not targets:
        raise ValueError(f"rename: {pattern!r}: there is no new path; to leave it out, use select=")
    literal = exact.matcher(pattern_name(pattern, naming))
    if literal is not None:
        new = tuple([listed_form(target) if "[" in target else target for target in targets])
        return _Rule(pattern, literal, new, is_literal=True)
    listed, new = pattern, targets
    if is_jax_path(pattern.removesuffix("$")):
        listed, new = listed_form(pattern), tuple(map(listed_form, targets))
    else:
        new = tuple([listed_form(target) if "[" in target else target for target in targets])
    if _UNUSABLE.search(listed):
        raise ValueError(f"rename: {pattern!r}: only * and ** can stand for something in a rule")
    for target in new:
        if pattern.endswith("$") and target.endswith("$"):
            raise ValueError(f"rename: {pattern!r}: a new path such as {target!r} has no $")
        if _WILDCARDS.findall(listed) != _WILDCARDS.findall(target):
            raise ValueError(
                f"rename: {pattern!r} has the wildcards {_listed(pattern)}, and {target!r} "
                f"{_listed(target)}: each must stand in both, in the same order"
            )
    return _Rule(pattern, _rule_matcher(pattern_name(listed, naming)), new)


def _rule_matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    tail = "(?P<tail>/.*)?" if pattern else "(?P<tail>.*)"
    return re.compile(pattern_regex(pattern) + tail, re.DOTALL).fullmatch


def _plain_rule(rule: _Rule, naming: Naming) -> _Rule:
    """Return a rule that matches the plain form of names."""
    return rule._replace(match=_rule_matcher(plain_pattern(rule.pattern, naming)), is_plain=True)


def _listed(pattern: str) -> str:
    return " ".join(_WILDCARDS.findall(pattern)) or "none"


def _new_path(
    rule: _Rule, target: str, match: re.Match[str], path: KeyPath, naming: Naming
) -> KeyPath:
    tail = match["tail"] or ""
    tail_keys = path[len(path) - tail.count("/") :] if tail else ()
    if not rule.pattern:
        tail_keys = path
    head = target
    if not rule.is_literal:
        groups = iter(match.groups()[:-1])  # the last one is the tail
        head = _WILDCARDS.sub(lambda _: (next(groups) or "").rstrip("/"), target)
    if rule.is_plain and naming == "dotted":  # the keys of the tail are one string
        head, tail_keys = head + tail, ()
    try:
        keys = parse_path(re.sub("/{2,}", "/", head).strip("/"))
    except ValueError as e:
        raise ValueError(f"rename: {rule.pattern!r} makes {head!r}: {e}") from e
    if naming == "strings":  # then every key is a string
        keys = tuple(str(key) if isinstance(key, int) else key for key in keys)
    return (*keys, *tail_keys)


def _unused(rule: _Rule, names: Sequence[str], naming: Naming) -> str:
    plain = [plain_name(name, naming) for name in names] if rule.is_plain else names
    if any(map(rule.match, plain)):
        return ": a rule before it takes what it matches"
    return explain_unmatched(pattern_name(rule.pattern, naming), names)
