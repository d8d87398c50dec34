"""The lines of a request, limited in size and in time."""

from __future__ import annotations

import socket
import time
from io import BufferedReader


class RequestTooLargeError(Exception):
    """The request line and the headers are too long."""


class RequestReader:
    """The lines of requests, each limited in size and in time.

    Args:
        file: the connection as a file.
        connection: the connection.
        most_bytes: of the request line and the headers.
        seconds: for the whole request to arrive.
    """

    def __init__(
        self,
        file: BufferedReader,
        connection: socket.socket,
        *,
        most_bytes: int,
        seconds: float,
    ) -> None:
        self._file = file
        self._connection = connection
        self._most_bytes = most_bytes
        self._seconds = seconds
        self.begin_request(seconds)

    def begin_request(self, idle_seconds: float) -> None:
        """Let the next request begin, which must do so in that time."""
        self._bytes = self._most_bytes
        self._end = time.monotonic() + idle_seconds
        self._has_begun = False

    def readline(self, limit: int = -1) -> bytes:
        """Return the next line. Raises RequestTooLargeError, TimeoutError."""
        del limit  # the limit here is for all lines together, and is lower
        line = b""
        while not line.endswith(b"\n"):
            self._connection.settimeout(max(0.001, self._end - time.monotonic()))
            arrived = len(self._file.peek(1))  # waits once: the time is checked after each packet
            if not self._has_begun:
                self._has_begun = True
                self._end = time.monotonic() + self._seconds
            part = self._file.readline(min(arrived, self._bytes))
            if not part:
                break
            line += part
            self._bytes -= len(part)
            if not self._bytes:
                raise RequestTooLargeError
        return line

    def close(self) -> None:
        """Close the file."""
        self._file.close()
