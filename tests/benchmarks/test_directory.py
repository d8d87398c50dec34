"""The benchmark of directories, on a tree of 2 MB: every contender writes and reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.directory_claims import ASYNC_CLAIMS, LOAD_CLAIMS, SAVE_CLAIMS

ROOT = Path(__file__).resolve().parent.parent.parent


def test_all_contenders_work(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/directory.py", "--tree", "smoke", "--rounds", "1"]
    command += ["--folder", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for claim in (*SAVE_CLAIMS, *LOAD_CLAIMS, *ASYNC_CLAIMS):
        assert f"| {claim.ours} |" in done.stdout
        assert f"| {claim.other} |" in done.stdout
    assert list(tmp_path.iterdir()) == []
