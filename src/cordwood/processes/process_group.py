"""The processes of a manager, and what process 0 decides for them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TypeVar

from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError
from cordwood.processes.key_value_store import Processes, current_processes
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.wait_for_arrivals import WAKE_SECONDS
from cordwood.threads.wait_logger import WaitLogger

_CLEAR_EVERY = 64  # decisions

_Answer = TypeVar("_Answer")


class ProcessGroup:
    """This process and the others of its job, or this process alone.

    All processes ask for the same decisions in the same order; one that left some out catches up.

    Args:
        root: the directory of the steps, for errors; the same on all processes.
        timeout_seconds: how long a process may be late.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self.root = root
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
            f"{what} {self.root}",
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
        return f"cordwood/decisions/{digest_of(self.root.encode('utf-8', 'surrogatepass')).hex()}"

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
        purpose = f"say whether step {step} of {self.root} is to be saved"
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
                        f"process {processes.index} came to save step {step} of {self.root}, "
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
