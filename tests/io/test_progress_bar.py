"""progress=True: a bar in a terminal, and nothing in a log."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.io.progress_bar import progress_display
from cordwood.processes.key_value_store import SINGLE_PROCESS, override_processes
from cordwood.results import Progress
from tests.children import SRC

TREE = {f"w{i}": np.full(1 << 16, i, np.float32) for i in range(8)}

# Each verb shows its bar; a loop saves in the background and restores.
VERBS = """
import sys
import numpy as np
import cordwood

folder = sys.argv[1]
tree = {f"w{i}": np.full(1 << 16, i, np.float32) for i in range(8)}
cordwood.save(f"{folder}/a.safetensors", tree, progress=True)
cordwood.save_async(f"{folder}/b", tree, progress=True).wait()
cordwood.load(f"{folder}/a.safetensors", progress=True)
with cordwood.open(f"{folder}/b") as checkpoint:
    checkpoint.load(progress=True)
cordwood.verify(f"{folder}/b", progress=True)
cordwood.diff(f"{folder}/b", {**tree, "w0": tree["w0"] + 1}, progress=True)
cordwood.convert(f"{folder}/b", f"{folder}/c.msgpack", progress=True)
with cordwood.CheckpointManager(f"{folder}/run", progress=True) as manager:
    manager.save(1, tree)
    manager.wait()
    manager.restore()
print("finished")
"""

INTERRUPTED = """
import os, signal, sys
import numpy as np
import cordwood
from cordwood.io import check_digests, progress

class Meter(progress.ProgressMeter):
    def advance(self, size_bytes, doing=""):
        os.kill(os.getpid(), signal.SIGINT)

progress.ProgressMeter = Meter
cordwood.save(f"{sys.argv[1]}/a.safetensors", {"w": np.zeros(1 << 20)})
cordwood.load(f"{sys.argv[1]}/a.safetensors", progress=True)
"""


def run_in_terminal(code: str, *arguments: str) -> tuple[str, str, int]:
    """Run Python with a terminal as its standard error; return stdout, the terminal's text, rc."""
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # EIO: the child has closed the terminal
                break
            if not part:
                break
            shown += part
        out, _ = child.communicate(timeout=60)
    finally:
        os.close(ours)
    return out.decode(), shown.decode(errors="replace"), child.returncode


def test_every_verb_shows_a_bar_in_a_terminal(tmp_path: Path) -> None:
    out, shown, code = run_in_terminal(VERBS, str(tmp_path))
    assert (out, code) == ("finished\n", 0), shown
    for verb in ("saving", "loading", "verifying", "comparing", "converting", "restoring"):
        assert verb in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 9  # the cursor is shown again
    assert "2.0/2.0 MiB" in shown


def test_an_interrupt_closes_the_bar(tmp_path: Path) -> None:
    _, shown, code = run_in_terminal(INTERRUPTED, str(tmp_path))
    assert code == -signal.SIGINT or "KeyboardInterrupt" in shown
    assert "loading" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


def test_nothing_is_shown_in_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cordwood.save(tmp_path / "a", TREE, progress=True)
    cordwood.load(tmp_path / "a", progress=True)
    cordwood.save(tmp_path / "a", TREE, progress=False)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenTerminal(Terminal):
    def write(self, text: str) -> int:
        raise OSError("the terminal was closed")


def test_a_bar_is_closed_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")

    def fail() -> None:
        with progress_display(True, "reading") as report:
            assert report is not None
            report(Progress(1 << 20, 4 << 20, "params/[red]w\x1b[31m"))
            raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        fail()
    text = terminal.getvalue()
    assert "1.0/4.0 MiB" in text
    assert "params/[red]w\\x1b[31m" in text  # shown, and neither a style nor an escape code
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_a_terminal_that_cannot_be_written_ends_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", BrokenTerminal())
    cordwood.save(tmp_path / "a.safetensors", TREE, progress=True)
    assert cordwood.verify(tmp_path / "a.safetensors").leaves == len(TREE)


@pytest.mark.parametrize("stream", ["closed", "none", "no file"])
def test_without_a_standard_error_there_is_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", {"closed": closed, "none": None}.get(stream, object()))
    cordwood.save(tmp_path / "tree", {"w": 1.5}, progress=True)
    cordwood.save_async(tmp_path / "tree", {"w": 2.5}, progress=True).wait()
    assert cordwood.load(tmp_path / "tree", progress=True) == {"w": 2.5}


def test_only_process_0_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(type(SINGLE_PROCESS)):  # type: ignore[misc]
        index = 1
        count = 2

    monkeypatch.setattr(sys, "stderr", Terminal())
    with override_processes(Second()), progress_display(True, "saving") as report:
        assert report is None
    with progress_display(True, "saving") as report:
        assert report is not None


@pytest.mark.parametrize("wrong", [1, "yes", [print]])
def test_a_wrong_value_is_refused_at_once(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "a"
    cordwood.save(path, TREE)
    calls = [
        lambda: cordwood.save(tmp_path / "b", TREE, progress=wrong),
        lambda: cordwood.save_async(tmp_path / "b", TREE, progress=wrong),
        lambda: cordwood.load(path, progress=wrong),
        lambda: cordwood.verify(path, progress=wrong),
        lambda: cordwood.convert(path, tmp_path / "b", progress=wrong),
        lambda: cordwood.diff(path, TREE, progress=wrong),
        lambda: cordwood.CheckpointManager(tmp_path / "run", progress=wrong),
        lambda: cordwood.StepReader(tmp_path / "run").restore(progress=wrong),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"progress=.*: expected True for a bar, None, or a"):
            call()
    assert not (tmp_path / "b").exists()


def test_a_manager_reports_saves_and_restores_to_a_function(tmp_path: Path) -> None:
    messages: list[Progress] = []
    size = sum(array.nbytes for array in TREE.values())
    with cordwood.CheckpointManager(tmp_path, progress=messages.append) as manager:
        manager.save(1, TREE, items={"ema": TREE})
        manager.wait()
        assert (messages[0], messages[-1][:2]) == (Progress(0, 2 * size), (2 * size, 2 * size))
        messages.clear()
        manager.restore(items={"ema": None})
        assert messages[-1][:2] == (2 * size, 2 * size)
        messages.clear()
        manager.restore(progress=None)
        assert not messages
