"""The keys that the processes of a job share: of one process, and of fake ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cordwood.engine.hosts import Hosts, current
from cordwood.testing.processes import run_processes


def deletes_what_is_meant(hosts: Hosts) -> None:
    """Also asked of jax's own store, by tests/processes."""
    for key in ("say/6", "say/64", "say/7/x", "heard/1"):
        hosts.put(f"r/{key}", b"1")
    hosts.delete("r/say/6")
    assert hosts.list("r/say/") == {"64": b"1", "7/x": b"1"}
    hosts.delete("r/say/")
    assert hosts.list("r/") == {"heard/1": b"1"}
    hosts.delete("r/")
    assert hosts.list("r/") == {}


def alone(work: Callable[[Hosts], None]) -> None:
    work(current())


def faked(work: Callable[[Hosts], None]) -> None:
    (outcome,) = run_processes(1, work)
    assert outcome.error is None


@pytest.mark.parametrize("run", [alone, faked])
def test_only_what_is_meant_is_deleted(run: Callable[[Callable[[Hosts], None]], None]) -> None:
    run(deletes_what_is_meant)
