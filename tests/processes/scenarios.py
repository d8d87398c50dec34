"""What the processes of a group do; every function is called by all of them at once."""

from __future__ import annotations

import jax

from cordwood.engine.hosts import JaxHosts, current
from cordwood.engine.meeting import Meeting


def devices() -> tuple[int, int, int]:
    return jax.process_index(), jax.process_count(), len(jax.devices())


def meet(rounds: int) -> list[bytes]:
    hosts = current()
    assert isinstance(hosts, JaxHosts)
    with Meeting(hosts, "test", timeout_seconds=20, silence_seconds=20) as meeting:
        return [
            meeting.round(f"{hosts.index}.{i}".encode(), lambda values: b",".join(values))
            for i in range(rounds)
        ]
