"""What the processes of a job decide once for all: process 0 says it, the others hear it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from cordwood.engine import meeting as engine
from cordwood.engine.hosts import Hosts, current
from cordwood.engine.meeting import Meeting
from cordwood.errors import ProcessError

__all__ = ["Company"]

_WAKE_SECONDS = 0.25
_CLEAR_EVERY = 64  # decisions


class Company:
    """This process and the others of its job, or this one alone.

    Every process asks for the same things in the same order.

    Args:
        root: of the steps, for errors.
        timeout_seconds: how long a process may be late.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._hosts: Hosts | None = None  # those whose room it is
        self._room = ""
        self._number = 0

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which decides and deletes."""
        return current().index == 0

    @property
    def index(self) -> int:
        """Which process this is."""
        return current().index

    @property
    def count(self) -> int:
        """How many processes there are."""
        return current().count

    def meeting(self, what: str, *, timeout_seconds: float | None = None) -> Meeting:
        """A meeting of all, to be entered; `what` they meet for must be the same on all."""
        return Meeting(
            current(),
            f"{what} {self._root}",
            timeout_seconds=timeout_seconds or self._timeout_seconds,
            silence_seconds=engine.SILENCE_SECONDS,
        )

    def agree(self, what: str, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        """What `decide` makes on process 0 of the values of all. Raises ProcessError."""
        with self.meeting(what) as meeting:
            return meeting.round(value, decide)

    def decide(
        self, step: int, ask: Callable[[bool], str | None], *, told: bool
    ) -> tuple[bool, str | None]:
        """Whether any process was told to end, and what `ask` says on process 0, given that.

        This costs one key of the common store, and no round: it is for every step of a loop.

        Raises ProcessError: process 0 does not come, or comes to another step.
        """
        hosts = current()
        if hosts.count == 1:
            return told, ask(told)
        if hosts is not self._hosts:
            self._hosts, self._room, self._number = hosts, hosts.rooms.open(), 0
        number, self._number = self._number, self._number + 1
        if hosts.index == 0:
            return self._say(hosts, number, step, ask, told=told)
        if told:
            hosts.put(f"{self._room}told/{hosts.index}", b"")
        return self._hear(hosts, number, step)

    def _say(
        self, hosts: Hosts, number: int, step: int, ask: Callable[[bool], str | None], *, told: bool
    ) -> tuple[bool, str | None]:
        told = told or bool(hosts.list(f"{self._room}told/"))
        why = ask(told)
        hosts.put(f"{self._room}say/{number}", json.dumps([step, told, why]).encode())
        if number % _CLEAR_EVERY == 0:
            heard = hosts.list(f"{self._room}heard/")
            if len(heard) == hosts.count - 1:
                everyone = min(map(int, heard.values()))
                for name in hosts.list(f"{self._room}say/"):
                    if int(name) < everyone:
                        hosts.delete(f"{self._room}say/{name}")
        return told, why

    def _hear(self, hosts: Hosts, number: int, step: int) -> tuple[bool, str | None]:
        deadline = time.monotonic() + self._timeout_seconds
        message = None
        while message is None:
            message = hosts.get(f"{self._room}say/{number}", _WAKE_SECONDS)
            if message is None and time.monotonic() > deadline:
                raise ProcessError(
                    f"process 0 did not come within {self._timeout_seconds:g} s to say whether "
                    f"step {step} of {self._root} is to be saved"
                )
        said, told, why = json.loads(message)
        if said != step:
            raise ProcessError(
                f"process {hosts.index} came to save step {step} of {self._root}, process 0 to "
                f"save step {said}: every process must call save for the same steps, in their order"
            )
        if number % _CLEAR_EVERY == 0:
            hosts.put(f"{self._room}heard/{hosts.index}", str(number).encode())
        return told, why
