"""The example with a trainer and two samplers, over a bucket; others run it over a folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.children import SRC
from tests.storage.stores import new_url

EXAMPLE = SRC.parent / "examples" / "publish_and_follow.py"


def test_the_example_over_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    with new_url("moto", monkeypatch) as url:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), f"{url}/weights", "6"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "version 6: mean reward" in done.stdout
