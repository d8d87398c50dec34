"""Checkpoints below an http:// URL: they are read, and cannot be saved to."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from cordwood.errors import CorruptionError, TruncatedError, UnsupportedFormatError
from cordwood.storage.object_stores import request_retries
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.testing import assert_trees_equal
from tests.storage.stores import StoredObjects

LARGE = np.arange(3_000_000, dtype=np.int32)
TREE = {"a": LARGE, "b": [np.float32(2.5), "text"]}


class Pages(ThreadingHTTPServer):
    """A server of the files below a folder, as the usual ones: no listings, byte ranges."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[tuple[str, str]] = []
        self.status = 0  # of all answers, instead of the usual one
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Pages
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path))
        path = self.server.folder / self.path.lstrip("/")
        if self.server.status:
            return self._send(self.server.status, b"", {})
        if not path.is_file():
            return self._send(404, b"", {})
        data = path.read_bytes()
        headers = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": f'"{len(data)}"'}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted is None:
            return self._send(200, data, headers)
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        if start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return self._send(206, data[start:stop], headers)

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    monkeypatch.setattr(request_retries, "_delay_seconds", lambda attempt: 0.001)
    monkeypatch.setattr(BUCKETS, "_experience", {})
    monkeypatch.setattr(BUCKETS, "_opened", {})
    with Pages(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def url(pages: Pages, tmp_path: Path) -> str:
    cordwood.save(tmp_path / "run" / "7", TREE, metadata={"by": "me"})
    return f"{pages.url}/run/7"


def test_a_checkpoint_is_loaded(pages: Pages, url: str) -> None:
    assert_trees_equal(cordwood.load(url, like=TREE), TREE)
    assert_trees_equal(cordwood.load(f"{url}/", to="numpy"), TREE)
    with cordwood.open(url) as checkpoint:
        assert checkpoint.metadata == {"by": "me"}
        np.testing.assert_array_equal(checkpoint["a"][1000:1007], LARGE[1000:1007])
    assert {method for method, _ in pages.requests} <= {"GET", "HEAD"}


def test_a_published_delta_is_loaded_though_versions_are_not_listed(
    pages: Pages, tmp_path: Path
) -> None:
    publisher = cordwood.WeightPublisher(tmp_path / "weights")
    for version in range(4):
        publisher.publish(version, {"w": np.full(9000, float(version))}).wait()
    tree = cordwood.load(f"{pages.url}/weights/3")
    np.testing.assert_array_equal(tree["w"], np.full(9000, 3.0))


def test_a_part_of_a_checkpoint_is_loaded(pages: Pages, url: str) -> None:
    assert len(jax.tree.leaves(cordwood.load(url, select="b", to="numpy"))) == 2


@pytest.mark.parametrize("call", [cordwood.verify, cordwood.detect])
def test_a_checkpoint_is_looked_at(url: str, call: Callable[[str], Any]) -> None:
    """A server of pages cannot list them."""
    call(url)


def test_damaged_pages_are_refused(pages: Pages, url: str) -> None:
    (data,) = [path for path in (pages.folder / "run/7").iterdir() if path.name.startswith("data")]
    whole = data.read_bytes()
    for damaged, kind in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), CorruptionError),
        (whole[:-1], TruncatedError),
        (whole + b"0", CorruptionError),
    ):
        data.write_bytes(damaged)
        with pytest.raises(kind, match=data.name):
            cordwood.load(url)
    data.unlink()
    with pytest.raises(CorruptionError, match=f"{data.name} is missing"):
        cordwood.load(url)


def test_a_missing_page_is_an_error(pages: Pages) -> None:
    for call in (cordwood.load, cordwood.open, cordwood.detect, cordwood.verify):
        with pytest.raises(FileNotFoundError, match=f"{pages.url}/none"):
            call(f"{pages.url}/none")


def test_a_run_cannot_be_listed(pages: Pages, url: str) -> None:
    run = url.rpartition("/")[0]
    for kind in (cordwood.StepReader, cordwood.CheckpointManager):
        with pytest.raises(UnsupportedFormatError, match="a web server lists no steps") as caught:
            kind(run)
        assert str(caught.value).endswith(f"by its whole URL: cordwood.load('{run}/100')")
    for call in (cordwood.load, cordwood.open, cordwood.detect, cordwood.verify):
        match = f"at this address; a web server lists no steps: .* name one .*{run}/100"
        with pytest.raises(FileNotFoundError, match=match):
            call(run)
        for root in (pages.url, f"{pages.url}/", f"{run}/latest", f"{run}/best:loss"):
            example = (run if "run" in root else pages.url) + "/100"
            match = f"and a web server lists no steps: name one of them, as in {example}"
            with pytest.raises(FileNotFoundError, match=match):
                call(root)


def test_a_step_that_is_not_there_was_named(pages: Pages, url: str) -> None:
    missing = f"{url.rpartition('/')[0]}/999"
    for call in (cordwood.load, cordwood.open, cordwood.detect, cordwood.verify):
        with pytest.raises(FileNotFoundError) as caught:
            call(missing)
        assert caught.value.strerror == "there is no checkpoint at this address"
        assert caught.value.filename == missing
    assert {method for method, _ in pages.requests} <= {"GET", "HEAD"}


def test_a_server_that_refuses(pages: Pages, url: str) -> None:
    pages.status = 403
    with pytest.raises(PermissionError, match=url):
        cordwood.load(url)


def test_a_server_that_is_busy_is_asked_again(
    pages: Pages, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.status = 503
    slept: list[float] = []

    def recover(attempt: int) -> float:
        slept.append(attempt)
        if attempt == 3:
            pages.status = 0
        return 0.001

    monkeypatch.setattr(request_retries, "_delay_seconds", recover)
    assert_trees_equal(cordwood.load(url, like=TREE), TREE)
    assert slept == [1, 2, 3]
    assert "503" in caplog.text


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_web_server_is_never_written_to(pages: Pages, scheme: str) -> None:
    url = pages.url.replace("http", scheme)
    calls: list[Callable[[], Any]] = [
        lambda: cordwood.save(f"{url}/new", {"w": 1}),
        lambda: cordwood.save_async(f"{url}/new", {"w": 1}).wait(),
    ]
    for call in calls:
        with pytest.raises(UnsupportedFormatError, match=f"{scheme}:// can only be read"):
            call()
    assert {method for method, _ in pages.requests} <= {"GET", "HEAD"}


def test_a_checkpoint_is_copied_from_there(pages: Pages, url: str, tmp_path: Path) -> None:
    cordwood.copy(url, tmp_path / "copy")
    assert_trees_equal(cordwood.load(tmp_path / "copy", like=TREE), TREE)
    cordwood.verify(tmp_path / "copy")


def test_a_checkpoint_that_was_copied_there(pages: Pages, tmp_path: Path) -> None:
    """The objects of a store, copied as they are, are read there."""
    cordwood.save("memory://tests-of-http/7", TREE)
    for name, data in StoredObjects("memory://tests-of-http/7").items():
        (tmp_path / "copied").mkdir(exist_ok=True)
        (tmp_path / "copied" / name).write_bytes(data)
    assert_trees_equal(cordwood.load(f"{pages.url}/copied", like=TREE), TREE)
    shutil.rmtree(tmp_path / "copied")
    with pytest.raises(FileNotFoundError):
        cordwood.load(f"{pages.url}/copied")
