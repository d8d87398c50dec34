"""Saves when the interpreter ends: in an `atexit` handler, and on a store that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.testing import assert_trees_equal
from tests.children import run_python
from tests.storage.web_stores import Request, web_store

AT_EXIT = """
import atexit, sys
import numpy as np
import cordwood

atexit.register(lambda: {call})
"""
STALLED = """
import signal
import time
import numpy as np
import cordwood

class InterruptedWait:  # Ctrl-C comes while it waits
    def __init__(self, ended):
        self._ended = ended

    def wait(self, _):
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)  # the handler may run a little later

    def __getattr__(self, name):
        return getattr(self._ended, name)

pending = cordwood.save_async("s3://bucket/run", {"w": np.arange(5)})
pending._ended = InterruptedWait(pending._ended)
try:
    pending.wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        'cordwood.save_async(sys.argv[1], {"w": np.arange(5)})',
        'cordwood.save_async(sys.argv[1], {"w": np.arange(5)}).wait()',
        'cordwood.save(sys.argv[1], {"w": np.arange(5)})',
    ],
)
@pytest.mark.parametrize("name", ["tree", "tree.safetensors"])
def test_a_save_in_an_atexit_handler(tmp_path: Path, call: str, name: str) -> None:
    """Threads that are begun there are not waited for."""
    path = tmp_path / name
    command = [sys.executable, "-c", AT_EXIT.format(call=call), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert_trees_equal(cordwood.load(path), {"w": np.arange(5)})


def test_a_failed_save_in_an_atexit_handler_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine").write_bytes(b"")
    call = f'cordwood.save_async({str(tmp_path / "tree")!r}, {{"w": np.arange(5)}})'
    command = [sys.executable, "-c", AT_EXIT.format(call=call)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "is a directory, but not a checkpoint" in ended.stderr


SAVES_TO_A_STORE = {
    "save_async": """
        import numpy as np
        import cordwood
        pending = cordwood.save_async("s3://bucket/run", {"w": np.arange(3_000_000)})
    """,
    "manager": """
        import numpy as np
        import cordwood
        manager = cordwood.CheckpointManager("s3://bucket", save=1)
        manager.save(1, {"w": np.arange(3_000_000)})
    """,
}


@pytest.mark.parametrize("name", SAVES_TO_A_STORE)
def test_a_save_to_a_store_ends_before_the_process(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the exit of the interpreter some kinds of threads cannot be started any more."""
    with web_store("s3", monkeypatch):
        run_python(SAVES_TO_A_STORE[name])
        path = "s3://bucket/run" if name == "save_async" else "s3://bucket/1"
        assert_trees_equal(cordwood.load(path), {"w": np.arange(3_000_000)})


def test_ctrl_c_on_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ends the waiting, and says what is still to come; another one ends the process."""
    with web_store("s3", monkeypatch) as web:
        go = threading.Event()

        def stall(_: Request) -> None:
            go.wait(120)

        web.hook = stall
        command = [sys.executable, "-c", STALLED]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                said = process.stdout.readline()
                assert said == "interrupted\n", said or process.stderr.read()
                line = process.stderr.readline()
                assert "s3://bucket/run" in line
                assert "Ctrl-C again" in line
                assert process.poll() is None
                ended = threading.Event()

                def interrupt() -> None:
                    while not ended.wait(0.2):
                        process.send_signal(signal.SIGINT)

                interrupting = threading.Thread(target=interrupt)
                interrupting.start()
                try:
                    process.wait(60)
                finally:
                    ended.set()
                    interrupting.join()
            finally:
                process.kill()
                go.set()
