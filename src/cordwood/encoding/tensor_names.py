"""Tensor names: the keys of a leaf's path, joined by dots.

A name is changed only where it could not be told from another one (on a file system or in a
tool that ignores case or normalises Unicode), or where the format or its readers could not
take it. The file lists the changed ones, so reading needs none of the rules here.
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
_KEPT_CHARACTERS = 200  # of a name that is too long


def dotted_name(path: KeyPath) -> str:
    """The keys of a path, joined by dots; '' for the root. Not unique.

    >>> dotted_name(("layers", 0, "kernel"))
    'layers.0.kernel'
    """
    return ".".join([key if type(key) is str else _key_text(key) for key in path])


def dotted_names(paths: Sequence[KeyPath]) -> Iterator[str]:
    """The dotted name of each path, made when it is asked for."""
    if set(map(type, chain.from_iterable(paths))) <= {str}:
        return map(".".join, cast("Sequence[tuple[str, ...]]", paths))
    return map(dotted_name, paths)


def _key_text(key: Key) -> str:
    return key_literal(key.value if isinstance(key, DictKey) else key)


class TensorNames(NamedTuple):
    """Unique names of some paths, and which of them are not the dotted ones."""

    names: list[str]
    changed: list[int]  # positions


def tensor_names(paths: Sequence[KeyPath]) -> TensorNames:
    """A unique name for each path: its dotted name wherever that will do."""
    names = list(dotted_names(paths))
    if _all_usable(names):
        return TensorNames(names, [])
    taken: set[str] = set()
    # First come, first served: the first of two that collide keeps its name.
    changed = []
    for i, name in enumerate(names):
        folded = _folded(name)
        if _usable(name) and folded not in taken:
            taken.add(folded)
        else:
            changed.append(i)
    counts: dict[str, int] = {}
    for i in changed:
        stem = _usable_form(names[i])
        name = stem
        while (folded := _folded(name)) in taken:
            counts[stem] = counts.get(stem, 1) + 1
            name = f"{stem}~{counts[stem]}"
        taken.add(folded)
        names[i] = name
    return TensorNames(names, changed)


def _all_usable(names: list[str]) -> bool:
    """The quick answer for the common case: plain ASCII names."""
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
    """What names that could be taken for one another have in common."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
