"""One save by all processes: begun together, written by each, committed by process 0.

Round 0: everybody is here. 1: process 0 says which save it is, and leaves a mark that the others
look for. 2: they hold the same tree. 3: what each has written is there, and process 0 commits.
Until then nothing that anybody reads has changed; a failure before leaves what was there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from cordwood.errors import ProcessError
from cordwood.index import LeafSpec
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprint import require_agreement

MARK_SECONDS = 40.0  # how long a network file system may not know what another machine has made


class Place(Protocol):
    """Where a save goes; see `cordwood.storage.storage_protocol.Transaction`."""

    def create_probe(self) -> str: ...

    def sees_probe(self, mark: str, *, timeout_seconds: float) -> bool: ...


def save_together(
    rendezvous: Rendezvous,
    place: Place,
    *,
    where: str,
    save_id: str,
    tell: Callable[[], str],
    prints: Callable[[], Sequence[bytes]],
    specs: Sequence[LeafSpec],
    write: Callable[[str, str], bytes],
    commit: Callable[[str, list[bytes]], None],
) -> None:
    """Save, as one of the processes of a rendezvous; also of a rendezvous of one.

    Args:
        rendezvous: entered; an exception must leave it, so that the others hear of it.
        place: this process's view of where the save goes.
        where: its path, for errors.
        save_id: 16 hexadecimal digits of no other save; process 0's is everybody's.
        tell: asked on process 0 once everybody is here; the word that it says goes to every
            `write`.
        prints: this process's `fingerprints`; asked for where there are others.
        specs: the leaves.
        write: writes this process's part, given the id of the save and what `tell` said. What
            it returns goes to `commit`.
        commit: called on process 0 with the id and what `write` returned on each process.

    Raises ProcessError, on all processes but the one that failed, if any did: nothing is committed.
    """

    def begin(_: list[bytes]) -> bytes:
        mark = place.create_probe() if rendezvous.count > 1 else ""
        return f"{save_id} {socket.gethostname()} {tell()} {mark}".encode()

    common_id, host, told, mark = rendezvous.exchange(b"", begin).decode().split(" ", 3)
    if rendezvous.count > 1:
        if rendezvous.index > 0 and not place.sees_probe(mark, timeout_seconds=MARK_SECONDS):
            raise ProcessError(
                f"{where} is not one directory for all processes: process {rendezvous.index} (on "
                f"{socket.gethostname()}) does not see {mark}, which process 0 (on {host}) has "
                "just made there; save to a file system that all of them share"
            )
        require_agreement(rendezvous, prints(), specs)

    def decide(reports: list[bytes]) -> bytes:
        commit(common_id, reports)
        return b""

    rendezvous.exchange(write(common_id, told), decide)
