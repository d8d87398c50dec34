"""The open connections of a server, limited in number."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Connections:
    """The open connections, oldest first; at most `most` of them.

    Everybody who reaches the port can connect, so those that have not shown the token make room for
    new ones. Threads may use it at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._has_token: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()

    def add(self, connection: socket.socket) -> bool:
        """Add a connection; if they are too many, end the oldest that has not shown the token.

        Return False, and add nothing, if all have shown it.
        """
        oldest = None
        with self._lock:
            if len(self._has_token) >= self._most:
                without = (each for each, has_token in self._has_token.items() if not has_token)
                oldest = next(without, None)
                if oldest is None:
                    return False
                del self._has_token[oldest]
            self._has_token[connection] = False
        if oldest is not None:
            with suppress(OSError):  # its thread closes it, if it has not yet
                oldest.shutdown(socket.SHUT_RDWR)
        return True

    def mark_as_owner(self, connection: socket.socket) -> None:
        """Note that a connection has shown the token: it stays until its answer is sent."""
        with self._lock:
            if connection in self._has_token:
                self._has_token[connection] = True

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._has_token.pop(connection, None)

    def end_all(self) -> None:
        """End all connections; their threads close them."""
        with self._lock:
            connections = [*self._has_token]
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __len__(self) -> int:
        return len(self._has_token)
