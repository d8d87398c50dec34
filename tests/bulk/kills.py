"""Copies whose workers and whose driver are killed; each run of a task is written to a log.

`python -m tests.bulk.kills SOURCE DESTINATION LOG` is the driver: a copy by two worker processes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.bulk.worker_processes import WorkerProcesses
from tests.threads import until

WORKERS = 2


class LoggingProcesses(WorkerProcesses):
    """Worker processes that write the beginning and the end of each task to a log."""

    def __init__(self, log: str) -> None:
        super().__init__(WORKERS)
        self._log = log

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return super().submit(_logged, self._log, function, *arguments, **named)


def _logged(log: str, function: Callable[..., Any], task: Any, *arguments: Any) -> Any:
    name = task.files[0][0]
    _write(log, f"begin {name} {os.getpid()}")
    result = function(task, *arguments)
    _write(log, f"end {name} {os.getpid()}")
    return result


def _write(log: str, line: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


class Kills(NamedTuple):
    """The kills that copies survived, and the runs of their tasks."""

    workers: int
    drivers: int
    copies: int
    tasks: int  # of all copies
    runs: int  # of tasks that began
    repeated: int  # of tasks that had ended


def kill_copies(
    source: Path, folder: Path, kills: int, seed: int, check: Callable[[Path], None]
) -> Kills:
    """Kill workers and drivers of copies, each of which then ends; return the counts.

    Args:
        source: the checkpoint, with one data file for each task.
        folder: a directory for the copies and logs.
        kills: the number of kills.
        seed: of the choice of processes and moments.
        check: called with each copy.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    files = len(list(source.glob("*.safetensors")))
    copies = runs = repeated = 0
    while sum(counts.values()) < kills:
        destination, log = folder / str(copies), folder / f"{copies}.log"
        log.touch()
        while True:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.bulk.kills", source, destination, log]
            )
            while sum(counts.values()) < kills:
                _wait_for_lines(log, len(_lines(log)) + rng.randrange(2, 8), driver)
                if driver.poll() is not None:
                    break
                victim = rng.choice(("workers", "drivers"))
                # A process that has just ended is no kill; its number is not yet another's.
                process = driver.pid if victim == "drivers" else int(_lines(log)[-1][2])
                if victim == "workers" and not _is_alive(process):
                    continue
                os.kill(process, signal.SIGKILL)
                counts[victim] += 1
                if victim == "drivers":
                    break
            code = driver.wait()
            assert code in (0, -signal.SIGKILL), code
            if code == 0:
                break
        check(destination)
        lines = _lines(log)
        begun = Counter(name for what, name, _ in lines if what == "begin")
        assert len(begun) == files
        runs += begun.total()
        ended: set[str] = set()
        for what, name, _ in lines:
            if what == "end":
                ended.add(name)
            repeated += name in ended and what == "begin"
        copies += 1
    return Kills(counts["workers"], counts["drivers"], copies, copies * files, runs, repeated)


def _wait_for_lines(log: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    until(lambda: len(_lines(log)) >= count or driver.poll() is not None)


def _lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


def _is_alive(process: int) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return b"spawn_main" in command


def _drive(source: str, destination: str, log: str) -> None:
    import cordwood
    from cordwood.bulk.task_size import task_size

    with task_size(1), LoggingProcesses(log) as executor:
        cordwood.copy(source, destination, executor=executor)


if __name__ == "__main__":
    _drive(*sys.argv[1:])
