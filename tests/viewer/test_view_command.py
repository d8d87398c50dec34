"""The command `cordwood view`: what it opens, its errors, its memory, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np
import pytest

import cordwood
from tests.children import SRC
from tests.cli.conftest import Run
from tests.threads import until
from tests.viewer.exported import exported_resources
from tests.viewer.served import serving
from tests.viewer.sparse_checkpoint import write_sparse

# A script that runs in the background ignores SIGINT, and so would its children.
COMMAND = """
import signal
from cordwood.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
TREE = {"params": {"w": np.arange(6.0)}, "step": 7}


def exported(run: Run, file: Path, *arguments: object) -> dict[str, object]:
    code, _, err = run("view", *arguments, "--export", file, "--force")
    assert code == 0, err
    return exported_resources(file.read_text())


def test_it_opens_files_directories_steps_and_urls(run: Run, tmp_path: Path) -> None:
    url = f"memory://viewer-{uuid.uuid4().hex}/c"
    root = tmp_path / "run"
    for place in (tmp_path / "c.msgpack", tmp_path / "c.safetensors", root / "5", root / "10", url):
        cordwood.save(place, TREE)
    for place in (tmp_path / "c.msgpack", tmp_path / "c.safetensors", root / "10", url):
        start = exported(run, tmp_path / "c.html", place)["start"]
        assert isinstance(start, dict)
        assert (start["kind"], start["paths"]) == ("checkpoint", {"a": str(place)})
    start = exported(run, tmp_path / "c.html", root / "latest")["start"]
    assert isinstance(start, dict)
    assert start["paths"] == {"a": f"{root}/10"}
    start = exported(run, tmp_path / "c.html", root)["start"]
    assert isinstance(start, dict)
    assert (start["kind"], start["sources"]) == ("run", ["5", "10"])


def test_a_run_in_an_object_store(run: Run, tmp_path: Path) -> None:
    root = f"memory://viewer-{uuid.uuid4().hex}/run"
    for step in (5, 10):
        cordwood.save(f"{root}/{step}", TREE)
    resources = exported(run, tmp_path / "c.html", root)
    assert {"run", "checkpoint/5", "checkpoint/10"} <= set(resources)


def test_prefix_chooses_one_of_several_trees(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"x": np.ones(2)}, prefix="ema")
    cordwood.save(tmp_path / "c", {"y": np.ones(2)}, prefix="params")
    code, _, err = run("view", tmp_path / "c", "--export", tmp_path / "c.html")
    assert code == 3
    assert "--prefix 'ema'" in err
    checkpoint = exported(run, tmp_path / "c.html", tmp_path / "c", "--prefix", "params")
    assert checkpoint["checkpoint/a"]["leaves"]["path"] == ["y"]  # type: ignore[index]


def test_errors_are_those_of_other_commands(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "notes.txt", "empty", "nothing/latest"):
        shown = run("view", tmp_path / name, "--export", tmp_path / "c.html")
        listed = run("ls", tmp_path / name)
        assert (shown.code, shown.out) == (3, "")
        assert shown.err == listed.err
        document = json.loads(run("view", tmp_path / name, "--no-browser", "--json").out)
        assert document["error"]["type"] == listed.err.partition(":")[0]


def test_a_run_is_not_compared_with_a_checkpoint(run: Run, tmp_path: Path) -> None:
    for step in (5, 10):
        cordwood.save(tmp_path / "run" / str(step), TREE)
    for paths in (("run", "run/5"), ("run/5", "run")):
        code, _, err = run("view", *[tmp_path / path for path in paths])
        assert code == 3
        assert "expected a checkpoint to compare, found a directory of 2 steps" in err
        assert f"such as {tmp_path}/run/10" in err


def test_without_jinja_it_says_how_to_install_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, _, err = run("view", tmp_path / "nothing")
    assert code == 3
    assert "pip install 'cordwood[view]'" in err


def test_a_port_in_use_is_an_error(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", TREE)
    with serving(tmp_path / "c") as viewer:
        code, _, err = run("view", tmp_path / "c", "--no-browser", "--port", viewer.port)
    assert code == 3
    assert "in use" in err
    assert str(viewer.port) in err


@contextmanager
def view_in_a_child(
    path: Path, *options: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a child process; yield it and the address of the page."""
    command = [sys.executable, "-c", COMMAND, "view", str(path), *options]
    environment = {**os.environ, "PYTHONPATH": str(SRC), **variables}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline().strip()
            assert line.startswith("http://127.0.0.1:"), child.communicate()
            assert child.stdout.readline() == "Ctrl-C ends the viewer\n"
            yield child, line
        finally:
            child.kill()


def get(url: str, name: str) -> bytes:
    match = re.fullmatch(r"http://(.*?)(/.*)", url)
    assert match is not None
    connection = HTTPConnection(match[1], timeout=120)
    connection.request("GET", match[2] + name)
    body = connection.getresponse().read()
    connection.close()
    return body


@pytest.mark.parametrize("options", [(), ("--no-browser",)])
def test_it_opens_the_browser_unless_no_browser_is_asked_for(
    tmp_path: Path, options: tuple[str]
) -> None:
    cordwood.save(tmp_path / "c", TREE)
    script, opened = tmp_path / "browser", tmp_path / "opened"
    script.write_text(f'#!/bin/sh\necho "$1" > {opened}.tmp && mv {opened}.tmp {opened}\n')
    script.chmod(0o755)
    with view_in_a_child(tmp_path / "c", *options, BROWSER=f"{script} %s") as (child, url):
        if not options:
            until(opened.exists)
            assert opened.read_text().strip() == url
        assert b"cordwood" in get(url, "")
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 0
    assert opened.exists() == (not options)


def test_ctrl_c_ends_it_without_a_word(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", TREE)
    with view_in_a_child(tmp_path / "c", "--no-browser") as (child, url):
        assert b"cordwood" in get(url, "")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (0, "")


def test_ctrl_c_ends_a_full_read(tmp_path: Path) -> None:
    """The file has 1 TiB of holes, so the read would take many minutes."""
    write_sparse(tmp_path / "c.safetensors", leaves=2, size_bytes=1 << 40)
    with view_in_a_child(tmp_path / "c.safetensors", "--no-browser") as (child, url):

        def read() -> None:
            with suppress(OSError, HTTPException):
                get(url, "resource/statistics/a/0/all")

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: read_bytes_of(child.pid) > 1 << 27)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        reader.join()
        assert (child.returncode, err) == (0, "")


def read_bytes_of(pid: int) -> int:
    """Return how much a process has read so far, from the disk or from memory."""
    match = re.search(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())
    assert match is not None
    return int(match[1])


def status_of(pid: int, name: str) -> str:
    """Return a field of /proc/PID/status."""
    match = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def test_memory_stays_below_300_mb_for_100_gib_and_20_000_leaves(tmp_path: Path) -> None:
    write_sparse(tmp_path / "c.safetensors")
    with view_in_a_child(tmp_path / "c.safetensors", "--no-browser") as (child, url):
        checkpoint = json.loads(get(url, "resource/checkpoint/a"))["result"]
        assert checkpoint["leaf_count"] == 20_000
        assert checkpoint["size_bytes"] > 99 << 30
        threads = [
            threading.Thread(target=get, args=(url, f"resource/statistics/a/{number}/all"))
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(0, 20_000, 400):
            get(url, f"resource/leaf/a/{number}")
            get(url, f"resource/statistics/a/{number}/sample")
        assert int(status_of(child.pid, "VmHWM")) < 300_000
