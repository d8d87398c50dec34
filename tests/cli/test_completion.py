"""Shell completion: files, and key paths of the checkpoint at the path before them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import ShellComplete

import cordwood
from cordwood.cli.main import cli
from tests.cli.test_tmux import screen_with

TREE = {
    "frozen": {"kernel": np.zeros(3, np.float32), "it's": 1},
    "free": {"kernel": np.zeros(3, np.float32)},
    "step": 7,
}


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cordwood.save("run/299", TREE)


def offered(*arguments: str) -> list[tuple[str, str]]:
    """Return the types and words of the completions of the last argument."""
    completion = ShellComplete(cli, {}, "cordwood", "_CORDWOOD_COMPLETE")
    completions = completion.get_completions(list(arguments[:-1]), arguments[-1])
    return [(item.type, item.value) for item in completions]


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "bi"),
        ("info", ""),
        ("show", "ru"),
        ("cat", "ru"),
        ("diff", "ru"),
        ("diff", "run/299", "ru"),
        ("verify", "ru"),
        ("verify", "run", "--resume", "re"),
        ("convert", "ru"),
        ("convert", "run/299", "ou"),
        ("convert", "run/299", "out", "--scratch", "ou"),
        ("steps", "ru"),
        ("gc", "ru"),
        ("doctor", "ru"),
    ],
    ids=" ".join,
)
def test_paths_are_completed_as_files(arguments: tuple[str, ...]) -> None:
    assert offered(*arguments) == [("file", arguments[-1])]


@pytest.mark.parametrize("command", ["show", "cat", "ls"])
def test_key_paths_are_completed_after_a_path(command: str) -> None:
    assert offered(command, "run/299", "fro") == [("plain", "frozen/kernel")]
    assert offered(command, "run/latest", "s") == [("plain", "step")]
    names = [word for _, word in offered(command, "run/299", "")]
    assert names == ["frozen/kernel", "free/kernel", "step"]  # "it's" would need quotes


def test_there_is_nothing_to_offer_where_there_is_no_checkpoint() -> None:
    Path("broken.safetensors").write_bytes(b"nothing")
    assert offered("show", "run/300", "") == []
    assert offered("show", "broken.safetensors", "") == []
    assert offered("show", "s3://bucket/run/1", "") == []


def test_of_very_many_leaves_the_containers_are_offered() -> None:
    cordwood.save("many", {f"layer{i}": {f"w{j}": j for j in range(200)} for i in range(3)})
    assert [word for _, word in offered("show", "many", "la")] == ["layer0/", "layer1/", "layer2/"]
    assert len(offered("show", "many", "layer1/w")) == 200


def test_commands_and_options_are_completed() -> None:
    assert ("plain", "convert") in offered("co")
    assert ("plain", "--json") in offered("ls", "--js")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[list[str]]:
    """Start bash in tmux, with completion set up as in docs/cli.md."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "cordwood"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cordwood "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "rc").write_text(
        "PS1='typed> '\nbind 'set bell-style none'\n"
        'eval "$(_CORDWOOD_COMPLETE=bash_source cordwood)"\n'
    )
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    shell = f"bash --noprofile --rcfile {tmp_path}/rc -i"
    size = ["-x", "100", "-y", "40"]
    start = [*tmux, "new-session", "-d", *size, shell]
    subprocess.run(start, cwd=tmp_path, env=environment, check=True)
    try:
        screen_with(tmux, "typed> ")
        yield tmux
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


@pytest.mark.skipif(
    shutil.which("tmux") is None or shutil.which("bash") is None, reason="there is no tmux or bash"
)
def test_bash_completes_paths_and_key_paths(terminal: list[str]) -> None:
    subprocess.run([*terminal, "send-keys", "cordwood show ru", "Tab"], check=True)
    screen_with(terminal, "cordwood show run/")
    subprocess.run([*terminal, "send-keys", "299 fro", "Tab"], check=True)
    screen_with(terminal, "cordwood show run/299 frozen/kernel")
    subprocess.run([*terminal, "send-keys", "Enter"], check=True)
    screen_with(terminal, "frozen/kernel: float32[3]")
