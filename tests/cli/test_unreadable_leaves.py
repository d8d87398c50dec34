"""Commands on files with leaves that cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.conftest import Run


def test_ls_marks_them_and_show_says_why(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, w=np.ones(3), names=np.array(["a", "b"]))
    code, out, err = run("ls", path)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines() if "names" in line] == [
        ["names", "unreadable"]
    ]
    code, out, err = run("show", path, "names")
    assert code == 3
    assert "names: an array of text (dtype <U1) cannot be read" in out + err
