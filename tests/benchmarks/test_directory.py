"""The benchmarks of directories, on small trees: every contender writes and reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.directory_claims import ASYNC_CLAIMS, LOAD_CLAIMS, SAVE_CLAIMS

ROOT = Path(__file__).resolve().parent.parent.parent


def printed(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


def test_all_contenders_work(tmp_path: Path) -> None:
    output = printed(tmp_path, "benchmarks/directory.py", "--tree", "smoke", "--rounds", "1")
    for claim in (*SAVE_CLAIMS, *LOAD_CLAIMS, *ASYNC_CLAIMS):
        assert f"| {claim.ours} |" in output
        assert f"| {claim.other} |" in output


def test_training(tmp_path: Path) -> None:
    output = printed(tmp_path, "benchmarks/training.py", "--case", "smoke")
    assert "| cordwood |" in output
    assert "| orbax |" in output
