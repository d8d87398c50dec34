"""Waits for versions and steps while the server is not up yet, fails, or stops."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import cordwood as cw
from cordwood.errors import StorageError
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.manager import step_watcher
from cordwood.storage.locations import LocalPath
from cordwood.storage.object_stores import request_deadline, request_retries
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.peers.peer_server import PeerServer
from tests.publishing.published import tree_of
from tests.storage.web_stores import Answer, web_store

# Of a wait of a fraction of a second. The retries of a store alone would take more than a minute.
_MOST_SECONDS = 25.0

RESET = "reset"
SILENCE = "silence"
FAILURES = [500, 503, 429, RESET, SILENCE]


@pytest.fixture(autouse=True)
def forget_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process know no server: ports are used again."""
    monkeypatch.setattr(BUCKETS, "_experience", {})
    monkeypatch.setattr(BUCKETS, "_opened", {})
    monkeypatch.setattr(request_deadline, "_LEAST_SECONDS", 0.1)


class FailingServer(ThreadingHTTPServer):
    """A server that lists version 1 once it has failed some times, and fails again on demand."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failure: int | str = 503
        self.failures = 0  # those that are still to come
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    server: FailingServer

    def do_GET(self) -> None:
        server = self.server
        fails, server.failures = server.failures > 0, server.failures - 1
        if fails and server.failure == SILENCE:
            server.closing.wait()
        if fails and not isinstance(server.failure, int):
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = b"" if fails else b'{"1": "a"}'
        self.send_response(int(server.failure) if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


def peer_server(folder: Path, port: int = 0) -> PeerServer:
    return PeerServer(LocalPath(str(folder)), storage_of(DEFAULT).RULES, "token", port=port)


def with_token(url: str) -> Any:
    headers = {"authorization": "Bearer token"}
    return cw.storage_options(url, client_options={"default_headers": headers})


def test_a_server_that_stops_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    publisher.publish(12, tree_of(1)).wait()
    with peer_server(tmp_path) as server:
        url = f"http://{server.address}"
        with with_token(url):
            follower = cw.WeightFollower(url)
            assert follower.wait_for(12, timeout_seconds=60) == 12
            follower.update()
    began = time.monotonic()
    with with_token(url), pytest.raises(TimeoutError, match=r"version 13 .*Connection refused"):
        follower.wait_for(13, timeout_seconds=0.3)
    assert time.monotonic() - began < _MOST_SECONDS
    publisher.publish(13, tree_of(2)).wait()
    with peer_server(tmp_path, server.port), with_token(url):
        assert follower.wait_for(13, timeout_seconds=60) == 13


def test_a_follower_may_begin_before_the_server(tmp_path: Path) -> None:
    with peer_server(tmp_path) as server:
        port = server.port
    url = f"http://127.0.0.1:{port}"
    with with_token(url):
        follower = cw.WeightFollower(url)
        with pytest.raises(TimeoutError, match="Connection refused"):
            follower.wait_for(1, timeout_seconds=0)
        cw.WeightPublisher(tmp_path).publish(1, tree_of(1)).wait()
        with peer_server(tmp_path, port):
            assert follower.wait_for(1, timeout_seconds=60) == 1


@pytest.mark.parametrize("failure", [500, 503, 429, RESET])
def test_a_server_that_begins_to_answer_ends_the_wait(
    server: FailingServer, failure: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_retries, "_delay_seconds", lambda attempt: 0.001)
    server.failure, server.failures = failure, 11
    follower = cw.WeightFollower(server.url)
    assert follower.wait_for(1, timeout_seconds=60, poll_seconds=0.001) == 1
    assert server.failures < 0


@pytest.mark.parametrize("failure", FAILURES)
def test_a_server_that_goes_on_failing_ends_the_wait_in_time(
    server: FailingServer, failure: int | str
) -> None:
    follower = cw.WeightFollower(server.url)
    assert follower.wait_for(1, timeout_seconds=60) == 1
    server.failure, server.failures = failure, 1000
    began = time.monotonic()
    expected = str(failure) if isinstance(failure, int) else "while reading it"
    with pytest.raises(TimeoutError, match=f"version 2 did not come .*{expected}"):
        follower.wait_for(2, timeout_seconds=0.3, poll_seconds=0.01)
    assert time.monotonic() - began < _MOST_SECONDS


@pytest.mark.parametrize("status", [401, 403, 404, 400, 501])
def test_an_error_that_stays_is_raised_at_once(server: FailingServer, status: int) -> None:
    server.failure, server.failures = status, 1000
    with pytest.raises((OSError, ValueError)) as caught:
        cw.WeightFollower(server.url).wait_for(1, timeout_seconds=600)
    assert not isinstance(caught.value, TimeoutError)
    assert server.failures == 999


@pytest.mark.parametrize("failure", [503, SILENCE])
@pytest.mark.parametrize("kind", ["reader", "follower"])
def test_a_store_that_fails_is_waited_for_no_longer_than_asked(
    server: FailingServer, failure: int | str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_watcher, "_PATIENCE_SECONDS", 0.2)
    server.failure, server.failures = failure, 1000
    options: dict[str, Any] = {
        "endpoint": server.url,
        "access_key_id": "name",
        "secret_access_key": "secret",
        "region": "us-east-1",
    }
    began = time.monotonic()
    with cw.storage_options("s3://deadlines", **options):
        if kind == "reader":
            reader = cw.StepReader("s3://deadlines/run")
            with pytest.raises(StorageError) as caught:
                reader.wait_for_new_step(timeout_seconds=0.3)
            assert caught.value.errno == errno.EIO
            with pytest.raises(StorageError):
                next(reader.new_steps(timeout_seconds=0))
        else:
            with pytest.raises(TimeoutError, match="version 1 did not come within"):
                cw.WeightFollower("s3://deadlines/run").wait_for(1, timeout_seconds=0.3)
    assert time.monotonic() - began < _MOST_SECONDS


def test_a_look_without_a_wait_outlives_a_failure_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with web_store("s3", monkeypatch) as store:
        reader = cw.StepReader(f"{store.url}/run")
        cw.save(f"{store.url}/run/3", {"w": 1})
        failures = iter([Answer(503)] * 3)
        store.hook = lambda _: next(failures, None)
        assert reader.wait_for_new_step(timeout_seconds=0) == 3
        assert next(failures, None) is None
