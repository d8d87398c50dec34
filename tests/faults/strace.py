"""Kills of a saving child process at a system call, by the fault injection of strace."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.faults.calls import fresh_template, with_old
from tests.faults.children import BEGIN, END, start_child
from tests.faults.scenario import Outcome, Scenario, judge

SYSCALLS = (
    "openat",
    "fallocate",
    "pwrite64",
    "fsync",
    "rename",
    "renameat",
    "renameat2",
    "linkat",
    "mkdir",
    "flock",
    "unlink",
    "rmdir",
)
_LINE = re.compile(r"(\d+) +(\w+)\(")


def why_no_strace() -> str | None:
    """Return the reason why `strace_kills` cannot run on this machine, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    result = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    if result.returncode != 0:
        return f"strace may not trace: {result.stderr.decode().strip()}"
    return None


def strace_kills(
    scenario: Scenario, folder: str, *, sample: int, seed: int = 0
) -> Iterator[Outcome]:
    """Kill a save with SIGKILL at the Nth call of a kind, for a sample of the calls of one save.

    The sample has `sample` calls. It takes them from each kind in turn.
    """
    template = fresh_template(scenario, folder)
    points = _points(scenario, folder, template)
    random.Random(seed).shuffle(points)
    turn: Counter[str] = Counter()
    turns: list[tuple[int, str, int]] = []
    for syscall, number in points:
        turn[syscall] += 1
        turns.append((turn[syscall], syscall, number))
    chosen = [(syscall, number) for _, syscall, number in sorted(turns)[:sample]]
    for syscall, number in sorted(chosen):
        place = with_old(scenario, folder, f"{syscall}-{number}", template)
        inject = f"inject={syscall}:signal=SIGKILL:when={number}"
        status = _save_under(scenario, place, ["-e", f"trace={syscall}", "-e", inject])
        fault = f"SIGKILL at {syscall}, call {number}"
        yield judge(scenario, place, fault=fault, returned=status == 0)
        shutil.rmtree(place)


def _points(scenario: Scenario, folder: str, template: str) -> list[tuple[str, int]]:
    """Return (syscall, N) for the calls within the save. strace counts N per thread.

    Calls that open files count only in the directory of the save: the others import modules.
    """
    log = os.path.join(folder, "strace.log")
    place = with_old(scenario, folder, "trace", template)
    traced = ",".join(f"?{name}" for name in SYSCALLS)
    status = _save_under(scenario, place, ["-o", log, "-e", f"trace={traced}"])
    if status != 0:
        raise RuntimeError(f"a traced save ended with {status}")
    seen: Counter[tuple[str, str]] = Counter()
    before: Counter[str] = Counter()
    points: set[tuple[str, int]] = set()
    saving = False
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                continue
            thread, syscall = match.groups()
            seen[thread, syscall] += 1
            number = seen[thread, syscall]
            if BEGIN in line:
                saving = True
                before = Counter({name: count for (_, name), count in seen.items()})
            elif END in line:
                saving = False
            elif saving and number > before[syscall] and (syscall != "openat" or place in line):
                points.add((syscall, number))
    return sorted(points)


def _save_under(scenario: Scenario, place: str, options: Sequence[str]) -> int:
    path = os.path.join(place, scenario.name)
    log = () if "-o" in options else ("-o", os.devnull)
    command = ["strace", "-f", "-qq", *log, *options]
    child = start_child("save", scenario, {"path": path, "which": "new"}, under=command)
    child.communicate()
    return child.returncode
