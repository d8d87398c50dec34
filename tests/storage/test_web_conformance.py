"""Object stores with the protocols of S3 and GCS pass the conformance suite of storages."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import pytest

from tests.storage.conformance import Check, Storage, checks_of
from tests.storage.web_stores import WebStore, web_store


class ObjectsBelow(MutableMapping[str, bytes]):
    """The objects below a key of a bucket, by the rest of their keys."""

    def __init__(self, web: WebStore, key: str) -> None:
        self.web = web
        self.key = key

    def __getitem__(self, name: str) -> bytes:
        entry = self.web.look(f"{self.key}/{name}")
        if entry is None:
            raise KeyError(name)
        return entry[0]

    def __setitem__(self, name: str, data: bytes) -> None:
        self.web.put(f"{self.key}/{name}", data, lambda _: True)

    def __delitem__(self, name: str) -> None:
        self.web.delete(f"{self.key}/{name}", lambda _: True)

    def __iter__(self) -> Iterator[str]:
        return iter(self.web.names(self.key))

    def __len__(self) -> int:
        return len(self.web.names(self.key))


@pytest.mark.parametrize("check", checks_of(has_files=True), ids=lambda check: check.__name__)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_conformance(scheme: str, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_store(scheme, monkeypatch) as web:
        objects = ObjectsBelow(web, "run/a")
        check(Storage(f"{web.url}/run/a", objects, collects_at_once=False))
