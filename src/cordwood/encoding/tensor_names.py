"""Names of tensors: the key paths, joined by dots, and changed where they cannot be used.

A name is changed only if it could be confused with another one (on a file system or in a tool that
ignores case or normalises Unicode), or if the format or its readers would reject it. The file lists
the changed names, so readers need none of the rules here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, cast

from cordwood.encoding.digests import digest_of
from cordwood.keypath import DictKey, Key, KeyPath, key_literal

METADATA_KEY = "__metadata__"
MAX_NAME_BYTES = 1024

_SURROGATES = re.compile("[\ud800-\udfff]")
_KEPT_CHARACTERS = 200  # of a name that is too long; the rest becomes a digest


def dotted_name(path: KeyPath) -> str:
    """Return the keys of a path, joined by dots; '' for the root. The names are not unique.

    >>> dotted_name(("layers", 0, "kernel"))
    'layers.0.kernel'
    """
    return ".".join([key if type(key) is str else _key_text(key) for key in path])


def dotted_names(paths: Sequence[KeyPath]) -> Iterator[str]:
    """Return an iterator over the dotted name of each path."""
    if set(map(type, chain.from_iterable(paths))) <= {str}:
        return map(".".join, cast("Sequence[tuple[str, ...]]", paths))
    return map(dotted_name, paths)


def _key_text(key: Key) -> str:
    return key_literal(key.value if isinstance(key, DictKey) else key)


class TensorNames(NamedTuple):
    """Unique names of paths, and the positions of those that are not the dotted names."""

    names: list[str]
    changed: list[int]  # positions in `names`


def tensor_names(paths: Sequence[KeyPath]) -> TensorNames:
    """Return a unique name for each path: its dotted name if that is usable."""
    names = list(dotted_names(paths))
    if _all_usable(names):
        return TensorNames(names, [])
    used_names: set[str] = set()
    # The first of two names that collide keeps its name.
    changed = []
    for i, name in enumerate(names):
        folded = _folded(name)
        if _usable(name) and folded not in used_names:
            used_names.add(folded)
        else:
            changed.append(i)
    counts: dict[str, int] = {}
    for i in changed:
        stem = _usable_form(names[i])
        name = stem
        while (folded := _folded(name)) in used_names:
            counts[stem] = counts.get(stem, 1) + 1
            name = f"{stem}~{counts[stem]}"
        used_names.add(folded)
        names[i] = name
    return TensorNames(names, changed)


def _all_usable(names: list[str]) -> bool:
    """Return True in the common case of plain ASCII names; a quick check."""
    return (
        len(set(map(str.lower, names))) == len(names)
        and "".join(names).isascii()
        and max(map(len, names), default=0) <= MAX_NAME_BYTES
        and "" not in names
        and METADATA_KEY not in names
    )


def _usable(name: str) -> bool:
    return (
        name not in ("", METADATA_KEY)
        and not _SURROGATES.search(name)
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def _usable_form(name: str) -> str:
    if name in ("", METADATA_KEY):
        return f"~{name}"
    name = _SURROGATES.sub(lambda match: f"~{ord(match[0]):x}", name)
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"{name[:_KEPT_CHARACTERS]}~{digest_of(name.encode()).hex()}"
    return name


def _folded(name: str) -> str:
    """Return a form that is equal for names that could be confused."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
