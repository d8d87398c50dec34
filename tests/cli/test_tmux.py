"""The command typed into a real terminal: what tmux shows is what docs/cli.md shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.cli_transcripts import SECTIONS, make_checkpoints, transcript
from demo.terminal import COLUMNS, LINES, screen_text

_SECONDS = 60


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_what_is_typed_in_tmux(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    command = SECTIONS[0][1][0]
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "cordwood"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cordwood "$@"\n')
    tool.chmod(0o755)
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    subprocess.run(
        [*tmux, "new-session", "-d", *size, "sh"], cwd=tmp_path, env=environment, check=True
    )
    try:
        subprocess.run([*tmux, "send-keys", command, "Enter"], check=True)
        deadline = time.monotonic() + _SECONDS
        wanted = transcript(tmp_path, command)
        pane = ""
        while wanted.splitlines()[-1] not in pane and time.monotonic() < deadline:
            time.sleep(0.1)
            pane = subprocess.run(
                [*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True
            ).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    lines, expected = pane.splitlines(), wanted.splitlines()
    assert lines[0].endswith(f" {command}")  # behind the shell's own prompt
    assert lines[1 : len(expected)] == expected[1:]


def test_what_stands_on_a_screen() -> None:
    bar = "\x1b[?25l\rverify 10%\r\x1b[2K\rverify 99%\r\n\r\x1b[1A\x1b[2K\x1b[?25h"
    assert screen_text(f"{bar}no damage\r\n") == "no damage\n"
    with pytest.raises(ValueError, match="control sequence"):
        screen_text("\x1b[2J")
