"""Clients that a server of steps must withstand: they get nothing, and stop nothing."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cordwood.storage.locations import LocalPath
from cordwood.storage.peers.peer_file import PeerConnections, PeerFile
from cordwood.storage.peers.peer_server import PeerServer, ServerLimits
from cordwood.storage.peers.served_steps import LISTING
from tests.storage.peers.held_steps import ENTRY, INDEX, RULES, TOKEN, peer, save_step

SECRET = b"what nobody may read"
SECONDS = 20.0  # after which a test fails
BEARER = f"Authorization: Bearer {TOKEN}"


class Served(NamedTuple):
    root: Path
    server: PeerServer
    name: str  # of a file that is served
    data: bytes

    def answer(self, *lines: str, end: str = "\r\n\r\n") -> bytes:
        """Return all bytes that a new connection gets for a request."""
        return self.answer_to("\r\n".join([*lines, "Connection: close"]).encode() + end.encode())

    def answer_to(self, request: bytes) -> bytes:
        with self.connect() as connection:
            with suppress(OSError):  # it may be refused before all is sent
                connection.sendall(request)
            return received(connection)

    def get(self, target: str) -> bytes:
        return self.answer(f"GET {target} HTTP/1.1", BEARER)

    def connect(self) -> socket.socket:
        host, _, port = self.server.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=SECONDS)

    def read_honestly(self) -> None:
        """Fail unless a peer with the token gets the file."""
        connections = PeerConnections()
        with PeerFile(peer(self.server.address), self.name, len(self.data), connections) as file:
            assert file.read(0, len(self.data)) == self.data


def received(connection: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            data += part
    return data


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def serve_step(root: Path, limits: ServerLimits | None = None) -> Served:
    step = save_step(root, items=1, elements=100_000)
    (root.parent / "secret").write_bytes(SECRET)
    server = PeerServer(LocalPath(str(root)), RULES, TOKEN, limits=limits)
    return Served(root, server, step.files[0], (step.folder / step.files[0]).read_bytes())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    steps = serve_step(tmp_path / "root")
    with steps.server:
        yield steps
        steps.read_honestly()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Bearer "],
        ["Authorization: Bearer wrong"],
        [f"Authorization: Bearer {TOKEN[:-1]}"],
        [f"Authorization: Bearer {TOKEN}x"],
        [f"Authorization: Basic {TOKEN}"],
        [f"Authorization: {TOKEN}"],
        [f"Authorization: Bearer {TOKEN}\xff"],
        [f"X-Authorization: Bearer {TOKEN}"],
        [f"Cookie: {TOKEN}"],
        ["Authorization: Bearer wrong", BEARER],
    ],
)
def test_without_the_token_nothing_can_be_read_or_learned(
    served: Served, headers: list[str]
) -> None:
    targets = [f"/{ENTRY}/{served.name}", f"/{ENTRY}/{INDEX}", "/nothing", "/../secret", "/"]
    targets += [f"/{LISTING}", f"/nothing/{LISTING}"]
    answers = {served.answer(f"GET {each} HTTP/1.1", *headers) for each in targets}
    (answer,) = answers  # the same, whatever there is
    assert status_of(answer) == 403
    assert answer.endswith(b"\r\n\r\n")  # no body
    assert TOKEN.encode() not in answer


def test_a_token_in_the_target_is_none(served: Served) -> None:
    for target in (f"/{TOKEN}/{ENTRY}/{INDEX}", f"/{ENTRY}/{INDEX}?token={TOKEN}"):
        assert status_of(served.answer(f"GET {target} HTTP/1.1")) == 403


TRAVERSALS = [
    "/../secret",
    "/%2e%2e/secret",
    "/%2E%2E%2Fsecret",
    "/..%2fsecret",
    "/%252e%252e/secret",
    "/..%c0%afsecret",
    "/%c0%ae%c0%ae/secret",
    "/..\\secret",
    "/..%5csecret",
    f"/{ENTRY}/../../secret",
    f"/{ENTRY}/..%2f..%2fsecret",
    f"/{ENTRY}/%2e%2e/%2e%2e/secret",
    "//secret",
    "/./secret",
    "/",
    "*",
    "%00",
    "/%00",
    f"/{ENTRY}",
    f"/{ENTRY}/",
    f"/{ENTRY}/{INDEX}%00",
    f"/{ENTRY}/{INDEX}/",
    f"/{ENTRY}//{INDEX}",
    f"/{ENTRY}/./{INDEX}",
    f"/{ENTRY}/../{ENTRY}/{INDEX}",
    f"/{ENTRY}/{INDEX}?x",
    f"/{ENTRY}/{INDEX}#x",
    "/" + "a/" * 2000 + INDEX,
    "/" + "a" * 300 + f"/{INDEX}",
    f"/%ff/{INDEX}",
    f"/../{LISTING}",
    f"/%2e%2e/{LISTING}",
    f"/./{LISTING}",
    f"/{LISTING}/",
    f"/{ENTRY}/{INDEX}/{LISTING}",
    f"/%ff%00/{LISTING}",
]


@pytest.mark.parametrize("target", [*TRAVERSALS, "{root}/../secret", "file://{root}/../secret"])
def test_no_spelling_of_a_path_leads_elsewhere(served: Served, target: str) -> None:
    answer = served.get(target.format(root=served.root))
    assert status_of(answer) in (400, 404)
    assert SECRET not in answer
    assert answer.endswith(b"\r\n\r\n")


def test_only_what_an_index_names_is_served(served: Served) -> None:
    step = served.root / ENTRY
    unnamed = served.name.replace("-0-0.", "-0-1.")
    others = ["notes.txt", unnamed, f".{served.name}.cordwood-0123456789abcdef.tmp"]
    for name in others:
        (step / name).write_bytes(SECRET)
    (served.root / INDEX).write_bytes(SECRET)  # no index
    (served.root / served.name).write_bytes(SECRET)
    targets = [*(f"/{ENTRY}/{name}" for name in others), f"/{served.name}", f"/200/{served.name}"]
    targets += [f"/{ENTRY}/model.safetensors.index.json"]
    for target in targets:
        assert status_of(served.get(target)) == 404, target
    assert status_of(served.get(f"/{ENTRY}/{INDEX}")) == 200


def test_symbolic_links_are_not_followed(served: Served, tmp_path: Path) -> None:
    step = served.root / ENTRY
    (served.root / "latest").symlink_to(ENTRY)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / INDEX).write_bytes((step / INDEX).read_bytes())
    (elsewhere / served.name).symlink_to(tmp_path / "secret")
    (served.root / "300").symlink_to(elsewhere)
    linked = served.root / "400"
    linked.mkdir()
    (linked / INDEX).symlink_to(step / INDEX)
    os.link(step / served.name, linked / served.name)
    copied = served.root / "500"
    copied.mkdir()
    (copied / INDEX).write_bytes((step / INDEX).read_bytes())
    (copied / served.name).symlink_to(tmp_path / "secret")
    for target in (
        *(f"/latest/{INDEX}", f"/latest/{served.name}", f"/300/{INDEX}", f"/300/{served.name}"),
        *(f"/400/{INDEX}", f"/400/{served.name}", f"/500/{served.name}"),
    ):
        answer = served.get(target)
        assert status_of(answer) == 404, target
        assert SECRET not in answer


def test_a_listing_names_what_is_served(served: Served, tmp_path: Path) -> None:
    for name in (
        "notes",
        ".hidden",
        "unfinished",
        "with link",
        "with folder",
        b"\xff".decode("utf-8", "surrogateescape"),
    ):
        (served.root / name).mkdir()
    for name in (".hidden", "\udcff"):
        os.link(served.root / ENTRY / INDEX, served.root / name / INDEX)
    (served.root / "with link" / INDEX).symlink_to(served.root / ENTRY / INDEX)
    (served.root / "with folder" / INDEX).mkdir()
    (served.root / "latest").symlink_to(ENTRY)
    (served.root / "file").write_bytes(SECRET)
    (served.root / LISTING).write_bytes(SECRET)
    first = listing(served.get(f"/{LISTING}"))
    assert [*first] == [ENTRY]
    os.utime(served.root / ENTRY / INDEX, (0, 0))
    assert listing(served.get(f"/{LISTING}")) != first
    assert status_of(served.get(f"/latest/{LISTING}")) == 404
    head = served.answer(f"HEAD /{LISTING} HTTP/1.1", BEARER)
    assert status_of(head) == 200
    assert head.endswith(b"\r\n\r\n")
    os.rename(served.root / ENTRY, tmp_path / "elsewhere")
    assert listing(served.get(f"/{LISTING}")) == listing(served.get(f"/later/{LISTING}")) == {}
    os.rename(tmp_path / "elsewhere", served.root / ENTRY)


def listing(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(head) == 200
    assert b"Content-Length: %d" % len(body) in head
    return json.loads(body)


def test_pipes_and_directories_under_the_name_of_a_file_are_not_served(served: Served) -> None:
    for entry in ("600", "700"):
        folder = served.root / entry
        folder.mkdir()
        (folder / INDEX).write_bytes((served.root / ENTRY / INDEX).read_bytes())
    os.mkfifo(served.root / "600" / served.name)
    (served.root / "700" / served.name).mkdir()
    assert status_of(served.get(f"/600/{served.name}")) == 404
    assert status_of(served.get(f"/700/{served.name}")) == 404


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"y" * 1_000_000,
        b"\r\n" * 1_000_000,
        b"\0\xff\x16\x03\x01" * 1000 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1.1\r\n\r\n",
        b"GET / HTTP/-1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n: \r\n \r\n\t\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"CONNECT elsewhere:80 HTTP/1.1\r\n\r\n",
        b"DELETE / HTTP/1.1\r\n\r\n",
        b"TRACE / HTTP/1.1\r\n\r\n",
    ],
    ids=range(16),
)
def test_malformed_and_endless_requests_are_refused(served: Served, request_bytes: bytes) -> None:
    answer = served.answer_to(request_bytes)
    assert status_of(answer) in (0, 400, 403, 414, 431, 501, 505)
    assert len(answer) < 1000
    assert SECRET not in answer


def test_methods_that_write_do_nothing_with_the_token_either(served: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        target = f"/{ENTRY}/{served.name}"
        assert status_of(served.answer(f"{method} {target} HTTP/1.1", BEARER)) == 501
    body = "GET /secret HTTP/1.1\r\n\r\n"
    length = f"Content-Length: {len(body)}"
    request = served.answer(f"GET /{ENTRY}/{INDEX} HTTP/1.1", BEARER, length, end=f"\r\n\r\n{body}")
    assert status_of(request) == 400


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("bytes=0-0", 206),
        ("bytes=5-", 206),
        ("bytes=0-99999999999999999", 206),
        ("bytes=-5", 416),
        ("bytes=5-4", 416),
        ("bytes=99999999999-", 416),
        ("bytes=99999999999999999999-", 416),
        ("bytes=0-1,3-4", 416),
        ("bytes=0-0x10", 416),
        ("bytes=٣-٤", 416),
        ("lines=0-1", 416),
        ("", 416),
    ],
)
def test_a_range_is_one_range_of_the_file(served: Served, header: str, status: int) -> None:
    line = f"Range: {header}"
    answer = served.answer(f"GET /{ENTRY}/{served.name} HTTP/1.1", BEARER, line)
    assert status_of(answer) == status
    _, _, body = answer.partition(b"\r\n\r\n")
    assert body == (b"" if status == 416 else body)
    assert body in served.data


def test_a_request_in_single_bytes_is_cut_off(tmp_path: Path) -> None:
    steps = serve_step(tmp_path / "root", ServerLimits(request_seconds=0.2))
    with steps.server, steps.connect() as connection:
        connection.settimeout(0.02)
        data, closed = f"GET /{ENTRY}/{INDEX} HTTP/1.1\r\n{BEARER}\r\nX: ".encode(), False
        for at in range(int(SECONDS / 0.02)):
            try:
                connection.sendall(data[at : at + 1] or b"y")
                closed = not connection.recv(1)
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed:
                break
        assert closed
        steps.read_honestly()


def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    steps = serve_step(tmp_path / "root", ServerLimits(request_seconds=0.1))
    with steps.server, steps.connect() as silent:
        assert received(silent) == b""
    steps = serve_step(tmp_path / "other", ServerLimits(idle_seconds=0.1))
    with steps.server, steps.connect() as idle:
        idle.sendall(f"HEAD /{ENTRY}/{INDEX} HTTP/1.1\r\n{BEARER}\r\n\r\n".encode())
        assert status_of(received(idle)) == 200  # the answer, and then the end


def test_connections_without_the_token_make_room(tmp_path: Path) -> None:
    steps = serve_step(tmp_path / "root", ServerLimits(connections=4))
    with steps.server, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(steps.connect())
        steps.read_honestly()
        for _ in range(20):
            stack.enter_context(steps.connect())
        steps.read_honestly()
        assert sum(each.name.startswith("Thread-") for each in threading.enumerate()) < 30


def test_a_client_that_takes_no_bytes_is_cut_off(tmp_path: Path) -> None:
    steps = serve_step(tmp_path / "root", ServerLimits(answers=1, stall_seconds=0.3))
    big = steps.root / "800"
    step = save_step(steps.root.parent / "big", items=1, elements=8_000_000)
    os.rename(step.folder, big)  # 32 MB, more than sockets buffer
    with steps.server, steps.connect() as lazy:
        request = f"GET /800/{step.files[0]} HTTP/1.1\r\n{BEARER}\r\n\r\n"
        lazy.sendall(request.encode())
        lazy.recv(1)
        steps.read_honestly()  # it waits until then


def test_a_flood_of_requests_without_the_token_ends_with_the_first(served: Served) -> None:
    request = f"GET /{ENTRY}/{INDEX} HTTP/1.1\r\n\r\n".encode()
    answer = served.answer_to(request * 10_000)
    assert answer.count(b"HTTP/1.1") <= 1


def test_many_requests_come_by_one_connection(served: Served) -> None:
    with served.connect() as connection:
        for _ in range(3):
            request = f"GET /{ENTRY}/{INDEX} HTTP/1.1\r\n{BEARER}\r\nRange: bytes=0-0\r\n\r\n"
            connection.sendall(request.encode())
            answer = b""
            while b"\r\n\r\n{" not in answer:
                answer += connection.recv(1 << 16)
            assert status_of(answer) == 206


def test_a_damaged_index_names_nothing(served: Served) -> None:
    folder = served.root / "900"
    folder.mkdir()
    os.link(served.root / ENTRY / served.name, folder / served.name)
    for index in (b"", b"{", b"[]", b"\xff" * 100, b'{"": {"files": [["../secret", 1]]}}'):
        (folder / INDEX).write_bytes(index)
        assert status_of(served.get(f"/900/{served.name}")) == 404
        assert status_of(served.get("/secret")) == 404


def test_a_changed_index_counts_from_the_next_request_on(tmp_path: Path) -> None:
    steps = serve_step(tmp_path / "root")
    step, target = steps.root / ENTRY, f"/{ENTRY}/{steps.name}"
    with steps.server:
        assert status_of(steps.get(target)) == 200
        (step / "new").write_bytes(b"{}")
        os.rename(step / "new", step / INDEX)
        assert status_of(steps.get(target)) == 404
        (step / INDEX).unlink()
        assert status_of(steps.get(f"/{ENTRY}/{INDEX}")) == 404
        os.rename(steps.root, tmp_path / "old")
        assert status_of(steps.get(f"/{ENTRY}/{INDEX}")) == 404
        save_step(steps.root, items=1, elements=10)
        assert status_of(steps.get(f"/{ENTRY}/{INDEX}")) == 200


def test_closing_ends_connections_and_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    steps = serve_step(tmp_path / "root")
    with steps.server, steps.connect() as connection:
        connection.sendall(f"HEAD /{ENTRY}/{INDEX} HTTP/1.1\r\n{BEARER}\r\n\r\n".encode())
        assert connection.recv(1)
        steps.server.close()
        received(connection)
        for thread in set(threading.enumerate()) - before:
            thread.join(SECONDS)
        assert set(threading.enumerate()) <= before


def test_a_server_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token"):
        PeerServer(LocalPath(str(tmp_path)), RULES, "")
