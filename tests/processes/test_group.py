"""Groups of real processes, and their rendezvous over jax's coordination service."""

from __future__ import annotations

from tests.processes.group import DEVICES_EACH, Group


def test_processes_are_one_job_and_meet() -> None:
    with Group(4) as group:
        assert group.run("scenarios.devices") == [(i, 4, 4 * DEVICES_EACH) for i in range(4)]
        expected = [f"0.{i},1.{i},2.{i},3.{i}" for i in range(20)]
        assert group.run("scenarios.meet", rounds=20) == [expected] * 4
        assert group.run("scenarios.meet", rounds=2) == [expected[:2]] * 4
        group.run("scenarios.delete_keys")
