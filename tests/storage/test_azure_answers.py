"""Answers of Azure Blob Storage, and of its emulator, that differ from those of S3 and GCS.

`make azure` runs the tests of object stores on the emulator itself.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

import cordwood
from cordwood.errors import TruncatedError, UnsupportedFormatError
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.object_stores.list_objects import list_objects
from tests.storage.stores import open_url

TIME = "Thu, 01 Jan 2026 00:00:00 GMT"
NAMES = ("1/index", "2/index")
REFUSED = (
    "<?xml version='1.0' encoding='UTF-8'?><Error><Code>AuthenticationFailed</Code><Message>Server "
    "failed to authenticate the request.\nRequestId:1\nTime:2</Message></Error>"
)


class Handler(BaseHTTPRequestHandler):
    """A container "box" with a few objects; an account of another name is refused."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if not url.path.startswith("/me/box"):
            return self._send(403, REFUSED.encode(), {})
        if "comp=list" in url.query:
            return self._send(200, _listing().encode(), {"Content-Type": "application/xml"})
        headers = {"Last-Modified": TIME, "ETag": '"0x1"'}
        if "Range" in self.headers:  # Azurite answers so for an object without bytes
            return self._send(206, b"", {**headers, "Content-Range": "bytes 0--1/0"})
        return self._send(200, b"", headers)

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _listing() -> str:
    """Return all names, as Azurite does wherever a listing is to begin."""
    properties = (
        f"<Properties><Last-Modified>{TIME}</Last-Modified><Etag>0x1</Etag>"
        "<Content-Length>0</Content-Length><Content-Type>text/plain</Content-Type></Properties>"
    )
    blobs = "".join(f"<Blob><Name>{name}</Name>{properties}</Blob>" for name in NAMES)
    return (
        "<?xml version='1.0' encoding='UTF-8'?><EnumerationResults ContainerName='box'>"
        f"<Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>"
    )


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of the server, to which the environment leads."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/me")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"key").decode())
    monkeypatch.setattr(BUCKETS, "_experience", {})
    monkeypatch.setattr(BUCKETS, "_opened", {})
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_endpoint_of_the_environment(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_url("az://box/run").bucket.where == f"az://box at {address}/me"
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT")
    monkeypatch.setenv("AZURE_ENDPOINT", f"{address}/me")
    assert open_url("az://box/run").bucket.where == f"az://box at {address}/me"


@pytest.mark.usefixtures("address")
def test_a_listing_has_the_tags_that_other_answers_have() -> None:
    """It leaves out the quotes; a run would read each index again at every look."""
    store = open_url("az://box")
    found = store.find("1/index")
    assert found is not None
    assert [each.tag for each in list_objects(store)] == [found.tag] * 2


@pytest.mark.usefixtures("address")
def test_a_listing_that_ignores_where_to_begin() -> None:
    store = open_url("az://box")
    assert [each.name for each in list_objects(store, start_after="1/index")] == ["2/index"]


@pytest.mark.usefixtures("address")
def test_a_range_of_an_object_without_bytes() -> None:
    with pytest.raises(TruncatedError, match="found its end"):
        open_url("az://box").read_range("1/index", 0, 1)


def test_a_refusal_is_one_line_with_advice(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{address}/you")
    with pytest.raises(PermissionError, match="look at AZURE_STORAGE_ACCOUNT_NAME") as caught:
        cordwood.load("az://box/run")
    assert "\n" not in str(caught.value)
    assert "AuthenticationFailed: Server failed to authenticate the request." in str(caught.value)


@pytest.mark.usefixtures("address")
def test_a_key_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "key")
    with pytest.raises(UnsupportedFormatError, match="look at AZURE_STORAGE_ACCOUNT_KEY"):
        cordwood.load("az://box/run")
