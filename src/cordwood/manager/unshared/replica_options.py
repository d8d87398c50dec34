"""The arguments of a manager about replicas, as one value."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple


class ReplicaOptions(NamedTuple):
    """The arguments of a manager about replicas.

    Attributes:
        replicas: how many other processes hold each file.
        failure_domain: returns the failure domain of a process by its number; None: its host.
        replica_bytes: the most bytes of other processes' files in one root; None: no limit.
    """

    replicas: int
    failure_domain: Callable[[int], Hashable] | None
    replica_bytes: int | None


def checked_replicas(
    replicas: int,
    failure_domain: Callable[[int], Hashable] | None,
    replica_bytes: int | None,
    *,
    shared: bool,
) -> ReplicaOptions:
    """Return the arguments as one value. Raises ValueError if one is wrong, or has no effect."""
    if type(replicas) is not int or replicas < 0:
        raise ValueError(f"replicas: expected an int of 0 or more, found {replicas!r:.80}")
    if shared and replicas:
        raise ValueError(
            "replicas= is for roots that processes do not share: pass shared=False too, and a root "
            "of its own to each process"
        )
    if replica_bytes is not None and (type(replica_bytes) is not int or replica_bytes < 0):
        raise ValueError(
            f"replica_bytes: expected an int of 0 or more, or None, found {replica_bytes!r:.80}"
        )
    if not replicas and (failure_domain is not None or replica_bytes is not None):
        raise ValueError("failure_domain= and replica_bytes= have no effect without replicas=")
    return ReplicaOptions(replicas, failure_domain, replica_bytes)
