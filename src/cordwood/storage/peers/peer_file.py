"""Files of peers, and the connections by which they are read."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from cordwood.io.open_files import Closable, require_range
from cordwood.storage.peers.peer_connection import (
    PeerBusyError,
    PeerConnection,
    StaleConnectionError,
)
from cordwood.storage.peers.peer_step import PeerStep
from cordwood.threads.stop_check import check_stop

_MAX_IDLE = 16
_BUSY_POLL_SECONDS = 0.2


class PeerConnections:
    """The idle connections to peers, which later reads use again. Threads may share it."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, PeerConnection]] = []
        self._lock = threading.Lock()

    def take(self, step: PeerStep) -> PeerConnection | None:
        """Return an idle connection, which is the caller's now; None if there is none."""
        with self._lock:
            for number in reversed(range(len(self._idle))):
                if self._idle[number][0] == step.address:
                    return self._idle.pop(number)[1]
        return None

    def put(self, step: PeerStep, connection: PeerConnection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            self._idle.append((step.address, connection))
            oldest = self._idle.pop(0)[1] if len(self._idle) > _MAX_IDLE else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Close the idle connections; later reads open new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


class PeerFile(Closable):
    """A file of a step at a peer.

    Reading it raises as `PeerConnection.read_into`. Nothing is checked against digests here.

    Args:
        step: the step.
        file_name: its name in the step.
        size_bytes: its size, as the index has it.
        connections: idle connections.
    """

    name: str
    size_bytes: int
    latency_bound = True

    def __init__(
        self, step: PeerStep, file_name: str, size_bytes: int, connections: PeerConnections
    ) -> None:
        self.name = f"{step}/{file_name}"
        self.size_bytes = size_bytes
        self._step = step
        self._file_name = file_name
        self._connections = connections

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.read_into(offset, [memoryview(data)])
        return bytes(data)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        require_range(self, offset, sum(map(len, views)))
        if not any(map(len, views)):
            return
        busy_until = time.monotonic() + self._step.limits.busy_seconds
        while True:
            try:
                self._request(offset, views)
            except StaleConnectionError:
                continue  # there are at most _MAX_IDLE of them
            except PeerBusyError:
                if time.monotonic() > busy_until:
                    raise
                check_stop()
                time.sleep(_BUSY_POLL_SECONDS)
            else:
                return

    def map(self) -> NoReturn:
        raise io.UnsupportedOperation(
            f"{self.name}: a file of a peer cannot be mapped; load it without mmap=True"
        )

    def close(self) -> None:
        self._connections.close()

    def _request(self, offset: int, views: Sequence[memoryview]) -> None:
        connection = self._connections.take(self._step) or PeerConnection(self._step)
        try:
            connection.read_into(self._file_name, offset, views, size_bytes=self.size_bytes)
        except BaseException:
            connection.close()
            raise
        self._connections.put(self._step, connection)
