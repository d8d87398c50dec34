"""Object stores for tests: in memory and on the local disk, each under a key of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

from cordwood.storage.object_store_client import ObjectStore
from cordwood.storage.paths import parse_url

__all__ = ["KINDS", "new_store"]

KINDS = ("memory",)
_numbers = itertools.count()


def new_store(kind: str, folder: Path) -> ObjectStore:
    """Return an empty store."""
    number = next(_numbers)
    text = f"memory://tests/{number}" if kind == "memory" else f"{folder.as_uri()}/store-{number}"
    url = parse_url(text)
    assert url is not None
    return ObjectStore(url)
