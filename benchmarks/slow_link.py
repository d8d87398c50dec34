"""A slow link for benchmarks: an HTTP proxy that adds latency and limits the rate.

`python -m benchmarks.slow_link http://127.0.0.1:PORT` prints its URL; a line on its standard input
makes it print the number of requests so far by method.

Each request is passed on after the delay; requests on different connections overlap. All
connections and both directions share one rate. The client's signature stays valid, because its
Host header is passed on as it is.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

BLOCK_SIZE = 1 << 20
_EXPECT = re.compile(rb"expect: *100-continue\r\n", re.IGNORECASE)


class Rate:
    """A rate in bytes per second that threads share."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until bytes have passed."""
        with self._lock:
            start = max(self._free_at, time.perf_counter() - 0.01)  # a burst of 10 ms
            self._free_at = start + count / self._rate
            wait = self._free_at - time.perf_counter()
        if wait > 0:
            time.sleep(wait)


class Link:
    """A connection's two sockets; each HTTP message is passed on by its Content-Length."""

    def __init__(self, client: socket.socket, server: socket.socket, rate: Rate) -> None:
        self._rate = rate
        self._buffer = bytearray(BLOCK_SIZE)
        self.client, self.server = client, server
        self._rests = {client: b"", server: b""}  # bytes read after the last message

    def read_head(self, source: socket.socket) -> bytes:
        """Return the start line and headers of the next message; empty where there is none."""
        head = self._rests[source]
        while b"\r\n\r\n" not in head:
            block = source.recv(1 << 16)
            if not block:
                return b""
            head += block
        end = head.index(b"\r\n\r\n") + 4
        self._rests[source] = head[end:]
        return head[:end]

    def pass_body(self, source: socket.socket, target: socket.socket, size: int) -> None:
        """Pass a body on."""
        rest = self._rests[source]
        block, self._rests[source] = rest[:size], rest[size:]
        target.sendall(block)
        self._rate.take(len(block))
        size -= len(block)
        view = memoryview(self._buffer)
        while size:
            count = source.recv_into(view, min(size, BLOCK_SIZE))
            if not count:
                raise ConnectionResetError
            self._rate.take(count)
            target.sendall(view[:count])
            size -= count


def body_size(head: bytes) -> int:
    """Return the Content-Length of a message; 0 where it has none."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
        if name.lower() == b"transfer-encoding":
            raise ValueError("the proxy passes on bodies of a stated length only")
    return 0


def _serve(
    client: socket.socket,
    address: tuple[str, int],
    delay: float,
    rate: Rate,
    counts: Counter[str],
) -> None:
    with client, socket.create_connection(address) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server, rate)
        while head := link.read_head(client):
            method = head.partition(b" ")[0].decode()
            counts[method] += 1
            time.sleep(delay)
            if _EXPECT.search(head):  # the body follows this answer; the server need not give it
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                head = _EXPECT.sub(b"", head)
            server.sendall(head)
            link.pass_body(client, server, body_size(head))
            answer = link.read_head(server)
            client.sendall(answer)
            status = int(answer.split(b" ", 2)[1])
            if method != "HEAD" and status not in (204, 304):
                link.pass_body(server, client, body_size(answer))


def _accept(listener: socket.socket, *arguments: object) -> None:
    def run(client: socket.socket) -> None:
        try:
            _serve(client, *arguments)  # type: ignore[arg-type]
        except (OSError, IndexError):
            client.close()  # one of the two ends has gone

    while True:
        client, _ = listener.accept()
        threading.Thread(target=run, args=(client,), daemon=True).start()


def main() -> None:
    """Run the proxy until its standard input ends."""
    parser = argparse.ArgumentParser(description="An HTTP proxy with latency and a rate limit.")
    parser.add_argument("endpoint")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each request")
    parser.add_argument("--rate", type=float, default=1e9, help="bytes per second, both ways")
    options = parser.parse_args()
    url = urlsplit(options.endpoint)
    counts: Counter[str] = Counter()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        arguments = (listener, (url.hostname, url.port), options.delay, Rate(options.rate), counts)
        threading.Thread(target=_accept, args=arguments, daemon=True).start()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        for _ in sys.stdin:
            print(dict(counts), f"cpu_s={time.process_time():.2f}", flush=True)


if __name__ == "__main__":
    main()
