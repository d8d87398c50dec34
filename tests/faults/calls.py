"""Failures and exits at every system call that a save makes."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator

from cordwood.storage import syscalls
from tests.faults.children import run_child
from tests.faults.scenario import Outcome, Scenario, bind_trees, judge, run_save
from tests.faults.systems import (
    FAULT_STATUS,
    CountingSystem,
    ExitingSystem,
    FailingSystem,
)


def calls_of_save(scenario: Scenario, folder: str) -> list[str]:
    """Return the names of the calls that saving the new tree over the old one makes, in order."""
    names = bind_trees(scenario)
    path = os.path.join(_fresh(folder, "count"), scenario.name)
    run_save(scenario, names, path, "old")
    counting = CountingSystem()
    with syscalls.override(counting):
        run_save(scenario, names, path, "new")
    return counting.made


def fail_calls(
    scenario: Scenario, folder: str, code: int, *, lasting: bool = False
) -> Iterator[Outcome]:
    """Save in this process while the Nth call fails with errno `code`, for every N."""
    names = bind_trees(scenario)
    template = fresh_template(scenario, folder)
    for number, call in enumerate(calls_of_save(scenario, folder), start=1):
        place = with_old(scenario, folder, f"fail-{code}-{number}", template)
        error: BaseException | None = None
        with syscalls.override(FailingSystem(number, code, lasting=lasting)):
            try:
                run_save(scenario, names, os.path.join(place, scenario.name), "new")
            except Exception as e:  # noqa: BLE001  (reported in the outcome)
                error = e
        fault = f"{call}, call {number}, fails with {os.strerror(code)}"
        yield judge(scenario, place, fault=fault, returned=error is None, error=error)
        shutil.rmtree(place)


def kill_calls(scenario: Scenario, folder: str, *, torn: bool = False) -> Iterator[Outcome]:
    """Save in a process that exits at its Nth call, for every N. One child forks them all."""
    calls = calls_of_save(scenario, folder)
    template = fresh_template(scenario, folder)
    places = [
        with_old(scenario, folder, f"kill-{number}", template)
        for number in range(1, len(calls) + 1)
    ]
    modules = sorted(name for name in sys.modules if name.startswith("cordwood."))
    options = {"places": places, "torn": torn, "modules": modules}
    ended = run_child("kill", scenario, options)
    for number, (call, place, status) in enumerate(
        zip(calls, places, ended["statuses"], strict=True), start=1
    ):
        if status not in (0, FAULT_STATUS):
            raise RuntimeError(
                f"expected a child to exit at call {number}, found exit status {status}"
            )
        fault = f"killed at {call}, call {number}{', torn' if torn else ''}"
        yield judge(scenario, place, fault=fault, returned=status == 0)
        shutil.rmtree(place)


def fork_kills(
    scenario: Scenario, places: list[str], *, torn: bool, modules: list[str]
) -> list[int]:
    """Fork once for each place, in the child process; the forks exit at call 1, 2, 3 and so on.

    `modules` are imported before, once, or else each fork would import what its save needs.
    """
    names = bind_trees(scenario)
    for name in modules:
        importlib.import_module(name)
    if "jax" in sys.modules:
        raise RuntimeError("the scenario imports jax, whose threads do not survive a fork")
    statuses: list[int] = []
    for number, place in enumerate(places, start=1):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                with syscalls.override(ExitingSystem(number, torn=torn)):
                    run_save(scenario, names, os.path.join(place, scenario.name), "new")
                os._exit(0)
            finally:
                os._exit(1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return statuses


def fresh_template(scenario: Scenario, folder: str) -> str:
    """Make a directory with the saved old tree, to copy from."""
    place = _fresh(folder, "template")
    run_save(scenario, bind_trees(scenario), os.path.join(place, scenario.name), "old")
    return place


def with_old(scenario: Scenario, folder: str, name: str, template: str) -> str:
    """Make a directory that holds a copy of the saved old tree only."""
    place = _fresh(folder, name)
    source, target = (os.path.join(folder, scenario.name) for folder in (template, place))
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copyfile(source, target)
    return place


def _fresh(folder: str, name: str) -> str:
    place = os.path.join(folder, name)
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    return place
