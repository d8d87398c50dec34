"""Servers that send more than they were asked for: the rest is not read into memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cordwood.errors import LimitError, TruncatedError
from cordwood.storage.locations import Url, parse_location
from cordwood.storage.object_stores.object_store_client import ObjectStore

CLAIMED_BYTES = 2 << 30
MAX_SENT_BYTES = 256 << 20  # what buffers of the sockets and the client may take, and far below


class Endless(ThreadingHTTPServer):
    daemon_threads = True
    sent_bytes = 0


class Handler(BaseHTTPRequestHandler):
    server: Endless
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.send_response(206 if wanted else 200)
        if wanted:
            first, last = wanted.removeprefix("bytes=").split("-")
            self.send_header("Content-Range", f"bytes {first}-{last}/1000")
        self.send_header("Content-Length", str(CLAIMED_BYTES))
        self.end_headers()
        part = bytes(1 << 20)
        try:
            while self.server.sent_bytes < CLAIMED_BYTES:
                self.wfile.write(part)
                self.server.sent_bytes += len(part)
        except OSError:
            self.close_connection = True


@pytest.fixture
def server() -> Iterator[Endless]:
    with Endless(("127.0.0.1", 0), Handler) as server:
        server.sent_bytes = 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_is_read_up_to_the_length_that_was_asked_for(
    server: Endless, whole: bool
) -> None:
    url = parse_location(f"http://127.0.0.1:{server.server_address[1]}/run")
    assert isinstance(url, Url)
    store = ObjectStore(url)
    read: Callable[[str], object] = partial(store.read_range, start=0, stop=100)
    if whole:
        read = partial(store.read, limit_bytes=1000)
    with pytest.raises(LimitError if whole else TruncatedError):
        read("index")
    assert server.sent_bytes < MAX_SENT_BYTES
