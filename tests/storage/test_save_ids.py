"""Save ids, whatever the clock says."""

from __future__ import annotations

import pytest

from cordwood.storage.paths import new_save_id


@pytest.mark.parametrize(
    ("now", "began"),
    [(0.0, 0), (1_710_227_456.9, 1_710_227_456), (-3600.5, 0), (2.0**33, 2**32 - 1)],
)
def test_an_id_tells_when_the_save_began(
    monkeypatch: pytest.MonkeyPatch, now: float, began: int
) -> None:
    monkeypatch.setattr("time.time", lambda: now)
    assert int(new_save_id()[:8], 16) == began
