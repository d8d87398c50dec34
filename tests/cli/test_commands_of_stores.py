"""Every command with URLs: in the memory of this process, in an S3 server, and on a web server."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.cli.main import COMMANDS
from cordwood.testing import assert_trees_equal
from cordwood.viewer.server import ViewerServer
from tests.cli.conftest import Run
from tests.storage.stores import open_url
from tests.storage.web_stores import Answer, web_store

# The commands that the tests below call with URLs.
TESTED = {"ls", "info", "show", "cat", "diff", "verify", "convert", "steps", "view", "gc", "doctor"}
OWN_TESTS = {
    "apply",
    "average",
    "combine",
    "copy",
    "delta",
    "index",
    "merge-lora",
    "prune",
    "rm",
    "serve",
}  # commands whose tests with URLs are in modules of their own
A = np.arange(600.0).reshape(20, 30)


@pytest.fixture(params=["memory", "s3", "gs"])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a run of two steps."""
    if request.param == "memory":
        yield _saved(f"memory://{request.node.name}")
        return
    with web_store(request.param, monkeypatch) as web:
        yield _saved(f"{web.url}/run")


def _saved(root: str) -> str:
    with cordwood.CheckpointManager(root) as manager:
        for step in (1, 2):
            tree = {"a": A * step, "b": np.ones(4, np.float32), "step": step}
            manager.save(step, tree, metrics={"loss": 1 / step})
    return root


def test_every_command_is_tested_with_urls() -> None:
    assert set(COMMANDS) - OWN_TESTS == TESTED


@pytest.mark.parametrize("end", ["1", "1/", "latest"])
def test_ls_lists_a_step_in_a_store(run: Run, root: str, end: str) -> None:
    code, out, _ = run("ls", f"{root}/{end}")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["a", "b", "step"]


def test_info_describes_a_step_in_a_store(run: Run, root: str) -> None:
    document = json.loads(run("info", f"{root}/2", "--json").out)
    assert document["format"] == "packs"
    assert document["disk_bytes"] >= A.nbytes


def test_show_and_cat_read_a_leaf_in_a_store(run: Run, root: str) -> None:
    assert "max        599" in run("show", f"{root}/1", "a").out
    assert run("cat", f"{root}/latest", "a[0:1,0:3]").out == "[[0. 2. 4.]]\n"


def test_steps_lists_the_steps_in_a_store(run: Run, root: str) -> None:
    code, out, _ = run("steps", f"{root}/", "--json")
    assert code == 0
    steps = json.loads(out)["steps"]
    assert [(each["step"], each["metrics"]) for each in steps] == [
        (1, {"loss": 1}),
        (2, {"loss": 0.5}),
    ]
    for step in steps:
        info = json.loads(run("info", f"{root}/{step['name']}", "--json").out)
        assert step["disk_bytes"] == info["disk_bytes"] > A.nbytes


def test_verify_checks_and_resumes_in_a_store(run: Run, root: str, tmp_path: Path) -> None:
    assert "2 steps: 2 without damage" in run("verify", root).out
    record = tmp_path / "record"
    for _ in range(2):
        code, out, _ = run("verify", f"{root}/1", "--resume", record)
        assert code == 0
        assert "no damage" in out


def test_diff_compares_steps_in_a_store(run: Run, root: str) -> None:
    code, out, _ = run("diff", f"{root}/1", f"{root}/latest")
    assert code == 1
    assert "2 differences" in out
    assert run("diff", f"{root}/1", f"{root}/1").code == 0


def test_convert_reads_and_writes_a_store(run: Run, root: str, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    assert run("convert", f"{root}/2", file).code == 0
    assert run("convert", file, f"{root}/converted").code == 0
    np.testing.assert_array_equal(cordwood.load(f"{root}/converted")["a"], A * 2)
    assert "pass overwrite=True (--force)" in run("convert", file, f"{root}/converted").err
    assert run("convert", f"{root}/1", f"{root}/converted", "--force").code == 0
    np.testing.assert_array_equal(cordwood.load(f"{root}/converted")["a"], A)


def test_view_writes_an_export(run: Run, root: str, tmp_path: Path) -> None:
    for sources in ([f"{root}/1"], [f"{root}/1", f"{root}/2"], [root]):
        file = tmp_path / f"{len(sources)}.html"
        assert run("view", *sources, "--export", file, "--force").code == 0
        assert root in file.read_text()


def test_view_serves_a_run_in_a_store(run: Run, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []

    def serve(server: ViewerServer, *, browser: bool) -> None:
        assert not browser
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with urllib.request.urlopen(server.url, timeout=30) as answer:
                pages.append(answer.status)
        finally:
            server.shutdown()
            thread.join()

    monkeypatch.setattr("cordwood.viewer.server.serve", serve)
    assert run("view", root, "--no-browser").code == 0
    assert pages == [200]


def test_gc_of_a_clean_store_removes_nothing(run: Run, root: str) -> None:
    assert run("gc", f"{root}/1").out == "0 removed\n"
    assert run("gc", f"{root}/1", "--dry-run").code == 0
    assert run("verify", root).code == 0


def test_gc_tells_of_files_that_are_too_young(run: Run, root: str) -> None:
    for name in ("1/cordwood.json", "1/model.safetensors.index.json"):
        open_url(root).delete([name])
    out = run("gc", root).out
    assert re.fullmatch(
        r"0 removed\n1 file \(.* KiB\) without an index may be of a running save: "
        r"if no index refers to them by then, gc removes them from 20\d\d-\d\d-\d\d \d\d:\d\d on\n",
        out,
    )
    document = json.loads(run("gc", root, "--json").out)
    assert document["removed"] == []
    assert document["young_files"] == 1
    assert document["young_bytes"] > A.nbytes
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["young_until"])


@pytest.mark.parametrize(
    "arguments", [("view", "--export"), ("verify", "--resume"), ("convert", "o", "--scratch")]
)
def test_what_a_command_writes_itself_is_local(
    run: Run, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *others = arguments
    code, _, err = run(command, "memory://x", *others, "memory://file")
    assert code == 2
    assert "memory://file: expected a local path" in err
    assert list(tmp_path.iterdir()) == []


# doctor


def test_doctor_examines_a_store(run: Run) -> None:
    code, out, _ = run("doctor", "memory://doctor")
    assert code == 0
    assert out.endswith("memory://doctor: safe to save to\n")
    document = json.loads(run("doctor", "memory://doctor", "--json").out)
    assert document["safe"]
    assert all(each["good"] for each in document["findings"])


def test_doctor_reports_what_saves_lack(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_store("s3", monkeypatch) as web:
        web.obeys_conditions = False
        web.hook = lambda request: Answer(403) if request.method == "DELETE_MANY" else None
        code, out, _ = run("doctor", f"{web.url}/run")
        assert code == 1
        marks = {line.split("  ")[0] for line in out.splitlines()[:-1]}
        assert marks == {"ok", "PROBLEM", "limited"}
        assert out.endswith("not safe to save to\n")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": "somebody"}, "does not know this AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "nothing listens at that address"),
        ({"AWS_ENDPOINT_URL": "http://host.invalid"}, "look at the name of the host"),
    ],
)
def test_doctor_of_a_store_that_does_not_answer(
    run: Run, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_store("s3", monkeypatch) as web:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code, out, err = run("doctor", web.url)
        assert (code, out) == (1, "")
        assert message in err.splitlines()[-1]
        assert json.loads(run("doctor", web.url, "--json").out)["error"]["type"]


# A web server


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a run on a web server, which has no listings."""
    _saved(f"{tmp_path}/run")
    answers = {
        f"/{path.relative_to(tmp_path)}": path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Not to stderr."""

        def do_GET(self) -> None:
            data = answers.get(self.path)
            status, headers = (404, {}) if data is None else (200, {"ETag": '"1"'})
            body, size = data or b"", len(data or b"")
            if data is not None and (wanted := self.headers.get("Range")):
                start, end = map(int, wanted.removeprefix("bytes=").split("-"))
                body, status = data[start : end + 1], 206
                headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{size}"
            headers["Last-Modified"] = "Thu, 01 Jan 2026 00:00:00 GMT"
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/run"
        finally:
            server.shutdown()
            thread.join()


def test_the_commands_that_read_a_web_server(run: Run, pages: str, tmp_path: Path) -> None:
    one, two = f"{pages}/1", f"{pages}/2"
    for arguments in (
        ["ls", one],
        ["info", one],
        ["show", one, "a"],
        ["cat", one, "step"],
        ["verify", one],
        ["convert", one, tmp_path / "a.safetensors"],
        ["view", one, two, "--export", tmp_path / "a.html"],
    ):
        assert run(*arguments).code == 0, arguments
    assert run("diff", one, two).code == 1


def test_what_a_web_server_cannot(run: Run, pages: str, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "one", {"w": 1})
    for arguments, message in {
        ("steps", pages): "a web server lists no steps",
        ("gc", f"{pages}/1"): "http:// can only be read",
        ("convert", f"{tmp_path}/one", f"{pages}/3"): "http:// can only be read",
    }.items():
        code, out, err = run(*arguments)
        assert (code, out) == (3, "")
        assert message in err


@pytest.fixture
def without_ranges(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a run on a web server that answers with whole files only."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Not to stderr."""

    _saved(f"{tmp_path}/run")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    with server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/run"
        server.shutdown()
        thread.join()


def test_a_web_server_without_ranges_is_no_damage(
    run: Run, without_ranges: str, tmp_path: Path
) -> None:
    step = f"{without_ranges}/1"
    for arguments in (["verify", step], ["copy", step, tmp_path / "x"]):
        code, _, err = run(*arguments)
        assert code == 3
        assert "this server does not answer with byte ranges, which loads need: " in err
    code, out, _ = run("doctor", step)
    assert code == 1
    assert "does not answer with byte ranges, which loads need: no loads" in out


def test_doctor_of_a_web_server(run: Run, pages: str) -> None:
    code, out, _ = run("doctor", f"{pages}/1")
    assert code == 1
    assert "http:// is read only: saves do not work" in out
    assert [line.split()[1] for line in out.splitlines()[:-1]] == [
        "answer",
        "latency",
        "range",
        "write",
    ]


def test_a_step_is_archived_in_a_store_removed_and_restored(run: Run, tmp_path: Path) -> None:
    state = {"w": np.arange(64, dtype=np.float32), "step": 3}
    with cordwood.CheckpointManager(tmp_path / "run", save=1) as manager:
        manager.save(3, state, metrics={"loss": 0.5})
    url = f"memory://{tmp_path.name}/archives/3"
    arguments = ("convert", f"{tmp_path}/run/latest", url, "--archive")
    assert run(*arguments).code == 0
    ran = run(*arguments)
    assert ran.code == 3
    assert "remove them first (cordwood rm)" in ran.err
    assert run("rm", url, "--yes").code == 0
    assert run(*arguments).code == 0
    assert run("verify", url).code == 0
    assert run("convert", url, f"{tmp_path}/back/3").code == 0
    with cordwood.CheckpointManager(tmp_path / "back", save=1) as manager:
        restored = manager.restore(like=state)
        assert restored is not None
        assert restored.step == 3
        assert_trees_equal(restored.tree, state)
        assert manager.metrics(3) == {"loss": 0.5}


def test_what_an_interrupted_archive_has_left_is_removed_by_the_command_that_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        cordwood.save(tmp_path / name, {"w": np.full(9, ord(name), np.float32)})
    url = f"memory://{tmp_path.name}/archive"

    def stop(*_: Any) -> None:
        raise PermissionError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("cordwood.formats.zarr.write_to_store.write_new_object", stop)
        assert run("convert", f"{tmp_path}/a", url, "--archive").code == 3
    ran = run("convert", f"{tmp_path}/b", url, "--archive")
    assert ran.code == 3
    assert f"cordwood rm {url}" in ran.err
    assert run("rm", url, "--yes").code == 0
    assert run("convert", f"{tmp_path}/b", url, "--archive").code == 0
    assert cordwood.load(url)["w"][0] == ord("b")
