"""A few calls of the fuzzer that changes files while cordwood reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz_changes import names, read_for


@pytest.mark.parametrize("name", names())
def test_no_version_is_mixed_with_another(tmp_path: Path, name: str) -> None:
    found = read_for(name, tmp_path / "x", seconds=60, calls=12, seed=3)
    assert not found["failures"]
    assert sum(found["outcomes"].values()) == 12
