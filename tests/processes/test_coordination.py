"""The keys that the processes of a job share: of one process, and of fake ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from cordwood.processes.key_value_store import SINGLE_PROCESS, Processes, current_processes
from tests.processes.fake_processes import run_processes
from tests.processes.scenarios import deletes_what_is_meant


def alone(work: Callable[[Processes], None]) -> None:
    work(current_processes())


def faked(work: Callable[[Processes], None]) -> None:
    (outcome,) = run_processes(1, work)
    assert outcome.error is None


@pytest.mark.parametrize("run", [alone, faked])
def test_only_what_is_meant_is_deleted(run: Callable[[Callable[[Processes], None]], None]) -> None:
    run(deletes_what_is_meant)


def test_while_another_thread_imports_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no job of several processes before jax is imported whole."""
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert current_processes() is SINGLE_PROCESS
