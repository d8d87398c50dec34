"""Where the files of a directory of packs lie."""

from __future__ import annotations

import os

from cordwood.engine.local_store import LocalStore
from cordwood.engine.stores import DirectoryStore
from cordwood.engine.urls import parse_url
from cordwood.formats.packs.rules import RULES

__all__ = ["collect", "store_at"]


def store_at(path: str | os.PathLike[str]) -> DirectoryStore:
    """The directory at a path or URL, which need not exist yet."""
    url = parse_url(path)
    if url is None:
        return LocalStore(path, RULES)
    if url.scheme == "file":  # the locks of a directory are for all who write there
        return LocalStore(url.key, RULES)
    from cordwood.engine.object_store import ObjectDirectory

    return ObjectDirectory(url, RULES)


def collect(path: str | os.PathLike[str], *, dry_run: bool) -> list[str]:
    """Remove what saves that died have left; the names."""
    return store_at(path).collect(dry_run=dry_run)
