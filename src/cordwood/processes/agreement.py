"""Agreement of the processes of a job: on the tree of a save, and on what process 0 decides.

A save by all processes, of which each writes its part, is a rendezvous of four rounds:

    0  All processes have arrived.
    1  Process 0 sends the id of the save, and creates a probe file that the others look for.
    2  The processes compare fingerprints of their trees. The error names what differs.
    3  All parts are written, and process 0 commits.

Before the commit nothing changes that a reader sees: a failure leaves the old checkpoint.

Leaves that jax spreads over processes must be spread in the same way on all processes. Any other
leaf, which each process holds by itself (numpy arrays, Python values, arrays on its own devices),
must have the same value on all processes: that of process 0 is saved.

One file, because the callers of both, a save and a manager, need no other module of this room.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from cordwood.encoding.cordwood_metadata import digest_of
from cordwood.errors import ProcessError
from cordwood.index import LeafSpec, Structure
from cordwood.io.progress import WaitLogger
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines
from cordwood.processes.join_rendezvous import WAKE_SECONDS, process_names
from cordwood.processes.rendezvous import Processes, Rendezvous, current_processes
from cordwood.sharding.boxes import ShardGrid

if TYPE_CHECKING:
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.tree.flatten import DescribedTree


PROBE_SECONDS = 40.0  # how long a network file system may hide what another machine has created
_HALF_BYTES = 8  # one half is a digest of the type of a leaf, the other half of its value
_FINGERPRINT_BYTES = 2 * _HALF_BYTES
_MAX_EXPLAINED = 64  # processes whose differences are listed
_MAX_LINES = 20
_CLEAR_EVERY = 64  # decisions

_Answer = TypeVar("_Answer")


class SaveDestination(Protocol):
    """The directory of a save; see `cordwood.storage.storage_protocol.Transaction`."""

    def create_probe(self) -> str: ...

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool: ...


def begin_together(
    rendezvous: Rendezvous,
    destination: SaveDestination,
    *,
    path: str,
    fingerprints: Callable[[], Sequence[bytes]],
    specs: Sequence[LeafSpec],
    save_id: str = "",
    base: str = "",
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

    Returns:
        The id of the save and its base, those of process 0.

    Raises ProcessError on every process if another one fails, or holds another tree. On the
    process that fails, its own exception passes through.
    """

    def begin(_: list[None]) -> tuple[str, str, str, str]:
        probe = destination.create_probe() if rendezvous.count > 1 else ""
        return save_id, socket.gethostname(), base, probe

    common_id, host, common_base, probe = rendezvous.exchange(None, begin)
    if rendezvous.count > 1:
        limit = PROBE_SECONDS
        if rendezvous.index > 0 and not destination.sees_probe(probe, timeout_seconds=limit):
            raise ProcessError(
                f"{path} is not one directory for all processes: process {rendezvous.index} (on "
                f"{socket.gethostname()}) does not see {probe}, which process 0 (on {host}) has "
                "just made there; save to a file system that all of them share"
            )
        require_agreement(rendezvous, fingerprints(), specs)
    return common_id, common_base


def fingerprints(
    structure: Structure,
    specs: Sequence[LeafSpec],
    shards: Sequence[ShardGrid],
    local: Mapping[int, bytes],
) -> list[bytes]:
    """Return short fingerprints of what a process holds: of the structure, then of each leaf.

    Args:
        structure: the structure of the tree.
        specs: its leaves.
        shards: how each leaf is spread over processes.
        local: the `digest_of_elements` of each array that this process holds by itself, by leaf.
    """
    shard_digests: dict[int, bytes] = {}  # by identity: equal leaves share their map
    prints = [digest_of(repr(tuple(map(tuple, structure))).encode("utf-8", "surrogatepass"))]
    for leaf, (spec, shard) in enumerate(zip(specs, shards, strict=True)):
        shard_digest = shard_digests.get(id(shard))
        if shard_digest is None:
            shard_digest = shard_digests[id(shard)] = digest_of(repr(tuple(shard)).encode())
        what = repr(tuple(spec._replace(value=None))).encode("utf-8", "surrogatepass")
        value = local.get(leaf) or digest_of(repr(spec.value).encode("utf-8", "surrogatepass"))
        prints.append(digest_of(what + shard_digest)[:_HALF_BYTES] + value[:_HALF_BYTES])
    return prints


def digest_of_elements(array: Any) -> bytes:
    """Return a digest of the elements of an array, or of one that is read for this."""
    elements = np.ascontiguousarray(np.asarray(array)).reshape(-1)
    return digest_of(elements.view(np.uint8).data)


def tree_fingerprints(
    trees: Sequence[DescribedTree], leaves: Leaves, process: int
) -> Sequence[bytes]:
    """Return the `fingerprints` of a tree, or of one tree that holds several trees in this order.

    Args:
        trees: the trees.
        leaves: their leaves, tree by tree. All processes but the first one drop those that each
            process holds for itself, because process 0 writes them.
        process: the number of this process.
    """
    prints: list[list[bytes]] = []
    first_leaf = 0
    for structure, specs, shards, _, local in trees:
        digests = {}
        for leaf in local:
            digests[leaf] = digest_of_elements(leaves.view(first_leaf + leaf))
            if process > 0:
                leaves.drop(first_leaf + leaf)
        prints.append(fingerprints(structure, specs, shards, digests))
        first_leaf += len(specs)
    if len(prints) == 1:
        return prints[0]
    structure_digest = digest_of(b"".join([each[0] for each in prints]))
    return [structure_digest, *[digest for each in prints for digest in each[1:]]]


def require_agreement(
    rendezvous: Rendezvous, prints: Sequence[bytes], specs: Sequence[LeafSpec]
) -> None:
    """Raise ProcessError on all processes unless they hold the same tree.

    This takes one round, and a second one to find out what differs. The error names the leaves
    that differ, and the processes.

    Args:
        rendezvous: of all processes.
        prints: the `fingerprints` of this process.
        specs: its leaves.
    """

    def compare(digests: list[str]) -> list[int]:
        return [process for process, each in enumerate(digests) if each != digests[0]]

    differing = rendezvous.exchange(digest_of(b"".join(prints)).hex(), compare)
    if not differing:
        return

    def explain(values: list[str]) -> None:
        processes_by_difference: dict[tuple[int, str], list[int]] = {}
        for process in differing[:_MAX_EXPLAINED]:
            for leaf, how in _differences(prints, bytes.fromhex(values[process])):
                processes_by_difference.setdefault((leaf, how), []).append(process)
        lines = [
            f"{path_label(specs[leaf].key_path) if leaf >= 0 else 'the tree'}: "
            f"{how} on {process_names(processes)}"
            for (leaf, how), processes in sorted(processes_by_difference.items())
        ]
        raise ProcessError(
            f"{process_names(differing)} would save something else than process 0:\n"
            f"{first_lines(lines, _MAX_LINES)}\nA leaf that each process holds for itself must "
            "be equal on all; what is to differ belongs into one array over all processes "
            "(jax.make_array_from_process_local_data)"
        )

    mine = rendezvous.index in differing[:_MAX_EXPLAINED]
    rendezvous.exchange(b"".join(prints).hex() if mine else "", explain)


def _differences(prints: Sequence[bytes], sent: bytes) -> list[tuple[int, str]]:
    """Return the leaves in which another process differs, and how; -1 stands for the structure.

    Args:
        prints: the fingerprints of process 0.
        sent: the fingerprints of the other process, one after another.
    """
    half = _HALF_BYTES
    starts = range(0, len(sent), _FINGERPRINT_BYTES)
    others = [sent[start : start + _FINGERPRINT_BYTES] for start in starts]
    if others[0] != prints[0]:
        leaf_count = counted(len(others) - 1, "leaf", "leaves")
        return [(-1, f"another structure ({leaf_count}), or dicts in another order,")]
    return [
        (leaf, "another value" if a[:half] == b[:half] else "another type, shape or sharding")
        for leaf, (a, b) in enumerate(zip(prints[1:], others[1:], strict=True))
        if a != b
    ]


class ProcessGroup:
    """This process and the others of its job, or this process alone.

    All processes ask for the same decisions in the same order; one that left some out catches up.

    Args:
        root: the directory of the steps, for errors.
        timeout_seconds: how long a process may be late.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._processes: Processes | None = None  # the processes that use the namespace
        self._namespace: str | None = None  # of the decisions; None: not known yet
        self._number = 0  # of the next decision

    @property
    def index(self) -> int:
        """The number of this process."""
        return current_processes().index

    @property
    def count(self) -> int:
        """The number of processes."""
        return current_processes().count

    def rendezvous(self, what: str, *, timeout_seconds: float | None = None) -> Rendezvous:
        """Return a rendezvous of all processes, not entered yet.

        Args:
            what: its purpose, the same on all processes: "delete step 3 of".
            timeout_seconds: how long a round may take; None: that of this group.
        """
        return Rendezvous(
            current_processes(),
            f"{what} {self._root}",
            timeout_seconds=timeout_seconds or self._timeout_seconds,
            arrival_seconds=self._timeout_seconds,
        )

    def agree(self, what: str, choose: Callable[[], _Answer]) -> _Answer:
        """Return on all processes the JSON value that `choose` returns on process 0.

        Args:
            what: the purpose, as for `rendezvous`.
            choose: called on process 0 only.

        Raises ProcessError if a process does not come; and what `choose` raises, on process 0.
        """
        with self.rendezvous(what) as rendezvous:
            return rendezvous.exchange(None, lambda _: choose())

    def decide(
        self, step: int, ask: Callable[[bool], str | None], *, preempted: bool
    ) -> tuple[bool, str | None]:
        """Return what process 0 decides about a step: True if the job is preempted, and a reason.

        It costs one key of the shared store and no round, so it can be made in every step of a
        loop. Decisions about steps that this process has left out are passed over.

        Args:
            step: the step.
            ask: called on process 0 with True if any process is preempted; returns the reason.
            preempted: True if this process has received SIGTERM.

        Raises ProcessError if process 0 does not come, or has left this step out.
        """
        processes = current_processes()
        if processes.count == 1:
            return preempted, ask(preempted)
        if processes is not self._processes:
            self._processes, self._namespace = processes, None
        if processes.index == 0:
            return self._publish(processes, step, ask, preempted=preempted)
        return self._receive(processes, step, preempted=preempted)

    def restart_decisions(self) -> None:
        """Begin the decisions anew in another namespace; where all processes are together.

        Process 0 calls this before the others do.
        """
        processes, old = current_processes(), self._namespace
        self._processes, self._namespace = processes, None
        if processes.count > 1 and processes.index == 0:
            self._open_namespace(processes)
            if old is not None:
                processes.delete(old)

    def _open_namespace(self, processes: Processes) -> str:
        self._namespace, self._number = f"cordwood/{processes.state.new_namespace()}/", 0
        processes.put(self._key(), self._namespace.encode())
        return self._namespace

    def _key(self) -> str:
        """Return the key that holds the namespace of the decisions about this root."""
        return f"cordwood/decisions/{digest_of(self._root.encode('utf-8', 'surrogatepass')).hex()}"

    def _publish(
        self,
        processes: Processes,
        step: int,
        ask: Callable[[bool], str | None],
        *,
        preempted: bool,
    ) -> tuple[bool, str | None]:
        """Make a decision on process 0, and put it into the store."""
        namespace = self._namespace or self._open_namespace(processes)
        number, self._number = self._number, self._number + 1
        preempted = preempted or bool(processes.list(f"{namespace}preempted/"))
        reason = ask(preempted)
        message = json.dumps([step, preempted, reason]).encode()
        processes.put(f"{namespace}decisions/{number}", message)
        if number % _CLEAR_EVERY == 0:
            received = processes.list(f"{namespace}received/")
            if len(received) == processes.count - 1:
                received_by_all = min(map(int, received.values()))
                for name in processes.list(f"{namespace}decisions/"):
                    if int(name) < received_by_all:
                        processes.delete(f"{namespace}decisions/{name}")
        return preempted, reason

    def _receive(
        self, processes: Processes, step: int, *, preempted: bool
    ) -> tuple[bool, str | None]:
        """Wait, on another process, for the decision about a step."""
        purpose = f"say whether step {step} of {self._root} is to be saved"
        start, wait_logger = time.monotonic(), WaitLogger(f"process 0 to {purpose}")

        def wait_for(key: str) -> bytes:
            while (value := processes.get(key, WAKE_SECONDS)) is None:
                if time.monotonic() - start > self._timeout_seconds:
                    raise ProcessError(
                        f"process 0 did not come within {self._timeout_seconds:g} s to {purpose}"
                    )
                wait_logger.tick()
            wait_logger.end()
            return value

        if self._namespace is None:
            self._namespace, self._number = wait_for(self._key()).decode(), 0
        namespace = self._namespace
        if preempted:
            processes.put(f"{namespace}preempted/{processes.index}", b"")
        while True:
            self._namespace = None  # if no decision comes, look for another namespace next time
            message = wait_for(f"{namespace}decisions/{self._number}")
            self._namespace = namespace
            decided_step, preempted, reason = json.loads(message)
            if decided_step > step:  # in a run that went back, this step is decided again later
                number = self._later_decision(processes, step)
                if number is None:
                    raise ProcessError(
                        f"process {processes.index} came to save step {step} of {self._root}, "
                        f"process 0 to save step {decided_step}: every process must call save for "
                        "the same steps, in their order"
                    )
                self._number = number
                continue
            number, self._number = self._number, self._number + 1
            if decided_step == step:
                break  # a decision about an earlier step is one that this process left out
        if number % _CLEAR_EVERY == 0:
            processes.put(f"{self._namespace}received/{processes.index}", str(number).encode())
        return preempted, reason

    def _later_decision(self, processes: Processes, step: int) -> int | None:
        """Return the number of the next decision about a step; None if there is none yet."""
        decisions = processes.list(f"{self._namespace}decisions/").items()
        later = [(int(name), json.loads(value)[0]) for name, value in decisions]
        return min((n for n, each in later if each == step and n > self._number), default=None)
