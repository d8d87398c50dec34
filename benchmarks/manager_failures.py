"""The behaviour of each manager when saves in the background fail.

    python benchmarks/manager_failures.py MANAGER ROOT fail     fail, in one process
    python benchmarks/manager_failures.py MANAGER ROOT resume   then resume, in another process

The manager keeps one step. Step 1 is saved. From then on no file may grow beyond 64 KiB
(RLIMIT_FSIZE), as on a full disk: the kernel refuses every longer write. Then steps 2 and 3 are
saved.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

__all__ = ["QUESTIONS", "answers"]

LIMIT_BYTES = 64 << 10
SECONDS = 2.0  # enough for a failing save to fail
QUESTIONS = {
    "save_2": "`save(2)`",
    "latest_2": "latest step, two seconds later",
    "save_3": "`save(3)`",
    "wait": "wait for it",
    "latest_3": "latest step after that",
    "left": "entries in the root",
    "resume": "a new process resumes from",
}


def answers(name: str, folder: Path) -> dict[str, str]:
    """Return what a manager does, by question; each half runs in its own process."""
    outcomes: dict[str, str] = {}
    for half in ("fail", "resume"):
        done = subprocess.run(
            [sys.executable, __file__, name, str(folder / "run"), half],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        outcomes.update(json.loads(done.stdout.splitlines()[-1]))
    return {question: said.replace(str(folder), "...") for question, said in outcomes.items()}


def fail(name: str, root: Path) -> dict[str, str]:
    """Save one step, and two more that cannot be written."""
    from benchmarks.manager_contenders import MANAGERS

    manager = MANAGERS[name](root, 1)
    manager.save(1, state_of(1))
    manager.wait()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    outcomes = {"save_2": _said(lambda: manager.save(2, state_of(2)))}
    time.sleep(SECONDS)
    outcomes["latest_2"] = _said(lambda: str(manager.latest()))
    outcomes["save_3"] = _said(lambda: manager.save(3, state_of(3)))
    outcomes["wait"] = _said(manager.wait)
    outcomes["latest_3"] = _said(lambda: str(manager.latest()))
    return outcomes


def resume(name: str, root: Path) -> dict[str, str]:
    """Resume in a new process, with free space on the disk."""
    from benchmarks.manager_contenders import MANAGERS

    outcomes = {"left": ", ".join(_entries(root)) or "nothing"}

    def restored() -> str:
        manager = MANAGERS[name](root, 1)
        step, tree = manager.restore(state_of(0))
        as_saved = bool((tree["w"] == state_of(step)["w"]).all())
        return f"{step}, as it was saved" if as_saved else f"{step}, with other values"

    outcomes["resume"] = _said(restored)
    return outcomes


def state_of(step: int) -> Any:
    """Return 8 MB that compress badly, different for each step."""
    import jax
    import numpy as np

    return {"w": jax.device_put(np.random.default_rng(step).standard_normal(1 << 21, np.float32))}


def _entries(root: Path) -> Iterable[str]:
    return sorted(path.name for path in root.glob("*") if not path.name.startswith("."))


def _said(work: Callable[[], Any]) -> str:
    """Return what a call returns or raises, as text."""
    try:
        value = work()
    except Exception as e:  # noqa: BLE001  (any error is the outcome)
        return f"{type(e).__name__}: {' '.join(str(e).split())}"
    return "returns" if value is None else str(value)


if __name__ == "__main__":
    halves = {"fail": fail, "resume": resume}
    print(json.dumps(halves[sys.argv[3]](sys.argv[1], Path(sys.argv[2]))), flush=True)
    os._exit(0)  # do not wait for a thread that still waits for a failed save
