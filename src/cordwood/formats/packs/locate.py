"""The storage of a directory of packs: a local disk or an object store."""

from __future__ import annotations

import os

from cordwood.formats.packs.file_names import RULES
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.storage_protocol import Storage
from cordwood.storage.urls import parse_url


def store_at(path: str | os.PathLike[str]) -> Storage:
    """Return the directory at a path or URL, which need not exist yet."""
    url = parse_url(path)
    if url is None:
        return LocalStorage(path, RULES)
    if url.scheme == "file":  # such a URL must use the same locks as the path
        return LocalStorage(url.key, RULES)
    from cordwood.storage.object_storage import ObjectStorage

    return ObjectStorage(url, RULES)


def collect(path: str | os.PathLike[str], *, dry_run: bool) -> list[str]:
    """Remove files that dead saves have left; return their names."""
    return store_at(path).collect(dry_run=dry_run)
