"""The processes of a job, and a store of small values that all of them see.

`current()` says who takes part: this process alone, or all that `jax.distributed.initialize`
brought together. Nothing here runs on devices, so background threads may use it.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from cordwood.errors import ProcessError


class RendezvousState:
    """What a process remembers of its rendezvous; see `cordwood.processes.joining`.

    Attributes:
        incarnation: of this process: one that was started in its place has another.
        is_known: the store knows that.
        begun: the latest purposes of rendezvous in the background that were made here.
        failed: how often a purpose has failed here since all last met for it.
        said: keys of failures that were announced here, the oldest first.
        joined, incarnations, passed, refused: on process 0, by process: its last arrival that a
            room was opened for, which process it is, the last arrival that was not waited for, and
            the last one that was refused.
        left: on process 0, rooms that are used up; others may still be reading there.
    """

    MAX_SAID = 64

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.incarnation = secrets.token_bytes(8)
        self.is_known = False
        self.begun: deque[str] = deque(maxlen=self.MAX_SAID)
        self.failed: dict[str, int] = {}
        self.said: deque[str] = deque()
        self.joined: dict[tuple[str, int], bytes] = {}
        self.incarnations: dict[int, bytes] = {}
        self.passed: dict[int, bytes] = {}
        self.refused: dict[int, bytes] = {}
        self.left: deque[str] = deque()

    def open(self) -> int:
        """Return the number of a new room; on process 0."""
        return next(self._numbers)


class Processes(Protocol):
    """One process among `count`, and the keys that all of them see.

    Every method raises ProcessError where the store cannot be reached.
    """

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def rooms(self) -> RendezvousState: ...

    def put(self, key: str, value: bytes) -> None:
        """Set a key, whether or not it has a value."""

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        """A key's value as soon as it has one; None if it has none in that time."""

    def list(self, prefix: str) -> Mapping[str, bytes]:
        """All keys under a prefix that ends in a slash, without the prefix, and their values."""

    def delete(self, prefix: str) -> None:
        """Delete a key, or all keys under a prefix that ends in a slash."""


def key_matches(prefix: str, key: str) -> bool:
    """Whether `delete(prefix)` deletes a key: 'say/6' does not mean 'say/64', 'say/' means both."""
    return key == prefix or (prefix.endswith("/") and key.startswith(prefix))


class _Alone:
    """A job of one process: what it puts only it can get, so there is never a wait."""

    index = 0
    count = 1

    def __init__(self) -> None:
        self.rooms = RendezvousState()
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str, timeout_seconds: float) -> bytes | None:  # noqa: ARG002
        return self._values.get(key)

    def list(self, prefix: str) -> Mapping[str, bytes]:
        return {k[len(prefix) :]: v for k, v in self._values.items() if k.startswith(prefix)}

    def delete(self, prefix: str) -> None:
        for key in [k for k in self._values if key_matches(prefix, k)]:
            del self._values[key]


SINGLE_PROCESS: Processes = _Alone()


class JaxProcesses:
    """The processes of `jax.distributed`, over the store of its coordination service.

    The service lives in process 0. When that dies, jax ends the others at once with a message of
    its own; when another dies, jax does so after its heartbeat timeout (100 s unless
    `jax.distributed.initialize` is told otherwise), unless `jax_enable_recoverability` is on.
    """

    def __init__(self, client: Any, index: int, count: int) -> None:
        self._client = client
        self.index = index
        self.count = count
        self.rooms = RendezvousState()

    def put(self, key: str, value: bytes) -> None:
        with self._reached():
            self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        milliseconds = max(1, round(timeout_seconds * 1000))
        try:
            with self._reached():
                value: bytes = self._client.blocking_key_value_get_bytes(key, milliseconds)
        except ProcessError as e:
            if "DEADLINE_EXCEEDED" in str(e.__cause__):
                return None
            raise
        return value

    def list(self, prefix: str) -> Mapping[str, bytes]:
        with self._reached():
            found = self._client.key_value_dir_get_bytes(prefix)
        return {key.removeprefix(prefix): value for key, value in found}

    def delete(self, prefix: str) -> None:
        with self._reached():
            self._client.key_value_delete(prefix)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:  # jax.errors.JaxRuntimeError
            raise ProcessError(
                f"process {self.index} cannot reach jax's coordination service, which runs in "
                f"process 0: {str(e).splitlines()[0]}; if process 0 died, restart the job"
            ) from e


_replaced: ContextVar[Processes | None] = ContextVar("cordwood_hosts", default=None)
_lock = threading.Lock()
_of_jax: tuple[Any, JaxProcesses] | None = None  # the client it was made for, and what was made


def current_processes() -> Processes:
    """Return who takes part, as this process sees it now; never imports jax.

    Raises ProcessError where several processes run and cordwood cannot speak to them.
    """
    global _of_jax
    chosen = _replaced.get()
    if chosen is not None:
        return chosen
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "distributed"):  # another thread may be importing it now
        return SINGLE_PROCESS
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return SINGLE_PROCESS
    from cordwood.devices.jax_private import coordination_client

    client = coordination_client()
    with _lock:
        if _of_jax is None or _of_jax[0] is not client:
            _of_jax = client, JaxProcesses(client, jax.process_index(), jax.process_count())
        return _of_jax[1]


@contextmanager
def override(processes: Processes) -> Iterator[None]:
    """Take part as `processes` in the block, in this thread alone."""
    token = _replaced.set(processes)
    try:
        yield
    finally:
        _replaced.reset(token)
