"""Results of mypy and pyright: tests/test_typed.py passes, and a wrong claim is reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

WRONG = """
from typing import NamedTuple, assert_type

import cordwood


class State(NamedTuple):
    step: int


state = State(7)
assert_type(cordwood.load("run/100", like=state), State)
found: int = cordwood.load("run/100", like=state)
cordwood.load("run/100", like=state, mising="keep")
"""


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        (["mypy", "--no-error-summary"], ['has type "State"', 'No overload variant of "load"']),
        (["basedpyright"], ['"State" is not assignable to "int"', 'No overloads for "load"']),
    ],
    ids=["mypy", "pyright"],
)
def test_load_is_inferred_as_the_type_of_like(
    command: Sequence[str], mentions: Sequence[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    files = ["tests/test_typed.py", str(wrong)]
    done = subprocess.run(
        [sys.executable, "-m", *command, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if "error" in line and ".py:" in line]
    assert all("wrong.py" in line for line in errors), errors
    lines = sorted({int(line.split("wrong.py:")[1].split(":")[0]) for line in errors})
    assert lines == [13, 14], errors
    for each in mentions:
        assert each in done.stdout, done.stdout
