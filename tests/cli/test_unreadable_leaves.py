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


def test_convert_leaves_them_out_with_the_option_of_its_error(tmp_path: Path, run: Run) -> None:
    path, to = tmp_path / "x.npz", tmp_path / "x.safetensors"
    np.savez(path, w=np.ones(3), names=np.array(["a", "b"]))
    code, _, err = run("convert", path, to)
    assert code == 3
    assert "(--lossy)" in err
    code, out, err = run("convert", path, to, "--lossy")
    assert (code, err) == (0, "")
    assert out.startswith("lost: 1 leaf that cannot be read: names\n")
    assert run("diff", path, to, "--select", "w")[0] == 0
