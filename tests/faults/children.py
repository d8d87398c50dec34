"""Child processes that save: `python -m tests.faults.children TASK`, JSON on stdin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.faults.scenario import Scenario, bind_trees, run_save

# Names that a saving child tries to open around its save, for who reads its system calls.
BEGIN = "cordwood-save-begins"
END = "cordwood-save-ends"


def start_child(
    task: str, scenario: Scenario, options: Mapping[str, Any], *, under: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a child, maybe under another command; its stdin stays open."""
    child = subprocess.Popen(
        [*under, sys.executable, "-m", "tests.faults.children", task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it ended already: the caller reads its status
        child.stdin.write(json.dumps({**options, "scenario": scenario}) + "\n")
        child.stdin.flush()
    return child


def run_child(task: str, scenario: Scenario, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a child to its end; what it answered. Raises RuntimeError with its stderr."""
    child = start_child(task, scenario, options)
    out, err = child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the {task} child ended with {child.returncode}:\n{err}")
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _main(task: str) -> None:
    asked = json.loads(sys.stdin.readline())
    scenario = Scenario(*asked["scenario"])
    if task == "kill":
        from tests.faults.calls import fork_kills

        print(json.dumps({"statuses": fork_kills(scenario, asked["places"], torn=asked["torn"])}))
        return
    names = bind_trees(scenario)
    _mark(BEGIN)
    run_save(scenario, names, asked["path"], asked["which"])
    _mark(END)
    print(json.dumps({"saved": asked["which"]}), flush=True)
    if asked.get("linger"):
        sys.stdin.read()  # until the parent has seen what it wants to see


def _mark(name: str) -> None:
    with suppress(FileNotFoundError):
        os.close(os.open(f"/{name}", os.O_RDONLY))


if __name__ == "__main__":
    _main(sys.argv[1])
