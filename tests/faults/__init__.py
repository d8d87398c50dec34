"""Break a save in every way a machine can, then tell what loads.

    scenario = Scenario("m.safetensors", trees=..., save=..., load=...)
    for outcome in fail_calls(scenario, folder, errno.ENOSPC):
        assert outcome.kept_a_tree, outcome

- `fail_calls`: the Nth call of the save fails, for every N, in this process.
- `kill_calls`: the process ends at its Nth call, for every N, in a child.
- `strace_kills`: SIGKILL at the Nth system call, from outside, for a sample of N.
- `cut_power`: the disk as it was the moment save returned, and seconds later, mounted again.
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
