"""A server of a bucket over HTTP on loopback.

`s3_server` and `gcs_server` add what differs: the form of versions, conditions and credentials.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.storage.bucket import BUCKET, Answer, Bucket, Data, Request, Response, Stored
from tests.storage.object_answers import carry_out, error, slice_of


class ObjectHandler(BaseHTTPRequestHandler):
    """A connection of a client; a subclass says what a provider accepts."""

    bucket: Bucket  # of the class
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""

    def credentials_refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request with wrong or no credentials."""
        raise NotImplementedError

    def condition_refusal(self, request: Request, stored: Stored | None) -> Response | None:
        """Return the refusal of a write whose condition on the object does not hold."""
        raise NotImplementedError

    def handle_request(self) -> None:
        """Read a request, carry it out and answer it, as the hook of the bucket says."""
        url = urlsplit(self.path)
        name, _, key = unquote(url.path).lstrip("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {key.lower(): value for key, value in self.headers.items()}
        data = self._read(int(headers.get("content-length", 0)))
        request = Request(_method(self.command, key, query), key, data, query, headers)
        if request.method == "LIST":
            request = request._replace(key=query.get("prefix", ""))
        bucket = self.bucket
        if bucket.needs_credentials and (refusal := self.credentials_refusal(request)):
            return self._send(refusal)
        if name != BUCKET:
            return self._send(error(404, "NoSuchBucket", name))
        try:
            answer = bucket.begin(request) or Answer(None)
            if isinstance(answer.delay, threading.Event):
                answer.delay.wait()
            else:
                time.sleep(answer.delay)
            response = Response(0)
            for _ in range(max(answer.takes_effect, answer.status is None)):
                response = carry_out(bucket, request, self.condition_refusal)
            if answer.status == 0:
                self.close_connection = True
                return None
            if answer.status is not None:
                response = error(answer.status, key=key)
                if answer.body or answer.status < 300:
                    response = Response(answer.status, [answer.body])
            return self._send(response, cut=answer.cut)
        finally:
            bucket.end()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def _read(self, size: int) -> Data:
        """Read a body straight from the socket into its own memory."""
        if size <= 1 << 16:
            return self.rfile.read(size)
        data = bytearray(size)
        view = memoryview(data)
        offset = self.rfile.readinto1(view)
        while offset < size:
            count = self.connection.recv_into(view[offset:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionResetError
            offset += count
        return data

    def _send(self, response: Response, *, cut: bool = False) -> None:
        size = sum(map(len, response.pieces))
        self.send_response_only(response.status)
        for name, value in {**response.headers, "Content-Length": str(size)}.items():
            if response.status not in (204, 304) or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        pieces = response.pieces
        if cut:
            pieces = slice_of(response.pieces, 0, size // 2)
            self.close_connection = True
        for piece in pieces:
            self.wfile.write(piece)


def _method(command: str, key: str, query: dict[str, str]) -> str:
    """Return the name of a request."""
    if command == "GET" and not key:
        return "LIST_UPLOADS" if "uploads" in query else "LIST"
    if "uploadId" in query:
        return {"PUT": "PUT_PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(command, command)
    if command == "POST":
        return "DELETE_MANY" if "delete" in query else "CREATE_UPLOAD"
    return command


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[ObjectHandler], port: int) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Pass over a client that has gone."""


@contextmanager
def serve(handler: type[ObjectHandler], bucket: Bucket, port: int = 0) -> Iterator[str]:
    """Serve a bucket until the block ends, and yield the URL of the server."""
    one_bucket = type(handler.__name__, (handler,), {"bucket": bucket})
    server = _Server(one_bucket, port)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in list(server.connections):
            with suppress(OSError):  # its client has gone
                connection.shutdown(socket.SHUT_RDWR)
