"""Training runs as processes: what they tell, and one that is killed in the middle of a save."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Told", "kill_in_a_save", "require_links", "start", "told_by"]

REPOSITORY = Path(__file__).resolve().parent.parent
INDEX = "cordwood.json"


class Told(NamedTuple):
    """What a run has printed."""

    losses: dict[int, str]  # of each step, as C writes a float in hexadecimal: every bit
    saves: list[dict[str, Any]]  # the fields of SaveReports
    restored: dict[str, Any]  # step, seconds, notes; nothing where it began anew
    end: dict[str, Any]  # the loop's seconds and the held-out loss; nothing where it was killed


def start(root: Path, mesh: tuple[int, int], *, every: int, steps: int) -> subprocess.Popen[str]:
    """Begin or go on, on so many virtual devices."""
    flags = f"--xla_force_host_platform_device_count={mesh[0] * mesh[1]}"
    numbers = [str(number) for number in (*mesh, every, steps)]
    return subprocess.Popen(
        [sys.executable, "-m", "demo.training", str(root), *numbers],
        cwd=REPOSITORY,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    )


def told_by(child: subprocess.Popen[str], *, killed: bool = False) -> Told:
    """What a run prints until it ends; it is an error if that is not as it should be."""
    found = Told({}, [], {}, {})
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            fields = json.loads(line)
            if "step" in fields:
                found.losses[fields["step"]] = fields["loss"]
            elif "saved" in fields:
                found.saves.append(fields["saved"])
            elif "restored" in fields:
                found.restored.update(fields)
            else:
                found.end.update(fields)
    expected = -signal.SIGKILL if killed else 0
    if child.returncode != expected:
        raise SystemExit(f"the training run ended with {child.returncode}, not {expected}")
    return found


def require_links(told: Told) -> None:
    """It is an error if what is frozen was written again: only the first save of a mesh may."""
    if len(told.saves) < 2:
        raise SystemExit(f"expected two saves or more, found {len(told.saves)}")
    for save in told.saves[1:]:
        if save["linked_bytes"] <= 0:
            raise SystemExit(f"the save of step {save['step']} linked nothing")


def kill_in_a_save(child: subprocess.Popen[str], root: Path, steps: Sequence[int]) -> int:
    """SIGKILL while one of these steps is being saved: data is there, the index is not.

    The process is stopped before that is looked at a second time, so it cannot be a moment late. A
    save that was over by then is let go, and the next one awaited.
    """
    for step in steps:
        folder = root / str(step)
        while child.poll() is None and not (folder / INDEX).exists():
            if _has_begun(folder):
                child.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if not (folder / INDEX).exists():
                    child.kill()
                    child.wait()
                    return step
                child.send_signal(signal.SIGCONT)
            time.sleep(0.0005)
    child.kill()
    raise SystemExit(f"no save of steps {steps} was met in the middle")


def _has_begun(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob("data-*"))
