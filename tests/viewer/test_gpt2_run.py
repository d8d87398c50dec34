"""The run that the tests of the viewer look at has the faults that it claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import StepReader
from cordwood.errors import CorruptionError, IncompleteCheckpointError
from tests.viewer.gpt2_run import NAN_BLOCK, Faults, save_run


def test_the_faults_are_where_they_are_asked_for(tmp_path: Path) -> None:
    faults = Faults(nan_from=40, damaged=20, damaged_data=30, unfinished=60)
    assert save_run(tmp_path, count=6, every=10, faults=faults) == [10, 20, 30, 40, 50, 60]
    assert StepReader(tmp_path).steps() == [10, 30, 40, 50]
    with pytest.raises(CorruptionError):
        cordwood.open(tmp_path / "20")
    with pytest.raises(CorruptionError):
        cordwood.verify(tmp_path / "30")
    with pytest.raises(IncompleteCheckpointError):
        cordwood.open(tmp_path / "60")
    for step, broken in ((10, False), (40, True), (50, True)):
        params = cordwood.load(tmp_path / str(step))["params"]
        nan = {
            name for name in params if np.isnan(params[name].get("ln_1", {}).get("bias", 0)).any()
        }
        assert nan == ({NAN_BLOCK} if broken else set())


def test_frozen_blocks_are_linked_and_have_equal_digests(tmp_path: Path) -> None:
    save_run(tmp_path, count=3, every=10)
    diff = cordwood.diff(tmp_path / "20", tmp_path / "30", select="params/h_3/**")
    assert diff.equal
    assert diff.read_bytes == 0
    assert any(file.stat().st_nlink == 3 for file in (tmp_path / "30").iterdir())
