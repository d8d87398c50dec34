"""The command `cordwood serve`: other programs read what it serves, with the token."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.processes.host_address import address_for_others
from cordwood.testing import assert_trees_equal
from tests.cli.conftest import Run

SECONDS = 60
TREE = {"w": np.arange(100_000, dtype=np.float32), "step": 7}


@contextmanager
def serving(*arguments: str | Path) -> Iterator[dict[str, Any]]:
    """Run the command; yield what it prints as JSON."""
    command: Sequence[str] = [sys.executable, "-m", "cordwood", "serve", *map(str, arguments)]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            printed = ""
            while line := process.stdout.readline():
                printed += line
                if line.rstrip() == "}":
                    break
            yield json.loads(printed)
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def with_token(url: str, token: str) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    return cordwood.storage_options(url, client_options={"default_headers": headers})


def test_steps_are_read_with_the_printed_token(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "run" / "100", TREE)
    (tmp_path / "run" / "notes").write_text("private")
    with serving(tmp_path / "run") as served:
        url = served["url"]
        with with_token(url, served["token"]):
            assert_trees_equal(cordwood.load(f"{url}/100"), TREE)
            cordwood.verify(f"{url}/100")
            cordwood.copy(f"{url}/100", tmp_path / "copy")
            with pytest.raises(FileNotFoundError):
                cordwood.load(f"{url}/200")
        with with_token(url, "wrong"), pytest.raises(PermissionError, match="Bearer TOKEN"):
            cordwood.load(f"{url}/100")
    assert_trees_equal(cordwood.load(tmp_path / "copy"), TREE)


def test_published_versions_are_read_with_a_token_of_a_file(tmp_path: Path) -> None:
    publisher = cordwood.WeightPublisher(tmp_path / "versions")
    versions = [{"w": np.full(100_000, step, np.float32)} for step in range(2)]
    for step, version in enumerate(versions):
        publisher.publish(step, version).wait()
    (tmp_path / "token").write_text("token-of-the-readers\n")
    with serving(tmp_path / "versions", "--token-file", tmp_path / "token") as served:
        assert "token" not in served
        url = served["url"]
        with with_token(url, "token-of-the-readers"):
            assert_trees_equal(cordwood.load(f"{url}/0"), versions[0])
            cordwood.apply_delta(f"{url}/0", f"{url}/1", tmp_path / "applied")
    assert_trees_equal(cordwood.load(tmp_path / "applied"), versions[1])


def test_what_cannot_be_served(run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("two words")
    for arguments in ((tmp_path / "nothing",), (tmp_path, "--token-file", tmp_path / "token")):
        code, out, err = run("serve", *arguments)
        assert (code, out) == (2, "")
        assert "expected a" in err


def test_an_address_of_another_machine_is_refused(run: Run, tmp_path: Path) -> None:
    code, _, err = run("serve", tmp_path, "--host", "192.0.2.1")  # an address of no machine
    assert code == 3
    assert "choose as host an address of this machine, or 0.0.0.0 for all" in err
    with serving(tmp_path, "--host", "0.0.0.0") as served:
        assert "//0.0.0.0:" not in served["url"]  # which another machine cannot use
        port = served["url"].rpartition(":")[2]
        code, _, err = run("serve", tmp_path, "--port", port)
        assert code == 3
        assert "choose another port" in err


def test_the_printed_address_of_all_addresses_is_one_that_readers_can_use(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "100", TREE)
    with serving(tmp_path, "--host", "0.0.0.0") as served:
        url = served["url"]
        with with_token(url, served["token"]):
            assert_trees_equal(cordwood.load(f"{url}/100"), TREE)


def test_the_address_for_others_is_the_host_unless_it_stands_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert address_for_others("10.0.0.5") == "10.0.0.5"
    assert address_for_others("trainer") == "trainer"
    assert address_for_others("0.0.0.0") not in ("0.0.0.0", "")
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    assert address_for_others("0.0.0.0") == address_for_others("::") == socket.gethostname()


def no_network(*_: Any, **__: Any) -> Any:
    raise OSError("no network")
