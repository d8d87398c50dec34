"""Buckets of S3 and GCS for tests, found as users' are found: by environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from cordwood.storage.object_stores import open_bucket, request_retries
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from tests.storage.bucket import BUCKET, Answer, Bucket, Request
from tests.storage.gcs_server import GcsHandler
from tests.storage.object_servers import serve
from tests.storage.s3_server import ACCESS_KEY, REGION, S3Handler

__all__ = ["Answer", "Request", "WebStore", "forget_stores", "web_store"]


class WebStore(Bucket):
    """A bucket and its URL; an anonymous bucket of an emulator where it is of GCS."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.scheme = scheme
        self.url = f"{scheme}://{BUCKET}"
        self.needs_credentials = scheme == "s3"


@contextmanager
def web_store(scheme: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    """Yield an empty bucket; "s3" or "gs". Requests are repeated after a moment."""
    store = WebStore(scheme)
    with serve(S3Handler if scheme == "s3" else GcsHandler, store) as url:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "CORDWOOD_STALL")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_REGION", REGION)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        forget_stores(monkeypatch)
        yield store
        store.hook = lambda _: None
        assert store.uploads == {}, "each upload is completed or given up"


def forget_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process know no store, and wait only for a moment before it repeats a request."""
    monkeypatch.setattr(request_retries, "_delay_seconds", lambda attempt: 0.001)
    monkeypatch.setattr(BUCKETS, "_experience", {})
    monkeypatch.setattr(BUCKETS, "_opened", {})
    moment = timedelta(milliseconds=1)
    backoff = {"init_backoff": moment, "max_backoff": moment}
    retries = {**open_bucket._UPLOAD_RETRIES, "backoff": backoff}
    monkeypatch.setattr(open_bucket, "_UPLOAD_RETRIES", retries)
