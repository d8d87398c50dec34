"""An S3 and a GCS server for tests, on loopback and in this process, with failures on command."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from cordwood.storage import object_store_client

__all__ = ["Answer", "Request", "WebStore", "web_store"]

BUCKET = "bucket"


class Request(NamedTuple):
    """A request of a client."""

    method: str  # GET, HEAD, PUT, DELETE or LIST
    key: str  # of LIST: the prefix
    data: bytes


class Answer(NamedTuple):
    """The answer of a hook to a request.

    Attributes:
        status: the answer; 0: none, the connection is closed.
        takes_effect: how often the request is carried out before it is answered.
    """

    status: int = 0
    takes_effect: int = 0
    body: bytes = b""


class WebStore:
    """A bucket, its requests so far, and what is to go wrong with them.

    Attributes:
        hook: asked about each request before it is carried out, on a thread of its own; it may
            wait. None: the request is carried out as usual.
        obeys_conditions: False: conditional writes are carried out unconditionally.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.requests: list[Request] = []
        self.hook: Callable[[Request], Answer | None] = lambda _: None
        self.obeys_conditions = True
        self.most_at_once = 0
        self.signed: list[str] = []  # the Authorization of each request
        self.url = f"{scheme}://{BUCKET}"
        self._at_once = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def names(self, folder: str) -> list[str]:
        """Return the names below a key, sorted."""
        head = f"{folder}/"
        return sorted(key.removeprefix(head) for key in self.objects if key.startswith(head))

    def count(self, method: str, pattern: str = "") -> int:
        """Return the number of requests so far of a method, for keys that hold a pattern."""
        return sum(
            request.method == method and re.search(pattern, request.key) is not None
            for request in self.requests
        )

    def begin(self, request: Request) -> Answer | None:
        with self._lock:
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        return self.hook(request)

    def end(self) -> None:
        with self._lock:
            self._at_once -= 1

    def look(self, key: str) -> tuple[bytes, str] | None:
        with self._lock:
            return self.objects.get(key)

    def listed(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def put(self, key: str, data: bytes, holds: Callable[[str | None], bool]) -> str | None:
        """Put an object where a condition on its version holds; the new version, or None."""
        with self._lock:
            old = self.objects.get(key)
            if self.obeys_conditions and not holds(None if old is None else old[1]):
                return None
            number = next(self._numbers)
            digest = hashlib.md5(data).hexdigest()  # what S3 has for an ETag
            version = f'"{digest}"' if self.scheme == "s3" else str(number)
            self.objects[key] = data, version
            return version

    def delete(self, key: str, holds: Callable[[str | None], bool]) -> bool | None:
        """Delete an object; whether there was one, None where the condition did not hold."""
        with self._lock:
            old = self.objects.get(key)
            if self.obeys_conditions and not holds(None if old is None else old[1]):
                return None
            return self.objects.pop(key, None) is not None


@contextmanager
def web_store(scheme: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    """Yield an empty bucket, found by the environment variables that users have; "s3" or "gs"."""
    url, handler = _server(scheme)
    store = WebStore(scheme)
    handler.current = store
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
    for name, count in (("_context", 8), ("_first_context", 1)):
        retries = {"max_retries": count, "initial_delay": "1ms", "max_delay": "10ms"}
        context = object_store_client._new_context(retries)
        monkeypatch.setattr(object_store_client, name, lambda context=context: context)
    monkeypatch.setattr(object_store_client, "_answered", set())
    monkeypatch.setattr(object_store_client, "_tested", set())
    yield store
    store.hook = lambda _: None


@functools.cache
def _server(scheme: str) -> tuple[str, type[_Handler]]:
    """Return the URL of a server and what answers there; one for the process.

    TensorStore reads the address of a GCS server once in a process.
    """
    handler = _S3 if scheme == "s3" else _Gcs

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """Pass over a client that has gone."""

    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", handler


class _Handler(BaseHTTPRequestHandler):
    current: WebStore  # of the class: of the test that runs
    web: WebStore  # of the request
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is one packet
    silent = False  # the request is carried out, and not answered

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""

    def _handle(self) -> None:
        self.web = type(self).current
        self.web.signed.append(self.headers.get("Authorization") or "")
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size)
        self._answer(url.path, dict(parse_qsl(url.query, keep_blank_values=True)), data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _answer(self, path: str, query: dict[str, str], data: bytes) -> None:
        raise NotImplementedError

    def _run(self, request: Request, carry_out: Callable[[], None]) -> None:
        """Carry a request out and answer it, as the hook says."""
        try:
            answer = self.web.begin(request)
            if answer is None:
                carry_out()
                return
            self.silent = True
            for _ in range(answer.takes_effect):
                carry_out()
            self.silent = False
            if answer.status:
                self._send(answer.status, answer.body, {})
            else:
                self.close_connection = True
        finally:
            self.silent = False
            self.web.end()

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        if self.silent:
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        elif "Content-Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_object(self, key: str, version_header: str) -> None:
        result = self.web.look(key)
        if result is None:
            return self._send(404, b"", {})
        data, version = result
        headers = {version_header: version}
        if version_header == "ETag":
            headers["x-amz-request-id"] = "1"
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if self.command == "HEAD":
            return self._send(200, b"", {**headers, "Content-Length": str(len(data))})
        if byte_range is None:
            return self._send(200, data, headers)
        start = int(byte_range[1])
        stop = min(int(byte_range[2]) + 1 if byte_range[2] else len(data), len(data))
        if start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return self._send(206, data[start:stop], headers)


class _S3(_Handler):
    def _answer(self, path: str, query: dict[str, str], data: bytes) -> None:
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        if bucket != BUCKET:
            return self._send(404, b"", {})
        if not key and "list-type" in query:
            prefix = query.get("prefix", "")
            return self._run(Request("LIST", prefix, b""), lambda: self._list(prefix))
        request = Request(self.command, key, data)
        if not key:
            return self._run(request, lambda: self._send(200, b"", {}))
        if self.command in ("GET", "HEAD"):
            return self._run(request, lambda: self._send_object(key, "ETag"))
        if self.command == "PUT":
            return self._run(request, lambda: self._put(key, data))
        return self._run(request, lambda: self._delete(key))

    def _holds(self, version: str | None) -> bool:
        match, none_match = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if match is not None and match != version:
            return False
        return none_match is None or (
            version is None if none_match == "*" else version != none_match
        )

    def _list(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>"
            for key in self.web.listed(prefix)
        )
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws'
            f'.com/doc/2006-03-01/"><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{rows}'
            "</ListBucketResult>"
        )
        self._send(200, body.encode(), {"Content-Type": "application/xml"})

    def _put(self, key: str, data: bytes) -> None:
        version = self.web.put(key, data, self._holds)
        if version is None:
            self._send(412, b"", {})
        else:
            self._send(200, b"", {"ETag": version})

    def _delete(self, key: str) -> None:
        self._send(412 if self.web.delete(key, self._holds) is None else 204, b"", {})


class _Gcs(_Handler):
    def _answer(self, path: str, query: dict[str, str], data: bytes) -> None:
        match = re.fullmatch(rf"(/upload)?/storage/v1/b/{BUCKET}/o(/.*)?", path)
        if match is None:
            return self._send(404, b"", {})
        key = unquote((match[2] or "/")[1:]) or query.get("name", "")
        self.query = query
        if match[1]:
            return self._run(Request("PUT", key, data), lambda: self._put(key, data))
        if not key:
            start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
            return self._run(Request("LIST", start, b""), lambda: self._list(start, end))
        if self.command == "DELETE":
            return self._run(Request("DELETE", key, b""), lambda: self._delete(key))
        method = "GET" if query.get("alt") == "media" else "HEAD"
        return self._run(Request(method, key, b""), lambda: self._get(key))

    def _holds(self, version: str | None) -> bool:
        match = self.query.get("ifGenerationMatch")
        return match is None or match == (version or "0")

    def _get(self, key: str) -> None:
        if self.query.get("alt") == "media":
            return self._send_object(key, "x-goog-generation")
        result = self.web.look(key)
        if result is None:
            return self._send(404, b"", {})
        return self._send_json(_metadata(key, result[0], result[1]))

    def _list(self, start: str, end: str) -> None:
        names = [key for key in self.web.listed("") if start <= key < end]
        self._send_json({"items": [{"name": key} for key in names]})

    def _put(self, key: str, data: bytes) -> None:
        version = self.web.put(key, data, self._holds)
        if version is None:
            self._send(412, b"", {})
        else:
            self._send_json(_metadata(key, data, version))

    def _delete(self, key: str) -> None:
        gone = self.web.delete(key, self._holds)
        self._send(412 if gone is None else 204 if gone else 404, b"", {})

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _metadata(key: str, data: bytes, version: str) -> dict[str, str]:
    """Return the metadata of an object in the form of GCS."""
    time = "2026-01-01T00:00:00.000Z"
    return {
        "name": key,
        "bucket": BUCKET,
        "generation": version,
        "metageneration": "1",
        "size": str(len(data)),
        "timeCreated": time,
        "updated": time,
        "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
    }
