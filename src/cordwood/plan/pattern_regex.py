"""The regular expression of a pattern over key paths. It takes time linear in the name. Pure.

A wildcard takes as little as the fixed text after it allows, and gives nothing back: as that text
has one length, less would not leave more to the rest. So each part up to the next wildcard is an
atomic group `(?>...)`, without which a name of some thousand characters could take hours.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\*+|\[(!?+)(.[^\]]*+)\]|%(?:2A|3F|5B|5D|21|24)|.", re.DOTALL)
_KEY_ENDS = "(?![^/])"
_NAME_ENDS = r"\Z"


def pattern_regex(pattern: str) -> str:
    """Return a regular expression for the paths of a pattern: a group for each `*` and `**`.

    The caller lets it be followed by the end of a name, or by '/' and anything: the leaves of a
    container. The expression of a pattern with `$` at its end matches at the end of a name only.

    >>> pattern_regex("layers/*/bias")
    'layers/([^/]*+)/bias'
    """
    ends = _NAME_ENDS if pattern.endswith("$") else _KEY_ENDS
    pattern = pattern.removesuffix("$")
    if pattern in ("", "**"):
        return "(.*)" if pattern else ends.removeprefix(_KEY_ENDS)
    parts = pattern.split("/")
    stars = [i for i, part in enumerate(parts) if part == "**" and parts[i - 1 : i] != ["**"]]
    fixed = parts[: stars[0] if stars else None]
    texts = ["/".join(map(_key_regex, fixed))] if fixed else []
    for start, stop in zip(stars, [*stars[1:], len(parts)], strict=False):
        keys = [part for part in parts[start:stop] if part != "**"]
        text = "/".join(map(_key_regex, keys))
        end = ends if stop == len(parts) else _KEY_ENDS
        texts.append(f"(?>((?:[^/]++/)*?){text}{end})" if keys else "(.+)")
    return "/".join(texts) + ("" if stars or ends == _KEY_ENDS else ends)


def _key_regex(part: str) -> str:
    """Return the regular expression of one key of a pattern."""
    first, *others = _fixed_texts(part)
    if not others:
        return first
    *middle, last = others
    text = first + "".join([f"(?>([^/]*?){each})" for each in middle])
    return text + (f"(?>([^/]*?){last}{_KEY_ENDS})" if last else "([^/]*+)")


def _fixed_texts(part: str) -> list[str]:
    """Return the regular expressions of what is before, between and after the `*` of a key."""
    texts = [""]
    for token in _TOKEN.finditer(part):
        if token[0].startswith("*"):
            texts.append("")
        else:
            texts[-1] += _character_regex(token)
    return texts


def _character_regex(token: re.Match[str]) -> str:
    """Return the regular expression of `?`, a set, a character, or one that is escaped."""
    text, negated, members = token[0], token[1], token[2]
    if text[0] == "%" and len(text) > 1:
        return re.escape(chr(int(text[1:], 16)))
    if members is None:
        return "[^/]" if text == "?" else re.escape(text)
    members = members.replace("\\", r"\\").replace("[", r"\[")
    first = "\\" if members[0] in ("^", "]") else ""
    return f"[{'^/' if negated else ''}{first}{members}]"
