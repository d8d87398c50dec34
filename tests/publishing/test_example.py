"""The example with a trainer and two samplers, by way of each kind of place."""

from __future__ import annotations

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
        assert f"{place}: the mean reward grew from" in done.stdout
