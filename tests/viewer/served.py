"""A viewer that is served on a free port for the block of a test, and requests to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.viewer.page import page
from cordwood.viewer.resources import Resources
from cordwood.viewer.server import ViewerServer
from cordwood.viewer.sources import OpenArguments, open_sources

__all__ = ["Answer", "Viewer", "serving"]


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def result(self) -> Any:
        last = self.lines[-1]
        assert "result" in last, last
        return last["result"]

    @property
    def error(self) -> Mapping[str, str]:
        error: Mapping[str, str] = self.lines[-1]["error"]
        return error


class Viewer:
    """Requests to a server; token and Host header are right unless a test says otherwise."""

    def __init__(self, server: ViewerServer) -> None:
        self.server = server
        self.port = server.server_port
        self.token = server.token

    def request(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **(headers or {})}.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return Answer(response.status, response.msg, response.read())
        finally:
            connection.close()

    def page(self) -> Answer:
        return self.request(f"/{self.token}/")

    def resource(self, name: str) -> Answer:
        return self.request(f"/{self.token}/resource/{name}")


@contextmanager
def serving(path: Path | str, other: Path | str | None = None) -> Iterator[Viewer]:
    """Serve a checkpoint, two, or a run."""
    sources = open_sources(str(path), None if other is None else str(other), OpenArguments())
    with ViewerServer(page(), Resources(sources)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Viewer(server)
        finally:
            server.shutdown()
            thread.join()
    sources.close()
