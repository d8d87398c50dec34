"""A server of the checkpoints below a directory: their indexes, and the files that these name.

It lists the finished steps of a directory, too, and nothing else (`served_steps`).

It only reads. Whoever has not the token learns nothing, and whoever has it can read no other file.
Connections, requests and times are limited, so that no client can stop it.
"""

from __future__ import annotations

import hmac
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from io import FileIO
from typing import Any, NamedTuple, Self, cast
from urllib.parse import unquote_to_bytes

from cordwood.errors import CordwoodError
from cordwood.serving.bounded_server import BoundedServer
from cordwood.serving.limited_requests import LimitedRequestHandler, RequestLimits
from cordwood.serving.request_reader import RequestTooLargeError
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.peers.served_steps import LISTING, listing_of
from cordwood.storage.read_small_file import read_limited, regular_file_size
from cordwood.storage.storage_protocol import NamingRules
from cordwood.threads.wait_until_ended import wait_until_ended

_INDEXES = 16  # whose names are remembered
_MAX_REQUEST_BYTES = 8 << 10  # of the request line and the headers
_POLL_SECONDS = 0.1
_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")


class ServerLimits(NamedTuple):
    """The limits of a server.

    Attributes:
        connections: the most at a time. Those that have not shown the token make room for new ones.
        answers: the most that are sent at a time; others wait for `stall_seconds`, and are refused.
        request_seconds: for a request to arrive.
        idle_seconds: from an answer to the next request.
        stall_seconds: for a client to take some bytes of an answer.
    """

    connections: int = 256
    answers: int = 64
    request_seconds: float = 10.0
    idle_seconds: float = 60.0
    stall_seconds: float = 10.0


class PeerServer:
    """A server of the checkpoints below a directory, which runs until `close`.

    Args:
        root: the directory, which need not exist yet.
        rules: the naming rules of the format.
        token: those who send it may read.
        host: the address to listen at; others than 127.0.0.1 can be reached by other machines.
        port: the port; 0 for any free one.
        limits: of connections and times; None: those of `ServerLimits`.

    Attributes:
        address: "host:port".
        port: the port.

    Raises OSError if the address cannot be used.
    """

    def __init__(
        self,
        root: LocalPath,
        rules: NamingRules,
        token: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits | None = None,
    ) -> None:
        if not token:
            raise ValueError("token: expected a text that others cannot guess, found ''")
        files = _ServedFiles(root, rules)
        self._server = _Server(files, token, host, port, limits or ServerLimits())
        shown = f"[{host}]" if ":" in host else host
        self.port = self._server.server_port
        self.address = f"{shown}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_POLL_SECONDS,),
            name=f"cordwood-peer-server-{self._server.server_port}",
            daemon=True,
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the server is closed."""
        wait_until_ended(self._thread)

    def close(self) -> None:
        """Stop the server, and end the answers that it sends."""
        self._server.shutdown()
        self._server.server_close()
        self._server.connections.end_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _ServedFiles:
    """The files below a directory that may be read: indexes, and what they name."""

    def __init__(self, root: LocalPath, rules: NamingRules) -> None:
        self._root = root
        self._rules = rules
        self._names: OrderedDict[tuple[object, ...], frozenset[str]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, path: str) -> int | None:
        """Return a descriptor of the file at a path below the directory; None if it is not served.

        Symbolic links are not followed.
        """
        folder, _, name = path.rpartition("/")
        rules = self._rules
        is_index = name == rules.index_name
        if not is_index and not rules.is_data_file(name):
            return None
        try:
            with LocalDirectory(self._root) as root:
                prefix = f"{folder}/" if folder else ""
                if not is_index and name not in self._names_in(
                    root.fd, f"{prefix}{rules.index_name}"
                ):
                    return None
                fd = open_beneath(root.fd, f"{prefix}{name}")
                try:
                    regular_file_size(fd, name)
                except BaseException:
                    os.close(fd)
                    raise
                return fd
        except (OSError, ValueError, CordwoodError):
            return None

    def listing(self, path: str) -> bytes | None:
        """Return the listing that is at a path below the directory; None if there is none."""
        folder, _, name = path.rpartition("/")
        if name != LISTING:
            return None
        try:
            with LocalDirectory(self._root) as root:
                return listing_of(root.fd, folder, self._rules.index_name)
        except FileNotFoundError:
            return b"{}"  # a run that begins later
        except (OSError, ValueError):
            return None

    def _names_in(self, root: int, index_path: str) -> frozenset[str]:
        """Return the names of the files of an index, which is parsed again once it has changed."""
        fd = open_beneath(root, index_path)
        try:
            status = os.fstat(fd)
            key = (
                index_path,
                status.st_ino,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )
            with self._lock:
                names = self._names.get(key)
            if names is None:
                data = read_limited(fd, index_path, limit_bytes=self._rules.max_index_bytes)
                names = self._rules.kept_files(data)
        finally:
            os.close(fd)
        with self._lock:
            self._names[key] = names
            self._names.move_to_end(key)
            while len(self._names) > _INDEXES:
                self._names.popitem(last=False)
        return names


class _Server(BoundedServer):
    request_queue_size = 128

    def __init__(
        self, files: _ServedFiles, token: str, host: str, port: int, limits: ServerLimits
    ) -> None:
        self.files = files
        self.authorization = f"Bearer {token}".encode()
        self.limits = limits
        self.answers = threading.BoundedSemaphore(limits.answers)
        super().__init__(host, port, _PeerRequestHandler, most=limits.connections)


class _PeerRequestHandler(LimitedRequestHandler):
    """The handler of one connection, which carries requests one after another."""

    @property
    def _server(self) -> _Server:
        return cast(_Server, self.server)

    @property
    def request_limits(self) -> RequestLimits:
        return RequestLimits(_MAX_REQUEST_BYTES, self._server.limits.request_seconds)

    def handle(self) -> None:
        """Answer requests until one is refused, or none comes."""
        limits, reader = self._server.limits, self.request_reader
        self.close_connection = False
        try:
            while not self.close_connection:
                self.handle_one_request()
                reader.begin_request(limits.idle_seconds)
        except (OSError, RequestTooLargeError):
            pass

    def do_GET(self) -> None:
        """Answer with a range of a file, or with a listing, or refuse."""
        self._answer(self._send_range)

    def do_HEAD(self) -> None:
        """Answer with the size of a file, or refuse."""
        self._answer(lambda fd: self._send_head(HTTPStatus.OK, os.fstat(fd).st_size))

    def _answer(self, send: Callable[[int], None]) -> None:
        server = self._server
        self.connection.settimeout(server.limits.stall_seconds)
        shown = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(shown, server.authorization):
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        server.connections.mark_as_owner(self.connection)
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        if not server.answers.acquire(timeout=server.limits.stall_seconds):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            path = _path_of(self.path)
            listing = server.files.listing(path)
            if listing is not None:
                self._send_head(HTTPStatus.OK, len(listing))
                self.wfile.write(b"" if self.command == "HEAD" else listing)
                return
            fd = server.files.open(path)
            if fd is None:
                self._send_head(HTTPStatus.NOT_FOUND, 0)
                return
            try:
                send(fd)
            finally:
                os.close(fd)
        finally:
            server.answers.release()

    def _send_range(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        header = self.headers.get("Range")
        if header is None:
            self._send_head(HTTPStatus.OK, size)
            self._send_file(fd, 0, size)
            return
        match = _RANGE.fullmatch(header)
        start = int(match[1]) if match else size
        stop = min(int(match[2]) + 1, size) if match and match[2] else size
        if not start < stop:
            self._send_head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, f"bytes */{size}")
            return
        content_range = f"bytes {start}-{stop - 1}/{size}"
        self._send_head(HTTPStatus.PARTIAL_CONTENT, stop - start, content_range)
        self._send_file(fd, start, stop - start)

    def _send_file(self, fd: int, start: int, count: int) -> None:
        with FileIO(fd, closefd=False) as file:
            sent = self.connection.sendfile(cast(Any, file), start, count) if count else 0
        if sent < count:  # it was cut meanwhile: the client must not wait for the others
            self.close_connection = True

    def _send_head(self, status: HTTPStatus, length: int, content_range: str = "") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(length))
        if content_range:
            self.send_header("Content-Range", content_range)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self._send_head(status, 0)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what BaseHTTPRequestHandler does not understand, without repeating it."""
        del message, explain
        self._refuse(HTTPStatus(code))


def _path_of(target: str) -> str:
    """Return the path in the target of a request; "" for one that is no path of plain names."""
    path = unquote_to_bytes(target.encode("latin-1", "replace")).decode("utf-8", "replace")
    names = path.removeprefix("/").split("/")
    if not path.startswith("/") or any(name.startswith(".") or not name for name in names):
        return ""
    return path[1:]
