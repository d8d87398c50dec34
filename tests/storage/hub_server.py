"""A hub of models on loopback: the answers that huggingface_hub asks for, of files in memory."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class Model:
    """A repository: its files by their paths, at each commit."""

    commits: dict[str, Mapping[str, bytes]]
    revisions: dict[str, str]  # commits, by the names of branches and tags
    private_to: str = ""  # the token of an account that sees it
    is_gated: bool = False


@dataclass
class Hub:
    """The models, and what has been asked for.

    Attributes:
        endpoint: the value of HF_ENDPOINT.
        models: by their ids.
        requests: (method, path, Range header) of each request for a file.
        listings: the ids of models whose files were listed, once for each request.
        has_ranges: False for a server that answers each request with the whole file.
        status: of all answers, in place of the usual one.
        after_listing: what happens to the hub after each listing.
        delay_seconds: the time before a file is sent.
    """

    endpoint: str = ""
    models: dict[str, Model] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    has_ranges: bool = True
    status: int = 0
    after_listing: Callable[[], object] | None = None
    delay_seconds: float = 0

    def publish(self, model: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Add a commit with these files, and let a revision be it; return its hash."""
        names = json.dumps(sorted(files)).encode()
        commit = hashlib.sha1(names + b"".join(files.values()), usedforsecurity=False).hexdigest()
        repository = self.models.setdefault(model, Model({}, {}))
        repository.commits[commit] = dict(files)
        repository.revisions[revision] = commit
        return commit

    def publish_folder(self, model: str, folder: Path) -> str:
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return self.publish(model, files)

    def fetched(self) -> set[str]:
        """Return the files that were fetched whole since the last `forget`."""
        return {path for method, path, part in self.requests if method == "GET" and not part}

    def begun(self) -> set[str]:
        """Return the files of which a beginning was requested."""
        return {path for method, path, part in self.requests if method == "GET" and part}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.hub.status:
            self._send(self.hub.status, {})
            return
        names = [unquote(name) for name in urlsplit(self.path).path.strip("/").split("/")]
        is_api = names[:2] == ["api", "models"]
        if is_api:
            names = names[2:]
        model = self.hub.models.get("/".join(names[:2]))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if model is None or (model.private_to and not model.is_gated and token != model.private_to):
            self._send(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
            return
        if model.is_gated and token != model.private_to and not is_api:
            self._send(403 if token else 401, {"X-Error-Code": "GatedRepo"})
            return
        revision = names[3] if len(names) > 3 else "main"
        commit = model.revisions.get(revision, revision)
        files = model.commits.get(commit)
        if files is None:
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
        elif is_api:
            self.hub.listings.append("/".join(names[:2]))
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            text = json.dumps({"id": "/".join(names[:2]), "sha": commit, "siblings": siblings})
            self._send(200, {"Content-Type": "application/json"}, text.encode())
            if self.hub.after_listing is not None:
                self.hub.after_listing()
        else:
            self._send_file(commit, files, "/".join(names[4:]))

    def _send_file(self, commit: str, files: Mapping[str, bytes], path: str) -> None:
        part = self.headers.get("Range", "")
        self.hub.requests.append((self.command, path, part))
        data = files.get(path)
        if data is None:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        if self.command == "GET":
            time.sleep(self.hub.delay_seconds)
        digest = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not part or not self.hub.has_ranges:
            self._send(200, headers, data)
            return
        first, _, last = part.removeprefix("bytes=").partition("-")
        body = data[int(first) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(body) - 1}/{len(data)}"
        self._send(206, headers, body)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):  # a client that wanted a beginning
                self.close_connection = True


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve an empty hub for the block."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def hub_for_tests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub with an empty cache, for huggingface_hub of this process and of its children."""
    from huggingface_hub import close_session, constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr(constants, "HF_HOME", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    with serve_hub() as hub:
        template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        try:
            yield hub
        finally:
            close_session()
