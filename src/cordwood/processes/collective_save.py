"""One save by all processes of a job: each writes its part, and process 0 commits.

The rendezvous has four rounds:

    0  All processes have arrived.
    1  Process 0 sends the id of the save, and creates a probe file that the others look for.
    2  The processes compare their trees.
    3  All parts are written, and process 0 commits.

Before the commit nothing changes that a reader sees: a failure leaves the old checkpoint.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from cordwood.errors import ProcessError
from cordwood.index import LeafSpec
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprint import require_agreement

_Report = TypeVar("_Report")

PROBE_SECONDS = 40.0  # how long a network file system may hide what another machine has created


class SaveDestination(Protocol):
    """The directory of a save; see `cordwood.storage.storage_protocol.Transaction`."""

    def create_probe(self) -> str: ...

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool: ...


def save_together(
    rendezvous: Rendezvous,
    destination: SaveDestination,
    *,
    path: str,
    save_id: str,
    choose_base: Callable[[], str],
    fingerprints: Callable[[], Sequence[bytes]],
    specs: Sequence[LeafSpec],
    write: Callable[[str, str], _Report],
    commit: Callable[[str, list[_Report]], None],
) -> None:
    """Save as one of the processes of a rendezvous, which may have one process only.

    Args:
        rendezvous: it has been entered; an exception of this call must leave it, so that the other
            processes are informed.
        destination: the directory of the save, as this process sees it.
        path: the path of the save, for errors.
        save_id: 16 hexadecimal digits that no other save has; all processes use that of process 0.
        choose_base: called on process 0 when all processes have arrived; returns the name of the
            checkpoint whose files may be linked, or "". It goes to every `write`.
        fingerprints: returns the `fingerprints` of this process; called if there are others.
        specs: the leaves.
        write: writes the part of this process, given the id of the save and what `choose_base`
            returned. Its result, a JSON value, goes to `commit`.
        commit: called on process 0 with the id and what `write` returned on each process.

    Raises ProcessError on every process if another one fails; then nothing is committed. On the
    process that fails, its own exception passes through.
    """

    def begin(_: list[None]) -> tuple[str, str, str, str]:
        probe = destination.create_probe() if rendezvous.count > 1 else ""
        return save_id, socket.gethostname(), choose_base(), probe

    common_id, host, base, probe = rendezvous.exchange(None, begin)
    if rendezvous.count > 1:
        limit = PROBE_SECONDS
        if rendezvous.index > 0 and not destination.sees_probe(probe, timeout_seconds=limit):
            raise ProcessError(
                f"{path} is not one directory for all processes: process {rendezvous.index} (on "
                f"{socket.gethostname()}) does not see {probe}, which process 0 (on {host}) has "
                "just made there; save to a file system that all of them share"
            )
        require_agreement(rendezvous, fingerprints(), specs)

    rendezvous.exchange(write(common_id, base), lambda reports: commit(common_id, reports))
