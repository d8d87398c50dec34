"""Peers that readers must withstand: each costs a bounded time, and the next holder is read."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from cordwood.errors import StorageError
from cordwood.storage.locations import Holder, LocalPath
from cordwood.storage.peers.peer_step import PeerLimits
from cordwood.testing import assert_trees_equal
from tests.storage.peers.held_steps import (
    ENTRY,
    TOKEN,
    SavedStep,
    held,
    load,
    peer,
    save_step,
    serve,
    tree_of,
)

IMPATIENT = PeerLimits(
    connect_seconds=0.3, stall_seconds=0.3, bytes_per_second=1 << 30, busy_seconds=0.3
)
MOST_SECONDS = 20.0  # of a load beside one hostile peer; it takes less than a second
MOST_BYTES = 64 << 20  # which sockets may take in before a connection is closed


class Request(NamedTuple):
    """A request for a range of a file, and the right answer to it."""

    connection: socket.socket
    start: int
    stop: int
    data: bytes  # of the whole file

    @property
    def part(self) -> bytes:
        return self.data[self.start : self.stop]

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.sendall(part)

    def send_for_ever(self, part: bytes, pause: float = 0.0) -> None:
        """Send until the connection is closed. Fail if it takes more than it may."""
        sent, event = 0, threading.Event()
        while sent < MOST_BYTES:
            self.connection.sendall(part)
            sent += len(part)
            event.wait(pause)
        ENDLESS.append(sent)

    def wait(self) -> None:
        """Wait until the connection is closed."""
        while self.connection.recv(1 << 16):
            pass


ENDLESS: list[int] = []  # bytes of connections that were not closed
Answer = Callable[[Request], None]


def head(request: Request, status: str = "206 Partial Content", *more: str, **fields: str) -> bytes:
    """Return the right head of an answer, with other fields by name."""
    size = len(request.data)
    headers = {
        "Content-Range": f"bytes {request.start}-{request.stop - 1}/{size}",
        "Content-Length": str(request.stop - request.start),
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if value]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, *more, "", ""]).encode()


def flipped_bits(request: Request) -> None:
    part = bytearray(request.part)
    part[len(part) // 2] ^= 1
    request.send(head(request), bytes(part))
    request.wait()


def stops_in_the_middle(request: Request) -> None:
    request.send(head(request), request.part[:-100])
    request.connection.shutdown(socket.SHUT_RDWR)


def another_range(request: Request) -> None:
    shifted = f"bytes {request.start + 1}-{request.stop}/{len(request.data)}"
    request.send(head(request, Content_Range=shifted), request.part)
    request.wait()


def another_size(request: Request) -> None:
    size = len(request.data) + 1
    content_range = f"bytes {request.start}-{request.stop - 1}/{size}"
    request.send(head(request, Content_Range=content_range), request.part)
    request.wait()


def another_length(request: Request) -> None:
    request.send(head(request, Content_Length=str(1 << 60)), request.part)
    request.send_for_ever(b"x" * (1 << 20))


def no_length(request: Request) -> None:
    request.send(head(request, Content_Length=""), request.part)
    request.send_for_ever(b"x" * (1 << 20))


def chunked(request: Request) -> None:
    request.send(head(request, Transfer_Encoding="chunked"))
    request.send_for_ever(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")


def compressed(request: Request) -> None:
    request.send(head(request, Content_Encoding="gzip"), b"\x1f\x8b" * 1000)
    request.wait()


def endless_body_after_the_range(request: Request) -> None:
    request.send(head(request), b"y" * len(request.part))
    request.send_for_ever(b"x" * (1 << 20))


def the_whole_file(request: Request) -> None:
    request.send(head(request, "200 OK", Content_Range=""), request.data)
    request.wait()


def endless_headers(request: Request) -> None:
    request.send(b"HTTP/1.1 206 Partial Content\r\n")
    request.send_for_ever(b"X-Header: value\r\n" * 1000)


def one_endless_line(request: Request) -> None:
    request.send_for_ever(b"HTTP/1.1 206 " + b"x" * (1 << 20))


def endless_continuations(request: Request) -> None:
    request.send_for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def redirects(request: Request) -> None:
    location = "Location: http://127.0.0.1:1/secret"
    request.send(head(request, "302 Found", location), request.part)
    request.wait()


def another_protocol(request: Request) -> None:
    request.send(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    request.wait()


def old_protocol(request: Request) -> None:
    request.send(request.part)  # HTTP/0.9
    request.connection.shutdown(socket.SHUT_RDWR)


def headers_twice(request: Request) -> None:
    request.send(head(request, "206 Partial Content", "Content-Length: 1"), request.part)
    request.wait()


def numbers_of_other_scripts(request: Request) -> None:
    content_range = f"bytes +{request.start}-{request.stop - 1}/{len(request.data)}"
    request.send(head(request, Content_Range=content_range), request.part)
    request.wait()


def closes_at_once(request: Request) -> None:
    request.connection.close()


def refuses_the_token(request: Request) -> None:
    request.send(head(request, "403 Forbidden", Content_Range=""))
    request.wait()


def has_no_such_file(request: Request) -> None:
    request.send(head(request, "404 Not Found", Content_Range="", Content_Length="0"))
    request.wait()


def fails(request: Request) -> None:
    request.send(head(request, "500 Internal Server Error", Content_Range=""))
    request.wait()


def never_answers(request: Request) -> None:
    request.wait()


def drips_headers(request: Request) -> None:
    request.send(b"HTTP/1.1 206 Partial Content\r\nX: ")
    request.send_for_ever(b"x", pause=0.02)


def drips_the_body(request: Request) -> None:
    request.send(head(request))
    request.send_for_ever(b"x", pause=0.02)


def is_always_busy(request: Request) -> None:
    request.send(head(request, "503 Service Unavailable", Content_Range=""))
    request.wait()


WRONG = [
    *(flipped_bits, stops_in_the_middle, another_range, another_size, another_length, no_length),
    *(chunked, compressed, endless_body_after_the_range, the_whole_file, endless_headers),
    *(one_endless_line, endless_continuations, redirects, another_protocol, old_protocol),
    *(headers_twice, numbers_of_other_scripts, closes_at_once, refuses_the_token),
    *(has_no_such_file, fails),
]
SLOW = [never_answers, drips_headers, drips_the_body, is_always_busy]


@contextmanager
def hostile_peer(path: Path, answer: Answer) -> Iterator[str]:
    """Yield the address of a server that answers each request so.

    Args:
        path: a file, whatever is asked for; or a directory of files.
        answer: called with each request.
    """

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while True:
                received = b""
                while b"\r\n\r\n" not in received:
                    part = connection.recv(1 << 16)
                    if not part:
                        return
                    received += part
                match = re.search(rb"Range: bytes=(\d+)-(\d+)", received)
                assert match is not None
                file = path / received.split()[1].decode()[1:] if path.is_dir() else path
                data = file.read_bytes()
                answer(Request(connection, int(match[1]), int(match[2]) + 1, data))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.settimeout(MOST_SECONDS)
                thread = threading.Thread(target=handle, args=(connection,), daemon=True)
                threads.append(thread)
                thread.start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(MOST_SECONDS)
            assert not thread.is_alive()  # the reader has closed its connections


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> SavedStep:
    return save_step(tmp_path_factory.mktemp("whole"), items=1)


def check_failover(step: SavedStep, tmp_path: Path, place: Holder, text: str) -> list[Exception]:
    """Load from a peer that fails, and then from the next place; return what was reported."""
    root = step.copy_to(tmp_path / "root", [0])
    problems: list[tuple[str, Exception]] = []
    location = held(step, {0: [place, root]}, lambda *problem: problems.append(problem))
    start = time.monotonic()
    assert_trees_equal(load(location, 0), tree_of(0))
    assert time.monotonic() - start < MOST_SECONDS
    assert [name for name, _ in problems] == [str(place)]
    assert text in problems[0][0]
    assert TOKEN not in "".join(f"{name} {error!r} {error}" for name, error in problems)
    return [error for _, error in problems]


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: answer.__name__)
def test_a_wrong_answer_is_not_believed(step: SavedStep, tmp_path: Path, answer: Answer) -> None:
    with hostile_peer(step.folder / step.files[0], answer) as address:
        check_failover(step, tmp_path, peer(address, "process 7"), "process 7")
    assert not ENDLESS


@pytest.mark.parametrize("answer", SLOW, ids=lambda answer: answer.__name__)
def test_a_slow_answer_is_not_waited_for(step: SavedStep, tmp_path: Path, answer: Answer) -> None:
    with hostile_peer(step.folder / step.files[0], answer) as address:
        place = peer(address, "process 7", limits=IMPATIENT)
        check_failover(step, tmp_path, place, "process 7")


def answers_headers_then(answer: Answer) -> Answer:
    """Return answers that are right for the header of the file, and hostile after it."""

    def later(request: Request) -> None:
        if request.start == 0:
            request.send(head(request), request.part)
        else:
            answer(request)

    return later


@pytest.mark.parametrize("answer", [*WRONG, *SLOW], ids=lambda answer: answer.__name__)
def test_a_peer_that_becomes_hostile_after_the_header(
    step: SavedStep, tmp_path: Path, answer: Answer
) -> None:
    with hostile_peer(step.folder / step.files[0], answers_headers_then(answer)) as address:
        limits = IMPATIENT if answer in SLOW else PeerLimits()
        check_failover(step, tmp_path, peer(address, limits=limits), address)
    assert not ENDLESS


def test_a_connection_that_is_never_accepted(step: SavedStep, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = server.getsockname()
        clients = [socket.socket() for _ in range(4)]
        for client in clients:  # more than the queue takes
            client.setblocking(False)
            client.connect_ex(address)
        place = peer(f"127.0.0.1:{address[1]}", limits=IMPATIENT)
        (error,) = check_failover(step, tmp_path, place, "process 1")
        assert "no connection within 0.3 s" in str(error)
        for client in clients:
            client.close()


def test_a_refused_token_says_so_and_shows_neither(step: SavedStep, tmp_path: Path) -> None:
    step.copy_to(tmp_path / "other", [0])
    with serve(tmp_path / "other") as server:
        place = peer(server.address, token="another-token")
        (error,) = check_failover(step, tmp_path, place, "process 1")
    assert "takes another token" in str(error)
    assert "another-token" not in repr(place) + str(place) + str(error)


def test_peers_alone_are_enough_while_one_of_them_is_honest(
    step: SavedStep, tmp_path: Path
) -> None:
    step.copy_to(tmp_path / "other", [0])
    with (
        hostile_peer(step.folder / step.files[0], flipped_bits) as first,
        hostile_peer(step.folder / step.files[0], stops_in_the_middle) as second,
        serve(tmp_path / "other") as server,
    ):
        places = [peer(first, "one"), peer(second, "two"), peer(server.address, "three")]
        problems: list[str] = []
        location = held(step, {0: places}, lambda place, _: problems.append(place))
        assert_trees_equal(load(location, 0), tree_of(0))
    assert problems == [str(places[0]), str(places[1])]


def test_threads_that_meet_the_same_failure_report_it_once(tmp_path: Path) -> None:
    step = save_step(tmp_path / "whole", items=1, elements=10_000_000)  # 40 MB, several units
    step.copy_to(tmp_path / "other", [0])
    file = step.folder / step.files[0]
    with (
        hostile_peer(file, answers_headers_then(flipped_bits)) as first,
        hostile_peer(file, answers_headers_then(stops_in_the_middle)) as second,
        serve(tmp_path / "other") as server,
    ):
        places = [peer(first, "one"), peer(second, "two"), peer(server.address, "three")]
        problems: list[str] = []
        location = held(step, {0: places}, lambda place, _: problems.append(place))
        assert_trees_equal(load(location, 0), tree_of(0, 10_000_000))
    assert problems == [str(places[0]), str(places[1])]


def test_the_error_of_hostile_peers_alone_names_each(
    step: SavedStep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = step.folder / step.files[0]
    with hostile_peer(file, flipped_bits) as first, hostile_peer(file, redirects) as second:
        places = [peer(first, "one"), peer(second, "two")]
        with pytest.raises(StorageError) as caught:
            load(held(step, {0: places}), 0)
    assert f"one (http://{first}/{ENTRY})" in str(caught.value)
    assert "it answered 302" in str(caught.value)
    assert TOKEN not in str(caught.value) + caplog.text


def test_a_file_that_is_deleted_while_it_is_read_comes_from_the_next_place(
    step: SavedStep, tmp_path: Path
) -> None:
    step.copy_to(tmp_path / "other", [0])
    root = step.copy_to(tmp_path / "root", [0])
    path = tmp_path / "other" / ENTRY / step.files[0]
    with serve(tmp_path / "other") as server:

        def relayed(request: Request) -> None:
            """Answer as the server does, and let its file be deleted once the header is read."""
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(
                    f"GET /{ENTRY}/{step.files[0]} HTTP/1.1\r\nConnection: close\r\n"
                    f"Authorization: Bearer {TOKEN}\r\n"
                    f"Range: bytes={request.start}-{request.stop - 1}\r\n\r\n".encode()
                )
                while part := connection.recv(1 << 16):
                    request.send(part)
            path.unlink(missing_ok=True)

        with hostile_peer(step.folder / step.files[0], relayed) as address:
            problems: list[Exception] = []
            places: list[Holder] = [peer(address), LocalPath(str(root))]
            location = held(step, {0: places}, lambda _, error: problems.append(error))
            assert_trees_equal(load(location, 0), tree_of(0))
    (error,) = problems
    assert "it has no such file" in str(error)
