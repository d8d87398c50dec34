"""Followers of a directory that `cordwood serve` serves."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import cordwood as cw
from cordwood.errors import FormatError, MismatchError, UnsupportedFormatError
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.storage.locations import LocalPath
from cordwood.storage.peers.peer_server import PeerServer
from cordwood.testing import assert_trees_equal
from tests.publishing.published import tree_of

TOKEN = "token-of-the-readers"


def with_token(url: str, token: str = TOKEN) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    return cw.storage_options(url, client_options={"default_headers": headers})


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a directory that does not exist yet."""
    rules = storage_of(DEFAULT).RULES
    with PeerServer(LocalPath(str(tmp_path / "run")), rules, TOKEN) as server:
        yield f"http://{server.address}"


@pytest.mark.parametrize("folder", ["", "/weights"])
def test_versions_are_followed_while_they_are_published(
    tmp_path: Path, url: str, folder: str
) -> None:
    publisher = cw.WeightPublisher(f"{tmp_path}/run{folder}", full_every=3, keep=2)
    with with_token(url):
        follower, lazy = (cw.WeightFollower(f"{url}{folder}") for _ in range(2))
        with pytest.raises(FileNotFoundError, match="no version is published yet"):
            follower.update()
        for version in range(1, 6):
            publisher.publish(version, tree_of(version)).wait()
            assert follower.wait_for(version, timeout_seconds=60) == version
            assert_trees_equal(follower.update(), tree_of(version))
        assert_trees_equal(lazy.update(), follower.update())
        assert_trees_equal(cw.load(f"{url}{folder}/5"), tree_of(5))


def test_the_token_and_a_server_that_lists_are_needed(tmp_path: Path, url: str) -> None:
    cw.WeightPublisher(tmp_path / "run").publish(1, tree_of(1)).wait()
    with with_token(url, "wrong"), pytest.raises(PermissionError, match="Bearer TOKEN"):
        cw.WeightFollower(url).update()
    with pytest.raises(UnsupportedFormatError, match="can only be read"):
        cw.WeightPublisher(url)


def test_served_steps_of_a_run_are_no_versions(tmp_path: Path, url: str) -> None:
    cw.save(tmp_path / "run" / "3", tree_of(3))
    with with_token(url):
        with pytest.raises(MismatchError, match="holds steps of a run") as caught:
            cw.WeightFollower(url).update()
        remedy = str(caught.value).partition("a run. ")[2].partition(" reads")[0]
        assert_trees_equal(eval(remedy, {"cordwood": cw}), tree_of(3))
        with pytest.raises(FileNotFoundError, match="there is no checkpoint at this address"):
            cw.load(f"{url}/999")


ANSWERS = {
    b"": FormatError,
    b"[1]": FormatError,
    b'{"1": 1}': FormatError,
    b'{"1": "a", "1": "b"}': FormatError,
    b"\xff": FormatError,
    b'{"../1": "a", "01": "a", "1/2": "a", ".1": "a", "": "a"}': FileNotFoundError,
    b'{"1": "a"}': FileNotFoundError,  # a version that is not there
    None: UnsupportedFormatError,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_listing_is_not_trusted(answer: bytes | None) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_listing = answer is not None and self.path == "/cordwood-steps.json"
            self.send_response(200 if is_listing else 404)
            body = answer if is_listing and answer is not None else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with pytest.raises(ANSWERS[answer]):
                cw.WeightFollower(f"http://127.0.0.1:{server.server_port}").update()
        finally:
            server.shutdown()
            thread.join()
