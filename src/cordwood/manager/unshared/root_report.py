"""The values that processes with roots of their own send to each other when they meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from cordwood.plan.recovery.complete_steps import CompleteStep, IncompleteStep
from cordwood.plan.recovery.position_runs import runs_from_numbers, runs_to_numbers
from cordwood.plan.recovery.step_inventory import (
    StepInventory,
    decode_inventory,
    encode_inventory,
)


class PeerRoot(NamedTuple):
    """A process of the job: its root, and the server of what lies there.

    Attributes:
        root: the path of its root, for messages.
        host: the name of its machine.
        address: of its server, "host:port".
        token: of its server; it is in no message.
        probe: the name of the probe in its root.
        index_sizes: of each step in its root, by number.
    """

    root: str
    host: str
    address: str
    token: str
    probe: str
    index_sizes: Mapping[int, int]

    def __repr__(self) -> str:
        return f"PeerRoot({self.root!r}, {self.host!r}, {self.address!r})"


class RootReport(NamedTuple):
    """A process and the steps in its root."""

    peer: PeerRoot
    steps: Sequence[StepInventory]

    def encode(self) -> list[Any]:
        """Return the report as JSON values."""
        return [_encode_peer(self.peer), encode_inventory(self.steps)]

    @classmethod
    def decode(cls, values: Sequence[Any]) -> Self:
        """Return the report that `encode` was called of."""
        peer, steps = values
        return cls(_decode_peer(peer), decode_inventory(steps))


class RunSurvey(NamedTuple):
    """The processes of the job, and the steps that they hold together; the same on all of them.

    Attributes:
        peers: the processes.
        complete: the steps of which every file is somewhere.
        incomplete: the other steps.
    """

    peers: Sequence[PeerRoot]
    complete: Sequence[CompleteStep]
    incomplete: Sequence[IncompleteStep]

    def encode(self) -> list[Any]:
        """Return the survey as JSON values."""
        return [
            list(map(_encode_peer, self.peers)),
            [
                [
                    *each[:4],
                    each.is_mirrored,
                    [[process, *runs_to_numbers(runs)] for process, runs in each.files.items()],
                ]
                for each in self.complete
            ],
            [
                [*each[:3], runs_to_numbers(each.missing), list(each.processes)]
                for each in self.incomplete
            ],
        ]

    @classmethod
    def decode(cls, values: Sequence[Any]) -> Self:
        """Return the survey that `encode` was called of."""
        peers, complete, incomplete = values
        return cls(
            list(map(_decode_peer, peers)),
            [
                CompleteStep(
                    step,
                    save,
                    saved_at,
                    file_count,
                    {process: runs_from_numbers(numbers) for process, *numbers in files},
                    is_mirrored,
                )
                for step, save, saved_at, file_count, is_mirrored, files in complete
            ],
            [
                IncompleteStep(step, save, count, runs_from_numbers(missing), tuple(processes))
                for step, save, count, missing, processes in incomplete
            ],
        )


def _encode_peer(peer: PeerRoot) -> list[Any]:
    *texts, index_sizes = peer
    return [*texts, list(index_sizes.items())]


def _decode_peer(values: Sequence[Any]) -> PeerRoot:
    root, host, address, token, probe, index_sizes = values
    return PeerRoot(root, host, address, token, probe, dict(map(tuple, index_sizes)))
