"""A step in the root of another process, which that process serves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class PeerLimits(NamedTuple):
    """The patience of readers with a peer.

    A read takes at most `connect_seconds`, `stall_seconds`, and the time of its bytes at
    `bytes_per_second`.

    Attributes:
        connect_seconds: the longest wait for a connection.
        stall_seconds: the longest wait for a byte.
        bytes_per_second: a peer that sends less is given up.
        busy_seconds: the longest wait for a peer that has too many connections.
    """

    connect_seconds: float = 5.0
    stall_seconds: float = 10.0
    bytes_per_second: float = 1 << 20
    busy_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class PeerStep:
    """A step, or another directory of packs, at a peer.

    Attributes:
        address: of the server, "host:port".
        token: the token of the job, which is in no message.
        entry: the path of the step below the root of the peer.
        name: of the peer, in messages, such as "process 3".
        limits: the patience of readers.
    """

    address: str
    token: str = field(repr=False)
    entry: str
    name: str = field(default="", compare=False)
    limits: PeerLimits = field(default=PeerLimits(), compare=False, repr=False)

    def __str__(self) -> str:
        url = f"http://{self.address}/{self.entry}"
        return f"{self.name} ({url})" if self.name else url
