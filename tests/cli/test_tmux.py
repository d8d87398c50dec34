"""A command typed in tmux: the screen shows the same as docs/cli.md."""

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

_SECONDS = 300
_PROMPT = "typed> "


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_what_is_typed_in_tmux(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    command = SECTIONS[0][1][0]
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "cordwood"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cordwood "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "prompt.sh").write_text(f"PS1='{_PROMPT}'\n")
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "ENV": str(tmp_path / "prompt.sh"),
    }
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    subprocess.run(
        [*tmux, "new-session", "-d", *size, "sh"], cwd=tmp_path, env=environment, check=True
    )
    try:
        # Input that arrives before the shell reads is echoed twice, once without a prompt.
        screen_with(tmux, _PROMPT)
        subprocess.run([*tmux, "send-keys", command, "Enter"], check=True)
        expected = transcript(tmp_path, command).splitlines()
        lines = screen_with(tmux, expected[-1])
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    assert lines[: len(expected)] == [f"{_PROMPT}{command}", *expected[1:]]


def screen_with(tmux: list[str], text: str) -> list[str]:
    """Wait until the screen shows `text`, and return its lines."""
    deadline = time.monotonic() + _SECONDS
    pane = ""
    while text.rstrip() not in pane and time.monotonic() < deadline:
        time.sleep(0.1)
        pane = subprocess.run(
            [*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True
        ).stdout
    assert text.rstrip() in pane, f"{text!r} is not on the screen after {_SECONDS} s:\n{pane}"
    return pane.splitlines()


def test_control_sequences_are_applied_to_the_screen_text() -> None:
    bar = "\x1b[?25l\rverify 10%\r\x1b[2K\rverify 99%\r\n\r\x1b[1A\x1b[2K\x1b[?25h"
    assert screen_text(f"{bar}no damage\r\n") == "no damage\n"
    with pytest.raises(ValueError, match="control sequence"):
        screen_text("\x1b[2J")
