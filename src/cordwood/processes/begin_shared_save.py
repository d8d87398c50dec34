"""The beginning of a save by all processes, of which each writes its part.

A save is a rendezvous of four rounds:

    0  All processes have arrived.
    1  Process 0 sends the id of the save, and creates a probe file that the others look for; not
       where each process has a directory of its own.
    2  The processes compare fingerprints of their trees. The error names what differs.
    3  All parts are written, and process 0 commits, or each process its own directory.

Before the commit nothing changes that a reader sees: a failure leaves the old checkpoint.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from cordwood.errors import ProcessError
from cordwood.index import LeafSpec
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprints import require_agreement

PROBE_SECONDS = 40.0  # how long a network file system may hide what another machine has created


class SaveDestination(Protocol):
    """The directory of a save; see `cordwood.storage.storage_protocol.Transaction`."""

    def create_probe(self) -> str: ...

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool: ...


def begin_shared_save(
    rendezvous: Rendezvous,
    destination: SaveDestination,
    *,
    path: str,
    fingerprints: Callable[[], Sequence[bytes]],
    specs: Sequence[LeafSpec],
    save_id: str = "",
    base: str = "",
    is_one_directory: bool = True,
) -> tuple[str, str]:
    """Begin a save as one of the processes of a rendezvous, which may have one process only.

    The caller then writes its part, and ends the save by `rendezvous.exchange(report, commit)`.

    Args:
        rendezvous: it has been entered; an exception of this call must leave it, so that the other
            processes are informed.
        destination: the directory of the save, as this process sees it.
        path: the path of the save, for errors.
        fingerprints: returns the `fingerprints` of this process; called if there are others.
        specs: the leaves.
        save_id: 16 hexadecimal digits that no other save has; all processes use that of process 0.
        base: the name of the checkpoint whose files may be linked, or "".
        is_one_directory: False if each process writes to a directory of its own.

    Returns:
        The id of the save and its base, those of process 0.

    Raises ProcessError on every process if another one fails, or holds another tree. On the
    process that fails, its own exception passes through.
    """

    def begin(_: list[None]) -> tuple[str, str, str, str]:
        probe = destination.create_probe() if rendezvous.count > 1 and is_one_directory else ""
        return save_id, socket.gethostname(), base, probe

    common_id, host, common_base, probe = rendezvous.exchange(None, begin)
    if rendezvous.count > 1:
        limit = PROBE_SECONDS
        is_to_look = rendezvous.index > 0 and is_one_directory
        if is_to_look and not destination.sees_probe(probe, timeout_seconds=limit):
            raise ProcessError(
                f"{path} is not one directory for all processes: process {rendezvous.index} (on "
                f"{socket.gethostname()}) does not see {probe}, which process 0 (on {host}) has "
                "just made there; save to a file system that all of them share, or, with a "
                "CheckpointManager, into a root for each process: shared=False"
            )
        require_agreement(rendezvous, fingerprints(), specs)
    return common_id, common_base
