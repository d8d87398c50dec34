"""Training runs as processes: their output, and the kill of one in the middle of a save."""

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

__all__ = ["RunOutput", "kill_in_a_save", "read_output", "require_links", "start"]

REPOSITORY = Path(__file__).resolve().parent.parent
INDEX = "cordwood.json"


class RunOutput(NamedTuple):
    """The output of a run."""

    losses: dict[int, str]  # the loss of each step, as a hexadecimal float: every bit
    saves: list[dict[str, Any]]  # the fields of SaveReports
    restored: dict[str, Any]  # step, seconds, notes; empty if the run did not resume
    end: dict[str, Any]  # the loop's seconds and the held-out loss; empty if it was killed


def start(root: Path, mesh: tuple[int, int], *, every: int, steps: int) -> subprocess.Popen[str]:
    """Start or resume a run, on a mesh of virtual devices."""
    flags = f"--xla_force_host_platform_device_count={mesh[0] * mesh[1]}"
    numbers = [str(number) for number in (*mesh, every, steps)]
    return subprocess.Popen(
        [sys.executable, "-m", "demo.training", str(root), *numbers],
        cwd=REPOSITORY,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    )


def read_output(child: subprocess.Popen[str], *, killed: bool = False) -> RunOutput:
    """Read the output of a run until it ends. Exit unless it ends as expected."""
    output = RunOutput({}, [], {}, {})
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            fields = json.loads(line)
            if "step" in fields:
                output.losses[fields["step"]] = fields["loss"]
            elif "saved" in fields:
                output.saves.append(fields["saved"])
            elif "restored" in fields:
                output.restored.update(fields)
            else:
                output.end.update(fields)
    expected = -signal.SIGKILL if killed else 0
    if child.returncode != expected:
        raise SystemExit(f"the training run ended with {child.returncode}, not {expected}")
    return output


def require_links(output: RunOutput) -> None:
    """Exit unless every save but the first linked the frozen leaves instead of writing them."""
    if len(output.saves) < 2:
        raise SystemExit(f"expected two saves or more, found {len(output.saves)}")
    for save in output.saves[1:]:
        if save["linked_bytes"] <= 0:
            raise SystemExit(f"the save of step {save['step']} linked nothing")


def kill_in_a_save(child: subprocess.Popen[str], root: Path, steps: Sequence[int]) -> int:
    """Kill the process (SIGKILL) while it saves one of these steps; return the step.

    At that time data files exist, but the index does not. The process is stopped before the second
    check for the index, so the save cannot end between check and kill. If the save had already
    ended, the process continues, and the next save is awaited.
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
