"""The base of request handlers whose requests are limited in size and in time."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from typing import Any, NamedTuple, cast

from cordwood.serving.request_reader import RequestReader


class RequestLimits(NamedTuple):
    """The limits of the request line and the headers of one request."""

    most_bytes: int
    seconds: float  # for all of it to arrive


class LimitedRequestHandler(BaseHTTPRequestHandler):
    """The handler of one connection, which reads its requests by a `RequestReader`."""

    protocol_version = "HTTP/1.1"
    server_version = "cordwood"
    sys_version = ""

    @property
    def request_limits(self) -> RequestLimits:
        """The limits of each request."""
        raise NotImplementedError

    def setup(self) -> None:
        """Limit the requests."""
        super().setup()
        file = cast(BufferedReader, self.rfile)
        most_bytes, seconds = self.request_limits
        self.request_reader = RequestReader(
            file, self.connection, most_bytes=most_bytes, seconds=seconds
        )
        self.rfile = cast(Any, self.request_reader)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address of a request may have the token."""
