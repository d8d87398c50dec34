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

# Names that a child tries to open before and after its save, as marks in the log of strace.
BEGIN = "cordwood-save-begins"
END = "cordwood-save-ends"


def start_child(
    task: str, scenario: Scenario, options: Mapping[str, Any], *, under: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a child, optionally as the argument of another command; its stdin stays open."""
    child = subprocess.Popen(
        [*under, sys.executable, "-m", "tests.faults.children", task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already; the caller reads its status
        child.stdin.write(json.dumps({**options, "scenario": scenario}) + "\n")
        child.stdin.flush()
    return child


def run_child(task: str, scenario: Scenario, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a child to its end and return its answer. Raises RuntimeError with its stderr."""
    child = start_child(task, scenario, options)
    out, err = child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the {task} child ended with {child.returncode}:\n{err}")
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _main(task: str) -> None:
    request = json.loads(sys.stdin.readline())
    scenario = Scenario(*request["scenario"])
    if task == "kill":
        from tests.faults.calls import fork_kills

        del request["scenario"]
        print(json.dumps({"statuses": fork_kills(scenario, **request)}))
        return
    names = bind_trees(scenario)
    _mark(BEGIN)
    run_save(scenario, names, request["path"], request["which"])
    _mark(END)
    print(json.dumps({"saved": request["which"]}), flush=True)
    if request.get("linger"):
        sys.stdin.read()  # until the parent has copied the disk and closes the pipe


def _mark(name: str) -> None:
    with suppress(FileNotFoundError):
        os.close(os.open(f"/{name}", os.O_RDONLY))


if __name__ == "__main__":
    _main(sys.argv[1])
