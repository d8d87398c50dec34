"""The blocks of docs/manager.md do what the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.docs.run_page import run_page


def test_the_page_about_managers_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/manager.md")
    assert "there is no such directory; check the path" in capsys.readouterr().out
    assert names["evaluated"].step == 300
    np.testing.assert_array_equal(names["evaluated"].tree["params"]["w"], np.ones(3))
