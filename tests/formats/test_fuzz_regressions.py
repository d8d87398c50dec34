"""Inputs that fuzzing has found, each with its present error; and a run of the fuzzer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import dtypes
from cordwood.errors import FormatError, UnsupportedFormatError
from tests.children import SRC
from tests.fuzz import TARGETS

FUZZ = Path(__file__).parent.parent / "fuzz.py"


def test_a_header_that_ends_after_its_metadata(tmp_path: Path) -> None:
    text = b'{"__metadata__":{"a":"b"}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(FormatError, match=r"the header is not JSON: .* \(at byte 33\)"):
        cordwood.load(path)


@pytest.mark.parametrize("unit", ["[c]", "[B]", "[0s]", "[00s]", "[]", "[99999999999s]"])
def test_time_units_that_do_not_exist(tmp_path: Path, unit: str) -> None:
    assert not dtypes.is_storable(f"datetime64{unit}")
    path = tmp_path / "x.msgpack"
    cordwood.save(path, {"a": np.zeros(2, "datetime64[s]")})
    data = path.read_bytes()
    old, new = b"datetime64[s]", f"datetime64{unit}".encode()
    before, after = data.split(bytes([0xA0 | len(old)]) + old)
    grown = len(new) - len(old)
    code = before.rindex(b"\xc7")
    before = before[: code + 1] + bytes([before[code + 1] + grown]) + before[code + 2 :]
    path.write_bytes(before + bytes([0xA0 | len(new)]) + new + after)
    with pytest.raises(FormatError, match="datetime64"):
        cordwood.load(path)


def test_a_multiple_of_a_time_unit_that_numpy_lacks(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="does not exist on this platform"):
        dtypes.to_numpy("datetime64[9999999999s]")


@pytest.mark.parametrize("target", TARGETS)
def test_the_fuzzer_runs_every_target(tmp_path: Path, target: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: it has no wheel for this system")
    command = [sys.executable, str(FUZZ), target, "--seconds", "200", "--runs", "300"]
    child = subprocess.run(
        # By way of a shell: a child's peak memory begins with that of the process it comes from.
        ["sh", "-c", '"$@"; exit $?', "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    assert "stat::number_of_executed_units: 300" in child.stderr


def test_the_fuzzer_repeats_one_input(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(json.dumps({"not": "safetensors"}).encode())
    child = subprocess.run(
        [sys.executable, str(FUZZ), "safetensors", str(path)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (child.returncode, child.stderr) == (0, "")
