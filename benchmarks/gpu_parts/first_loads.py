"""The first load of a process, as of a job that resumes: each contender in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial

from benchmarks.gpu_parts.contenders import CONTENDERS, path_of
from benchmarks.gpu_parts.part import PROGRAM, NotPossibleError, Results, Setting


def measure(setting: Setting, results: Results) -> None:
    """Load once in a new process with each contender, from the page cache."""
    for name in CONTENDERS:
        results.measure(name, partial(_in_new_process, setting, name))


def _in_new_process(setting: Setting, name: str) -> dict[str, float]:
    if not path_of(setting, name).exists():
        raise NotPossibleError("it saved nothing that could be loaded")
    command = [sys.executable, str(PROGRAM), "--first-load", name, "--setting", setting.text()]
    limit = max(45.0, setting.until - time.time())
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"the process failed: {(done.stderr.splitlines() or ['?'])[-1]}")
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds
