"""Suggestions of similar key paths."""

from __future__ import annotations

import pytest

from cordwood.did_you_mean import nearest_path

NAMES = ["params/dense/kernel", "params/dense/bias", "params/norm/scale", "step"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("params/dense/bais", "params/dense/bias"),
        ("parms/dense/kernel", "params/dense/kernel"),
        ("params/dens/kernel", "params/dense/kernel"),
        ("params/dense/scale", "params/norm/scale"),
        ("params/dense/gamma", None),
        ("steps", "step"),
    ],
)
@pytest.mark.parametrize("more", [0, 5000])
def test_the_nearest_path_is_proposed(name: str, expected: str | None, more: int) -> None:
    names = [*(f"other/{i}/x" for i in range(more)), *NAMES]
    if more and name.startswith("parms"):
        names = names[-1000:]
    assert nearest_path(name, names) == expected
