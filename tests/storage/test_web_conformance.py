"""Object stores in memory, and with the protocols of S3 and GCS, pass the conformance suite."""

from __future__ import annotations

import pytest

from cordwood.storage.object_stores import object_storage
from tests.storage.conformance import Check, Storage, checks_of
from tests.storage.stores import KINDS, StoredObjects, new_url


@pytest.mark.parametrize("check", checks_of(has_files=True), ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [*KINDS, *(["moto"] if "s3" in KINDS else [])])
def test_an_object_store_passes_each_check(
    kind: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a check of a damaged sidecar waits for a save that might be writing it.
    monkeypatch.setattr(object_storage, "_COMMIT_SECONDS", 0.1)
    with new_url(kind, monkeypatch) as url:
        objects = StoredObjects(url)
        check(Storage(url, objects, collects_at_once=False, empty_is_none=True))
