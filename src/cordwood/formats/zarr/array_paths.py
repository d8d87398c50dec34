"""The path of each array in the directory.

eFormer's layout: the keys of the leaf's path joined by dots after the prefix, and every dot (or
slash) a step down. A name that would leave the directory, that a file system would not take, or
that collides with another is escaped: its readable characters, `~`, and a digest of the exact
key path, as one directory right under the prefix's. The index lists the path of every array, so
reading needs none of these rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from cordwood.encoding.digests import digest_of
from cordwood.encoding.tensor_names import dotted_name
from cordwood.keypath import KeyPath, format_path

MAX_COMPONENT_BYTES = 255  # of a file name on Linux file systems
MAX_PATH_BYTES = 1024  # of an array's path; Linux takes 4096 in all
# Control characters and Unicode's bidirectional and invisible formatting ones: in the name of a
# directory they act on the terminal of whoever lists it.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_UNREADABLE = re.compile(r"[^0-9A-Za-z_-]+")
_KEPT_CHARACTERS = 80  # of an escaped name


def ordinary_path(name: str) -> str | None:
    """Return the path that eFormer gives a dotted name; None if the name must be escaped.

    >>> ordinary_path("layers.0/kernel")
    'layers/0/kernel'
    """
    parts = name.replace(".", "/").split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return None
    if min(sizes) < 1 or max(sizes) > MAX_COMPONENT_BYTES:
        return None
    if sum(sizes) + len(sizes) > MAX_PATH_BYTES or "\0" in name or "\\" in name:
        return None
    return "/".join(parts)


def _path_on_disk(name: str) -> str | None:
    """Return the path of a dotted name; None if it must be escaped."""
    return None if _UNPRINTABLE.search(name) else ordinary_path(name)


def _escaped(readable: str, exact: str) -> str:
    stem = _UNREADABLE.sub("_", readable)[:_KEPT_CHARACTERS]
    return f"{stem}~{digest_of(exact.encode('utf-8', 'surrogatepass')).hex()}"


def prefix_path(prefix: str) -> str:
    """Return the directory of a prefix; '' for none."""
    if not prefix:
        return ""
    path = _path_on_disk(prefix)
    return _escaped(prefix, prefix) if path is None else path


def array_paths(
    key_paths: Sequence[KeyPath], prefix: str, *, others: Iterable[str] = ()
) -> list[str]:
    """Return a path for the array of each leaf. No two are equal, and none is within another.

    Names that differ only in case or in their Unicode normalization count as equal. The first
    of two that collide keeps its name.

    Args:
        key_paths: the key paths of the leaves, in the order of the index.
        prefix: the prefix of the item; '' for none.
        others: paths of the arrays of other items in the same directory.
    """
    folder = prefix_path(prefix)
    used = _Used(others)
    paths = []
    for key_path in key_paths:
        name = dotted_name(key_path)
        path = _path_on_disk(".".join(filter(None, (prefix, name))) if key_path else prefix)
        if path is None or (key_path and not name) or not used.add(path):
            stem = _escaped(name, format_path(key_path))
            path = f"{folder}/{stem}" if folder else stem
            count = 1
            while not used.add(path):
                count += 1
                path = f"{folder}/{stem}~{count}" if folder else f"{stem}~{count}"
        paths.append(path)
    return paths


class _Used:
    """The paths of arrays, and the directories that contain arrays."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._arrays: set[str] = set()
        self._folders: set[str] = set()
        for path in paths:
            self._put(_folded(path))

    def add(self, path: str) -> bool:
        """Take a path; return False if it is not free."""
        place = _folded(path)
        if place in self._arrays or place in self._folders:
            return False
        if any(above in self._arrays for above in _above(place)):
            return False
        self._put(place)
        return True

    def _put(self, place: str) -> None:
        self._arrays.add(place)
        for above in _above(place):
            if above in self._folders:
                break  # and so are those above it
            self._folders.add(above)


def _above(place: str) -> Iterator[str]:
    """Return the directories that contain a path, the innermost first."""
    at = place.rfind("/")
    while at > 0:
        place = place[:at]
        yield place
        at = place.rfind("/")


def _folded(path: str) -> str:
    """Return a form that is equal for paths that a file system may confuse."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
