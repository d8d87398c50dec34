"""Fault injection: break a save in every way that a machine can, then check what loads.

    scenario = Scenario("m.safetensors", trees=..., save=..., load=...)
    for outcome in fail_calls(scenario, folder, errno.ENOSPC):
        assert outcome.kept_a_tree, outcome

- `fail_calls`: the Nth call of the save fails, for every N, in this process.
- `kill_calls`: the process exits at its Nth call, for every N, in a child process.
- `strace_kills`: strace sends SIGKILL at the Nth system call, for a sample of N.
- `cut_power`: mount copies of the disk that were made when save returned, and seconds later.
"""

from __future__ import annotations

from tests.faults.calls import fail_calls, kill_calls
from tests.faults.disks import why_no_power_cuts
from tests.faults.power import cut_power
from tests.faults.scenario import Outcome, Scenario
from tests.faults.strace import strace_kills, why_no_strace

__all__ = [
    "Outcome",
    "Scenario",
    "cut_power",
    "fail_calls",
    "kill_calls",
    "strace_kills",
    "why_no_power_cuts",
    "why_no_strace",
]
