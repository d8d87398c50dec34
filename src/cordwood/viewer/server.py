"""The server of the viewer: one page and its resources, for one user, on the loopback address.

Each connection carries one request. The answer to a request for a resource is newline-delimited
JSON: lines of progress, and one line with the result or an error. A page cancels a computation by
closing the connection. `serve` is the life of the server: it starts, a browser opens its page, and
Ctrl-C ends it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import cast

from cordwood.io.progress import Progress
from cordwood.serving.bounded_server import BoundedServer
from cordwood.serving.limited_requests import LimitedRequestHandler, RequestLimits
from cordwood.serving.request_reader import RequestTooLargeError
from cordwood.threads.wait_until_ended import wait_until_ended
from cordwood.viewer.page import Page
from cordwood.viewer.resources import Resources, error_json, parse_name

HOST = "127.0.0.1"

_MAX_CONNECTIONS = 32
_MAX_READING = 2  # requests that read data at the same time; others wait
_MAX_LISTING = 2  # the same for lists of leaves
_MAX_REQUEST_BYTES = 32 << 10  # of the request line and the headers
_REQUEST_SECONDS = 10.0  # for the whole request to arrive
_SEND_SECONDS = 30.0  # for the page to accept a line of an answer
_WAIT_SECONDS = 0.1
_SAFE_SITES = ("none", "same-origin")

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Connection": "close",
}
_EMPTY_POLICY = "default-src 'none'; frame-ancestors 'none'"
_POLL_SECONDS = 0.1


class ViewerServer(BoundedServer):
    """A server on the loopback address; `url` has its token.

    Args:
        page: the page.
        resources: its resources.
        port: the port; 0 for any free one.

    Raises OSError if the port is in use.
    """

    request_queue_size = 16

    def __init__(self, page: Page, resources: Resources, *, port: int = 0) -> None:
        self.page = page
        self.resources = resources
        self.token = secrets.token_urlsafe(32)
        self.stopping = threading.Event()
        self.reading = threading.BoundedSemaphore(_MAX_READING)
        self.listing = threading.BoundedSemaphore(_MAX_LISTING)
        super().__init__(HOST, port, _RequestHandler, most=_MAX_CONNECTIONS)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The values of the Host header that are accepted."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def server_close(self) -> None:
        """Cancel what is being computed, and close the socket."""
        self.stopping.set()
        super().server_close()


class _CanceledError(Exception):
    """The page has closed the connection, or the server is stopping."""


class _RequestHandler(LimitedRequestHandler):
    """The handler of one connection."""

    @property
    def _server(self) -> ViewerServer:
        return cast(ViewerServer, self.server)

    @property
    def request_limits(self) -> RequestLimits:
        return RequestLimits(_MAX_REQUEST_BYTES, _REQUEST_SECONDS)

    def handle(self) -> None:
        """Answer one request."""
        self.close_connection = True
        self.command, self.request_version, self.requestline = "", "", ""
        try:
            self.handle_one_request()
        except RequestTooLargeError:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except (_CanceledError, OSError):
            pass

    def do_GET(self) -> None:
        """Answer with the page or a resource, or refuse."""
        self.connection.settimeout(_SEND_SECONDS)
        token, _, name = self.path.removeprefix("/").partition("/")
        if self.headers.get("Host") not in self._server.hosts:
            self.send_error(
                HTTPStatus.FORBIDDEN,
                "the Host header does not name this server: forward the same port number",
            )
        elif not self._is_same_site(is_page=not name):
            self.send_error(HTTPStatus.FORBIDDEN, "the request comes from another site")
        elif not hmac.compare_digest(token.encode("latin-1"), self._server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "the token in the address is wrong")
        else:
            self._server.connections.mark_as_owner(self.connection)
            self._answer(name)

    def _answer(self, name: str) -> None:
        """Answer a request that has shown the token."""
        if not name and self.path.endswith("/"):
            page = self._server.page
            body = page.html.encode()
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", body, page.policy)
        elif name.startswith("resource/"):
            self._send_resource(name.removeprefix("resource/"))
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _is_same_site(self, *, is_page: bool) -> bool:
        """Return True unless the browser says that another site sends the request.

        A link of another site may lead to the page: without the token it leads nowhere.
        """
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in self._server.hosts]:
            return False
        if self.headers.get("Sec-Fetch-Site", "none") in _SAFE_SITES:
            return True
        return is_page and (
            self.headers.get("Sec-Fetch-Mode") == "navigate"
            and self.headers.get("Sec-Fetch-Dest") == "document"
        )

    def _send_resource(self, name: str) -> None:
        self._send(HTTPStatus.OK, "application/x-ndjson", None, _EMPTY_POLICY)
        try:
            with self._turn(name):
                result = self._server.resources.answer_json(name, self._report)
                self._write(b'{"result":', result, b"}\n")
        except _CanceledError:
            raise
        except Exception as e:
            if self._server.stopping.is_set():
                raise _CanceledError from e
            self._write(json.dumps({"error": error_json(e)}).encode(), b"\n")

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Wait until few others read data, or list leaves, if the resource does so."""
        resource, _ = parse_name(name)
        if resource.reads_data:
            turns, doing = self._server.reading, "waiting for another read"
        elif resource.lists_leaves:
            turns, doing = self._server.listing, "waiting for another list"
        else:
            yield
            return
        while not turns.acquire(timeout=_WAIT_SECONDS):
            self._report(Progress(0, 0, doing))
        try:
            yield
        finally:
            turns.release()

    def _report(self, progress: Progress) -> None:
        """Send a line of progress. Raises _CanceledError if the page was closed."""
        if self._server.stopping.is_set() or self._has_gone():
            raise _CanceledError
        self._write(json.dumps({"progress": progress._asdict()}).encode(), b"\n")

    def _write(self, *parts: bytes) -> None:
        """Send parts of an answer. Raises _CanceledError if the page was closed."""
        try:
            for part in parts:
                self.wfile.write(part)
        except OSError as e:
            raise _CanceledError from e

    def _has_gone(self) -> bool:
        """Return True if the page has closed the connection."""
        poll = select.poll()  # and not select(), which fails for descriptors above 1023
        poll.register(self.connection, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, status: int, kind: str, body: bytes | None, policy: str) -> None:
        """Send headers and a body; the lines of a body that is None are sent later."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if body is not None and self.command != "HEAD":
            self.wfile.write(body)

    def send_error(
        self,
        code: int,
        message: str | None = None,
        explain: str | None = None,  # noqa: ARG002
    ) -> None:
        """Refuse the request in one line of text. Methods other than GET are not allowed."""
        self.request_version = self.protocol_version  # headers also for a malformed request
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET is allowed"
        body = f"{status.value} {message or status.phrase}\n".encode("ascii", "replace")
        self._send(status, "text/plain; charset=us-ascii", body, _EMPTY_POLICY)


def serve(server: ViewerServer, *, browser: bool) -> None:
    """Serve the page until Ctrl-C, which is raised again.

    Args:
        server: the server; the caller closes it.
        browser: open the page in a browser, if there is a screen.
    """
    loop = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
    loop.start()
    try:
        if browser and _has_screen():
            # In a thread: some browsers run until their window is closed.
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        wait_until_ended(loop)  # Ctrl-C cannot strike while a request is handled
    finally:
        server.shutdown()


def _has_screen() -> bool:
    """Return True if a browser can open a window; a browser for terminals would take this one."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)
