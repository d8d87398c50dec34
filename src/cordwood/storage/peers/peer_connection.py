"""A connection to a peer: ranges of files by HTTP/1.1, received straight into buffers.

A peer may be broken or hostile. So the head of an answer has at most 8 KiB, it must announce
exactly the range that was requested, no more bytes than those are received, and each request has a
deadline.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import quote

from cordwood.errors import CorruptionError, StorageError, TruncatedError
from cordwood.storage.peers.peer_step import PeerStep

_MAX_HEAD_BYTES = 8 << 10
_RANGE = re.compile(rb"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3})(?: [^\r\n]*)?")
_UNREADABLE = (b"transfer-encoding", b"content-encoding")


class PeerBusyError(StorageError):
    """A peer has too many connections; it may answer later."""


class StaleConnectionError(StorageError):
    """A connection that was used before was closed before the answer began."""


class PeerConnection:
    """An open connection. Raises StorageError if the peer cannot be reached."""

    def __init__(self, step: PeerStep) -> None:
        self._step = step
        self._is_used = False
        host, _, port = step.address.rpartition(":")
        try:
            self._socket = socket.create_connection(
                (host.strip("[]"), int(port)), timeout=step.limits.connect_seconds
            )
        except TimeoutError as e:
            what = f"no connection within {step.limits.connect_seconds:g} s"
            raise StorageError(errno.ETIMEDOUT, what, str(step)) from e
        except OSError as e:
            raise StorageError(e.errno or errno.EIO, f"no connection: {e}", str(step)) from e
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read_into(
        self, name: str, offset: int, views: Sequence[memoryview], *, size_bytes: int
    ) -> None:
        """Fill byte views, one after another, with the bytes of a file from `offset` on.

        After an error the connection must be closed.

        Args:
            name: the file in the step.
            offset: the first byte.
            views: not empty.
            size_bytes: the size that the whole file must have.

        Raises:
            StorageError: the peer refuses, breaks off, or is slower than its limits allow.
            PeerBusyError: it has too many connections.
            StaleConnectionError: it has closed the connection after an earlier request.
            CorruptionError: it has no such file, or answers with something else.
            TruncatedError: the file is shorter.
        """
        step, limits = self._step, self._step.limits
        total = sum(map(len, views))
        deadline = time.monotonic() + limits.stall_seconds + total / limits.bytes_per_second
        request = (
            f"GET {quote(f'/{step.entry}/{name}')} HTTP/1.1\r\n"
            f"Host: {step.address}\r\n"
            f"Authorization: Bearer {step.token}\r\n"
            f"Range: bytes={offset}-{offset + total - 1}\r\n\r\n"
        )
        self._name = f"{step}/{name}"
        try:
            self._socket.settimeout(limits.stall_seconds)
            self._socket.sendall(request.encode("ascii"))
            head, body = self._receive_head(deadline)
            self._is_used = True
            self._require_range(head, offset, total, size_bytes)
            self._receive_body(body, views, deadline)
        except TimeoutError as e:
            self._fail(errno.ETIMEDOUT, self._slowness(), e)
        except StorageError:
            raise
        except OSError as e:
            self._fail(e.errno or errno.EIO, f"the connection broke: {e.strerror}", e)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive_head(self, deadline: float) -> tuple[bytes, bytes]:
        """Return the head of the answer, and the first bytes of the body."""
        received = b""
        while b"\r\n\r\n" not in received:
            if len(received) >= _MAX_HEAD_BYTES:
                self._fail(errno.EPROTO, f"its answer begins with no {_MAX_HEAD_BYTES} bytes")
            self._limit_wait(deadline)
            try:
                part = self._socket.recv(_MAX_HEAD_BYTES - len(received))
            except ConnectionError:
                part = b""
            if not part:
                if self._is_used and not received:
                    raise StaleConnectionError(errno.EPIPE, "it was closed", self._name)
                self._fail(errno.ECONNRESET, "it closed the connection before it answered")
            received += part
        head, _, body = received.partition(b"\r\n\r\n")
        return head, body

    def _require_range(self, head: bytes, offset: int, total: int, size_bytes: int) -> None:
        """Raise an error unless an answer announces the requested range."""
        first, *lines = head.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        status = match[1] if match else b""
        if status == b"503":
            raise PeerBusyError(errno.EBUSY, "it has too many connections", self._name)
        if status == b"404":
            raise CorruptionError(f"{self._name}: it has no such file")
        if status in (b"401", b"403"):
            self._fail(errno.EACCES, "it refuses: it takes another token")
        if status != b"206":
            shown = status.decode() or "something that is not HTTP/1.1"
            self._fail(errno.EPROTO, f"it answered {shown}, and no part of the file")
        fields = [line.partition(b":") for line in lines]
        headers = {name.lower(): value.strip() for name, _, value in fields}
        if len(headers) < len(fields) or any(name in headers for name in _UNREADABLE):
            self._fail(errno.EPROTO, "it answered with headers that were not expected")
        announced = _RANGE.fullmatch(headers.get(b"content-range", b""))
        if announced is None or headers.get(b"content-length") != b"%d" % total:
            self._fail(errno.EPROTO, "it answered with no range, or one of another length")
        start, last, size = map(int, announced.groups())
        if size != size_bytes:
            kind = TruncatedError if size < size_bytes else CorruptionError
            raise kind(f"{self._name}: expected {size_bytes} bytes, found {size}")
        if (start, last) != (offset, offset + total - 1):
            self._fail(errno.EPROTO, "it answered with another range")

    def _receive_body(self, body: bytes, views: Sequence[memoryview], deadline: float) -> None:
        if len(body) > sum(map(len, views)):
            self._fail(errno.EPROTO, "it sent more bytes than it announced")
        for view in views:
            at = min(len(body), len(view))
            view[:at] = body[:at]
            body = body[at:]
            while at < len(view):
                self._limit_wait(deadline)
                count = self._socket.recv_into(view[at:])
                if not count:
                    self._fail(errno.ECONNRESET, "it stopped in the middle of an answer")
                at += count

    def _limit_wait(self, deadline: float) -> None:
        """Let the next call wait until the deadline at most. Raises TimeoutError after it."""
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(min(self._step.limits.stall_seconds, remaining_seconds))

    def _slowness(self) -> str:
        limits = self._step.limits
        return (
            f"it is too slow: no byte for {limits.stall_seconds:g} s, or less than "
            f"{limits.bytes_per_second:.3g} bytes/s"
        )

    def _fail(self, code: int, what: str, cause: Exception | None = None) -> NoReturn:
        raise StorageError(code, what, self._name) from cause
