"""Object stores for tests: each under a key of its own, and its objects as a mapping."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import pytest

from cordwood.storage.locations import Url, parse_location
from cordwood.storage.object_stores.list_objects import object_names
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.paths import new_save_id
from tests.storage.moto_server import moto_endpoint
from tests.storage.web_stores import forget_stores, web_store

__all__ = ["KINDS", "StoredObjects", "new_url", "open_url"]

# With CORDWOOD_TEST_STORE a bucket of a real server: `make ceph` and `make azure` set it.
KINDS = ("memory", "s3", "gs") if "CORDWOOD_TEST_STORE" not in os.environ else ("real",)
_LIMIT_BYTES = 1 << 30
_numbers = itertools.count()


@contextmanager
def new_url(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of an empty store, which takes parts of uploads of any size."""
    if kind == "memory":
        number = next(_numbers)
        yield f"memory://tests-{number}/{number}"  # a bucket of its own: nothing else is in it
    elif kind == "real":
        yield f"{os.environ['CORDWOOD_TEST_STORE']}/{new_save_id()}"
    elif kind == "moto":
        forget_stores(monkeypatch)
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint())
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield f"s3://bucket/{next(_numbers)}"
    else:
        with web_store(kind, monkeypatch) as web:
            web.min_part_size = 1
            yield f"{web.url}/tests/{next(_numbers)}"


def open_url(url: str) -> ObjectStore:
    """Return the store of a URL."""
    parsed = parse_location(url)
    assert isinstance(parsed, Url)
    return ObjectStore(parsed)


class StoredObjects(MutableMapping[str, bytes]):
    """The objects below a URL, by their names."""

    def __init__(self, url: str) -> None:
        self._store = open_url(url)

    def __getitem__(self, name: str) -> bytes:
        data = self._store.read(name, limit_bytes=_LIMIT_BYTES).data
        if data is None:
            raise KeyError(name)
        return data

    def __setitem__(self, name: str, data: bytes) -> None:
        self._store.write(name, data)

    def __delitem__(self, name: str) -> None:
        self._store.delete([name])

    def __iter__(self) -> Iterator[str]:
        return iter(object_names(self._store))

    def __len__(self) -> int:
        return len(object_names(self._store))
