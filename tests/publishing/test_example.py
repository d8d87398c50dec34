"""The example with a trainer and two samplers, by way of each kind of place."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import SRC
from tests.storage.stores import new_url

EXAMPLE = SRC.parent / "examples" / "publish_and_follow.py"


def test_the_example_through_a_folder_a_bucket_and_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    with new_url("moto", monkeypatch) as url:
        places = ["weights", f"{url}/weights", "serve:served"]
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), *places, "--versions", "4"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    for place in places:
        numbers = re.search(rf"^{place}: .* grew from (\S+) to (\S+)$", done.stdout, re.MULTILINE)
        assert numbers is not None, done.stdout
        first, last = map(float, numbers.groups())
        assert last > first + 0.1  # the version that is published is the one that plays


def test_a_server_that_fails_is_an_error() -> None:
    example = runpy.run_path(str(EXAMPLE))
    failing = [sys.executable, "-c", "print('{'); raise SystemExit(3)"]
    with (
        subprocess.Popen(failing, stdout=subprocess.PIPE, text=True) as process,
        pytest.raises(RuntimeError, match="the server ended with status 3"),
    ):
        example["printed_source"](process)
