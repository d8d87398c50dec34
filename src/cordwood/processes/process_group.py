"""What the processes of a job decide once for all: process 0 says it, the others hear it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError
from cordwood.processes import rendezvous as rendezvous_module
from cordwood.processes.coordination import Processes, current_processes
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.wait_log import WaitLogger

_WAKE_SECONDS = 0.25
_CLEAR_EVERY = 64  # decisions


class ProcessGroup:
    """This process and the others of its job, or this one alone.

    Every process asks for the same things in the same order; one that did not catches up.

    Args:
        root: of the steps, for errors.
        timeout_seconds: how long a process may be late.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._processes: Processes | None = None  # those whose room it is
        self._room: str | None = None
        self._number = 0

    @property
    def is_first(self) -> bool:
        """True on process 0, which decides and deletes."""
        return current_processes().index == 0

    @property
    def index(self) -> int:
        """Which process this is."""
        return current_processes().index

    @property
    def count(self) -> int:
        """How many processes there are."""
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
            silence_seconds=rendezvous_module.SILENCE_SECONDS,
        )

    def agree(self, what: str, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        """Return what `decide` makes on process 0 of the values of all. Raises ProcessError."""
        with self.rendezvous(what) as rendezvous:
            return rendezvous.exchange(value, decide)

    def decide(
        self, step: int, ask: Callable[[bool], str | None], *, told: bool
    ) -> tuple[bool, str | None]:
        """Return whether any process was told to end, and what `ask` says on process 0, given that.

        This costs one key of the common store, and no round: it is for every step of a loop.

        What process 0 says of steps that this one has left out is passed over.

        Raises ProcessError: process 0 does not come, or has left this step out.
        """
        processes = current_processes()
        if processes.count == 1:
            return told, ask(told)
        if processes is not self._processes:
            self._processes, self._room = processes, None
        if processes.index == 0:
            return self._say(processes, step, ask, told=told)
        return self._hear(processes, step, told=told)

    def renew(self) -> None:
        """Have the decisions begin anew, in another room; where all processes are together.

        Process 0 calls this before the others.
        """
        processes, old = current_processes(), self._room
        self._processes, self._room = processes, None
        if processes.count > 1 and processes.index == 0:
            self._open(processes)
            if old is not None:
                processes.delete(old)

    def _open(self, processes: Processes) -> str:
        self._room, self._number = f"cordwood/{processes.rooms.open()}/", 0
        processes.put(self._key(), self._room.encode())
        return self._room

    def _key(self) -> str:
        """Return the key of the room that the decisions about this root are in."""
        return f"cordwood/decisions/{digest_of(self._root.encode('utf-8', 'surrogatepass')).hex()}"

    def _say(
        self, processes: Processes, step: int, ask: Callable[[bool], str | None], *, told: bool
    ) -> tuple[bool, str | None]:
        room = self._room or self._open(processes)
        number, self._number = self._number, self._number + 1
        told = told or bool(processes.list(f"{room}told/"))
        why = ask(told)
        processes.put(f"{room}say/{number}", json.dumps([step, told, why]).encode())
        if number % _CLEAR_EVERY == 0:
            heard = processes.list(f"{room}heard/")
            if len(heard) == processes.count - 1:
                everyone = min(map(int, heard.values()))
                for name in processes.list(f"{room}say/"):
                    if int(name) < everyone:
                        processes.delete(f"{room}say/{name}")
        return told, why

    def _hear(self, processes: Processes, step: int, *, told: bool) -> tuple[bool, str | None]:
        wait = _Wait(processes, f"say whether step {step} of {self._root} is to be saved")
        if self._room is None:
            self._room = wait.value(self._key(), self._timeout_seconds).decode()
            self._number = 0
        room = self._room
        if told:
            processes.put(f"{room}told/{processes.index}", b"")
        while True:
            self._room = None  # if nothing comes there, look for another one next time
            message = wait.value(f"{room}say/{self._number}", self._timeout_seconds)
            self._room = room
            said, told, why = json.loads(message)
            if said > step:  # of a run that has gone back, what is said of this step comes later
                number = self._later(processes, step)
                if number is None:
                    raise ProcessError(
                        f"process {processes.index} came to save step {step} of {self._root}, "
                        f"process 0 to save step {said}: every process must call save for the same "
                        "steps, in their order"
                    )
                self._number = number
                continue
            number, self._number = self._number, self._number + 1
            if said == step:
                break  # what is said of an earlier one is of a step that was left out here
        if number % _CLEAR_EVERY == 0:
            processes.put(f"{self._room}heard/{processes.index}", str(number).encode())
        return told, why

    def _later(self, processes: Processes, step: int) -> int | None:
        """Return the number of the next decision about a step; None where there is none yet."""
        said = processes.list(f"{self._room}say/").items()
        later = [(int(name), json.loads(value)[0]) for name, value in said]
        return min((n for n, each in later if each == step and n > self._number), default=None)


class _Wait:
    """Waits for what process 0 says, so long in all."""

    def __init__(self, processes: Processes, what: str) -> None:
        self._processes = processes
        self._what = what
        self._start = time.monotonic()
        self._waiting = WaitLogger(f"process 0 to {what}")

    def value(self, key: str, timeout_seconds: float) -> bytes:
        """Raise ProcessError where the key has no value in time."""
        while (value := self._processes.get(key, _WAKE_SECONDS)) is None:
            if time.monotonic() - self._start > timeout_seconds:
                raise ProcessError(
                    f"process 0 did not come within {timeout_seconds:g} s to {self._what}"
                )
            self._waiting.tick()
        self._waiting.end()
        return value
