"""A server with a thread for each connection, and a limit of connections."""

from __future__ import annotations

import errno
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from cordwood.serving.connections import Connections


class BoundedServer(ThreadingHTTPServer):
    """A server of at most so many connections.

    Args:
        host: the address to listen at.
        port: the port; 0 for any free one.
        handler: handles a connection.
        most: the most connections at a time.

    Raises OSError if the port is in use.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, host: str, port: int, handler: type[BaseHTTPRequestHandler], *, most: int
    ) -> None:
        self.connections = Connections(most)
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Bind the socket, without looking up a host name as HTTPServer does."""
        try:
            TCPServer.server_bind(self)
        except OSError as e:
            remedy = "choose another port"
            if e.errno not in (errno.EADDRINUSE, errno.EACCES):
                remedy = "choose as host an address of this machine, or 0.0.0.0 for all of them"
            raise OSError(
                e.errno,
                f"{e.strerror}; {remedy}",
                ":".join(map(str, self.server_address)),
            ) from e
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread; close it at once if there are too many."""
        if not self.connections.add(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.remove(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection, and count it as ended."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: an error here means that the connection broke."""
