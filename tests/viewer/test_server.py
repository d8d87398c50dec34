"""The server: what it answers, what it refuses, and how a computation is canceled."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import cordwood
from cordwood.loading.leaf_reader import LeafReader
from cordwood.viewer import server as server_module
from cordwood.viewer.page import page
from cordwood.viewer.resources import Resources
from cordwood.viewer.server import ViewerServer, serve
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.threads import in_threads, until
from tests.viewer.served import Viewer, serving


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("viewer") / "c"
    tree = {
        "params": {"w": np.arange(12, dtype=np.float32).reshape(3, 4)},
        "big": np.ones((64, 1 << 18), np.float32),
        "step": 7,
    }
    cordwood.save(path, tree)
    return path


@pytest.fixture(scope="module")
def viewer(path: Path) -> Iterator[Viewer]:
    with serving(path) as viewer:
        yield viewer


def test_the_page_has_its_scripts_and_the_policy_names_their_hashes(viewer: Viewer) -> None:
    status, headers, body = viewer.page()
    assert status == 200
    text = body.decode()
    policy = headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for rule in (
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ):
        assert rule in policy
    assert "unsafe" not in policy
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=(?!\"data:)", text)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_resources_describe_the_checkpoint(viewer: Viewer, path: Path) -> None:
    start = viewer.resource("start").result
    assert (start["kind"], start["sources"], start["exported"]) == ("checkpoint", ["a"], False)
    checkpoint = viewer.resource("checkpoint/a").result
    assert checkpoint["path"] == str(path)
    assert checkpoint["leaves"]["path"] == ["params/w", "big", "step"]
    assert checkpoint["leaves"]["value"] == [None, None, "7"]
    statistics = viewer.resource("statistics/a/0/all").result
    assert (statistics["complete"], statistics["max"], statistics["zero"]) == (True, 11, 1)


def test_localhost_is_a_name_of_the_server(viewer: Viewer) -> None:
    headers = {"Host": f"localhost:{viewer.port}"}
    assert viewer.request(f"/{viewer.token}/", headers=headers).status == 200


def test_it_listens_on_the_loopback_address_only(viewer: Viewer) -> None:
    assert viewer.server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("token", ["", "x", "{token}x", "{shorter}", "{swapped}", "%2e%2e"])
def test_a_wrong_token_is_refused(viewer: Viewer, token: str) -> None:
    right = viewer.token
    text = token.format(token=right, shorter=right[:-1], swapped=right.swapcase())
    for rest in ("/", "/resource/start", ""):
        status, _, body = viewer.request(f"/{text}{rest}")
        assert status == 403
        assert right.encode() not in body


def test_the_token_is_long_and_new_each_time(viewer: Viewer, path: Path) -> None:
    with serving(path) as other:
        assert other.token != viewer.token
        assert len(other.token) >= 40


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", "127.0.0.1:{port}.x"],
)
def test_another_host_is_refused(viewer: Viewer, host: str) -> None:
    """A name that a hostile site points at this address, as in DNS rebinding."""
    headers = {"Host": host.format(port=viewer.port)}
    for rest in ("", "resource/start"):
        assert viewer.request(f"/{viewer.token}/{rest}", headers=headers).status == 403


def test_a_request_without_a_host_is_refused(viewer: Viewer) -> None:
    assert exchange(viewer, f"GET /{viewer.token}/ HTTP/1.0\r\n\r\n".encode()).startswith(
        b"HTTP/1.1 403"
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_request_of_another_site_is_refused(viewer: Viewer, headers: dict[str, str]) -> None:
    for rest in ("", "resource/start"):
        assert viewer.request(f"/{viewer.token}/{rest}", headers=headers).status == 403


def test_a_link_of_another_site_leads_to_the_page_only(viewer: Viewer) -> None:
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert viewer.request(f"/{viewer.token}/", headers=headers).status == 200
    assert viewer.request(f"/{viewer.token}/resource/start", headers=headers).status == 403


@pytest.mark.parametrize(
    "method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "GRAB"]
)
def test_other_methods_are_refused(viewer: Viewer, method: str) -> None:
    for name in ("/", f"/{viewer.token}/", f"/{viewer.token}/resource/start"):
        answer = viewer.request(name, method)
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET"
        assert b"<" not in answer.body


@pytest.mark.parametrize(
    "rest",
    [
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "static/text.js",
        "/etc/passwd",
        "resource",
        "page.html",
        "?x",
        "\\..\\..",
    ],
)
def test_a_path_reaches_no_file(viewer: Viewer, rest: str) -> None:
    status, _, body = viewer.request(f"/{viewer.token}/{rest}")
    assert status == 404
    assert body == b"404 Not Found\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing",
        "checkpoint",
        "checkpoint/b",
        "checkpoint/..%2F..%2Fetc",
        "checkpoint/a/../b",
        "leaf/a/-1",
        "leaf/a/1e3",
        "leaf/a/99",
        "leaf/a/" + "9" * 100,
        "leaf/a/%C2%B2",
        "statistics/a/0/most",
        "verify/%00",
    ],
)
def test_a_resource_that_does_not_exist_is_an_error(viewer: Viewer, name: str) -> None:
    answer = viewer.resource(name)
    assert answer.status == 200
    assert answer.error["type"] == "KeyError"
    assert "there is no" in answer.error["message"]


def exchange(viewer: Viewer, data: bytes) -> bytes:
    """Send bytes, and return all that is answered until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=60) as connection:
        received = b""
        try:
            connection.sendall(data)
            while part := connection.recv(1 << 16):
                received += part
        except ConnectionError:
            pass  # it was closed before all was read
        return received


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 20_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000,
    ],
)
def test_a_request_that_is_too_large_is_refused(
    viewer: Viewer, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MAX_REQUEST_BYTES", 10_000)
    assert exchange(viewer, head[:10_000]).startswith(b"HTTP/1.1 431")


def test_an_idle_connection_is_closed(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_REQUEST_SECONDS", 0.1)
    assert exchange(viewer, b"") == b""
    assert exchange(viewer, b"GET / HTTP/1.1\r\nHost: x\r\n") == b""


def test_a_request_in_single_bytes_has_no_more_time(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_REQUEST_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=60) as connection:

        def send_slowly() -> None:
            for _ in range(1000):
                connection.sendall(b"x")
                time.sleep(0.01)

        with pytest.raises(ConnectionError):
            send_slowly()


@pytest.mark.parametrize(
    ("junk", "status"),
    [
        (b"\0" * 100 + b"\r\n", b"400"),
        (b"GET\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /\r\n\r\n", b"403"),
        (b"GET /\xff\xc3\xa9/ HTTP/1.1\r\nHost: \xff\r\n\r\n", b"403"),
    ],
)
def test_a_malformed_request_is_refused(viewer: Viewer, junk: bytes, status: bytes) -> None:
    answer = exchange(viewer, junk)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"default-src 'none'" in answer
    assert viewer.page().status == 200


def test_idle_connections_do_not_keep_the_owner_out(viewer: Viewer) -> None:
    """They may be of any local user: the oldest goes when a new one comes."""
    idle = [socket.create_connection(("127.0.0.1", viewer.port), timeout=60) for _ in range(40)]
    try:
        for _ in range(40):
            assert viewer.page().status == 200
        assert idle[0].recv(1) == b""
        assert viewer.resource("start").result["kind"] == "checkpoint"
    finally:
        for connection in idle:
            connection.close()


def test_a_connection_that_has_shown_the_token_is_never_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all have shown it, a new one is closed."""
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", 3)
    entered = threading.Semaphore(0)
    go_on = threading.Event()
    read = LeafReader.read

    def blocked(*arguments: Any, **options: Any) -> Any:
        entered.release()
        assert go_on.wait(60)
        return read(*arguments, **options)

    with (
        mock.patch.object(LeafReader, "read", blocked),
        serving(path) as small,
        ThreadPoolExecutor(3) as threads,
    ):
        reads = [threads.submit(small.resource, f"statistics/a/{i}/all") for i in (0, 1)]
        try:
            for _ in reads:
                assert entered.acquire(timeout=60)
            idle = [socket.create_connection(("127.0.0.1", small.port)) for _ in range(9)]
            assert idle[0].recv(1) == b""
            reads.append(threads.submit(small.resource, "verify/a"))  # waits for the others
            until(lambda: sum(small.server.connections._has_token.values()) == 3)
            assert exchange(small, f"GET /{small.token}/ HTTP/1.1\r\n\r\n".encode()) == b""
        finally:
            go_on.set()
        for each in reads:
            assert "result" in each.result(60).lines[-1]
        for connection in idle:
            connection.close()
        until(lambda: len(small.server.connections) == 0)
        assert small.page().status == 200


def test_two_tabs_are_served_at_once(viewer: Viewer) -> None:
    together = threading.Barrier(8)

    def load(number: int) -> None:
        together.wait()
        assert viewer.page().status == 200
        assert viewer.resource("checkpoint/a").result["leaf_count"] == 3
        assert viewer.resource(f"statistics/a/{number % 2}/sample").result["min"] is not None

    in_threads(load, 8, together=together)


def test_a_full_read_reports_progress(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.io.progress._EVERY_SECONDS", 0)
    with serving(path) as viewer:
        *progress, last = viewer.resource("statistics/a/1/all").lines
    assert "result" in last
    done = [line["progress"]["done_bytes"] for line in progress]
    assert len(done) > 10
    assert done == sorted(done)
    assert done[-1] == progress[-1]["progress"]["total_bytes"] >= 64 << 20


def close_with_reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("close", [socket.socket.close, close_with_reset])
@pytest.mark.parametrize("name", ["statistics/a/1/all", "verify/a"])
def test_closing_the_connection_stops_the_reading(
    path: Path, name: str, close: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The computation waits in its third report until the page has gone, and reads no more."""
    monkeypatch.setattr("cordwood.io.progress._EVERY_SECONDS", 0)
    gone = threading.Event()
    reports = []
    report = server_module._RequestHandler._report

    def waiting_report(self: Any, progress: Any) -> None:
        reports.append(progress.done_bytes)
        if len(reports) == 3:
            assert gone.wait(60)
        report(self, progress)

    with (
        mock.patch.object(server_module._RequestHandler, "_report", waiting_report),
        serving(path) as viewer,
    ):
        connection = socket.create_connection(("127.0.0.1", viewer.port), timeout=60)
        connection.sendall(
            f"GET /{viewer.token}/resource/{name} HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{viewer.port}\r\n\r\n".encode()
        )
        until(lambda: len(reports) == 3)
        close(connection)
        gone.set()
        until(lambda: len(viewer.server.connections) == 0)
        assert viewer.page().status == 200
    assert len(reports) < 8, "a few threads may be in the middle of a read"
    assert reports[-1] < 32 << 20


def test_few_full_reads_run_at_the_same_time(path: Path) -> None:
    """A third one waits, and says so."""
    entered: list[int] = []
    waiting = threading.Event()
    go_on = threading.Event()
    read = LeafReader.read
    report = server_module._RequestHandler._report

    def noted(self: Any, progress: Any) -> None:
        report(self, progress)
        if progress.doing == "waiting for another read":
            waiting.set()

    def blocked(*arguments: Any, **options: Any) -> Any:
        entered.append(1)
        assert go_on.wait(60)
        return read(*arguments, **options)

    with (
        mock.patch.object(LeafReader, "read", blocked),
        mock.patch.object(server_module._RequestHandler, "_report", noted),
        serving(path) as viewer,
    ):
        results: dict[int, Any] = {}

        def ask(number: int) -> None:
            results[number] = viewer.resource(f"statistics/a/{number}/all").lines

        def ask_last() -> None:
            results[2] = viewer.resource("verify/a").lines

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(entered) == 2)
        third = threading.Thread(target=ask_last)
        third.start()
        assert waiting.wait(60)
        assert viewer.resource("leaf/a/0").result["path"] == "params/w", "indexes do not wait"
        go_on.set()
        for thread in [*threads, third]:
            thread.join()
    assert all("result" in lines[-1] for lines in results.values())
    assert results[2][0]["progress"]["doing"] == "waiting for another read"


def test_stopping_the_server_ends_a_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.io.progress._EVERY_SECONDS", 0)
    with serving(path) as viewer:
        viewer.server.stopping.set()
        answer = viewer.resource("statistics/a/1/all")
    assert answer.body == b""


def test_an_error_while_reading_is_sent_to_the_page(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"w": np.ones(1000)})
    (data,) = (tmp_path / "c").glob("*.safetensors")
    contents = bytearray(data.read_bytes())
    contents[-1] ^= 1
    data.write_bytes(contents)
    with serving(tmp_path / "c") as viewer:
        error = viewer.resource("statistics/a/0/all").error
        assert error["type"] == "CorruptionError"
        assert "w" in error["message"]
        result = viewer.resource("verify/a").result
    assert not result["ok"]
    assert "w" in "".join(result["problems"])


def test_values_without_statistics_are_an_error(tmp_path: Path) -> None:
    tree = {"name": "x", "day": np.array(["2026-01-01"], "datetime64[D]"), "step": 3}
    cordwood.save(tmp_path / "c", tree)
    with serving(tmp_path / "c") as viewer:
        for number in range(3):
            error = viewer.resource(f"statistics/a/{number}/sample").error
            assert error["type"] == "TypeError"
            assert "there are no statistics of" in error["message"]


def test_numbers_that_json_lacks_are_strings(tmp_path: Path) -> None:
    values = np.array([np.nan, np.inf, -np.inf], np.float32)
    cordwood.save(tmp_path / "c.safetensors", {"nan": values[:1], "inf": values[1:]})
    with serving(tmp_path / "c.safetensors") as viewer:
        *_, body = viewer.resource("statistics/a/0/all").body.splitlines()
        assert b'"values":["NaN"]' in body
        assert b'"first":["nan"]' in body
        json.loads(body, parse_constant=pytest.fail)
        assert b'"values":["Infinity","Infinity"]' in viewer.resource("statistics/a/1/all").body


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_command_ends_if_the_thread_of_the_server_dies(path: Path) -> None:
    def die(_: ViewerServer) -> None:
        raise SystemExit

    sources = open_sources(str(path), None, OpenArguments())
    dying = mock.patch.object(ViewerServer, "service_actions", die)
    with dying, ViewerServer(page(), Resources(sources)) as server:
        serve(server, browser=False)
    sources.close()
