"""Where the files of a directory of packs lie."""

from __future__ import annotations

import os

from cordwood.formats.packs.file_names import RULES
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.storage_protocol import Storage
from cordwood.storage.urls import parse_url


def store_at(path: str | os.PathLike[str]) -> Storage:
    """The directory at a path or URL, which need not exist yet."""
    url = parse_url(path)
    if url is None:
        return LocalStorage(path, RULES)
    if url.scheme == "file":  # the locks of a directory are for all who write there
        return LocalStorage(url.key, RULES)
    from cordwood.storage.object_storage import ObjectStorage

    return ObjectStorage(url, RULES)


def collect(path: str | os.PathLike[str], *, dry_run: bool) -> list[str]:
    """Remove what saves that died have left; the names."""
    return store_at(path).collect(dry_run=dry_run)
