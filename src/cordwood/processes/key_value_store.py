"""The processes of a job, and the key-value store that they share.

`current_processes()` returns the processes that take part: this process alone, or all processes of
`jax.distributed.initialize`. Nothing here runs on devices, so background threads may use it.
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
from cordwood.threads.run_in_worker import run_in_worker


class RendezvousState:
    """The state that a process keeps from one rendezvous to the next.

    See `cordwood.processes.wait_for_arrivals`.

    Attributes:
        incarnation: random bytes of this process; a process that is started in its place has
            others.
        is_registered: True once the store holds the incarnation.
        background_purposes: the latest purposes of background rendezvous of this process.
        failure_counts: by purpose, how often this process has failed since the processes last met
            for that purpose.
        announced_keys: the keys of announcements by this process that are still in the store, the
            oldest first.
        joined: on process 0, by channel and process, the last arrival for which it opened a
            namespace.
        incarnations: on process 0, the incarnation of each process.
        skipped: on process 0, by process, the last arrival that process 0 did not wait for.
        refused: on process 0, by process, the last arrival that process 0 refused.
        finished: on process 0, namespaces that process 0 no longer needs; other processes may
            still read there.
    """

    MAX_ENTRIES = 64

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.incarnation = secrets.token_bytes(8)
        self.is_registered = False
        self.background_purposes: deque[str] = deque(maxlen=self.MAX_ENTRIES)
        self.failure_counts: dict[str, int] = {}
        self.announced_keys: deque[str] = deque()
        self.joined: dict[tuple[str, int], bytes] = {}
        self.incarnations: dict[int, bytes] = {}
        self.skipped: dict[int, bytes] = {}
        self.refused: dict[int, bytes] = {}
        self.finished: deque[str] = deque()

    def new_namespace(self) -> int:
        """Return the number of a new namespace; for process 0."""
        return next(self._numbers)

    def remember(self, key: str) -> str | None:
        """Note an announcement, and drop the oldest entries; return a key to delete, or None."""
        keys, failure_counts = self.announced_keys, self.failure_counts
        if key in keys:
            keys.remove(key)
        keys.append(key)
        while len(failure_counts) > self.MAX_ENTRIES:
            del failure_counts[next(iter(failure_counts))]
        return keys.popleft() if len(keys) > self.MAX_ENTRIES else None


class Processes(Protocol):
    """This process, which is one of `count` processes, and the key-value store that they share.

    Every method raises ProcessError if the store cannot be reached.
    """

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def state(self) -> RendezvousState: ...

    def put(self, key: str, value: bytes) -> None:
        """Set a key, and replace its value if it has one."""

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        """Wait until a key has a value, and return it; None after `timeout_seconds`."""

    def list(self, prefix: str) -> Mapping[str, bytes]:
        """Return the keys under a prefix that ends in a slash, and their values.

        The keys come without the prefix.
        """

    def delete(self, prefix: str) -> None:
        """Delete a key, or all keys under a prefix that ends in a slash."""


def key_matches(prefix: str, key: str) -> bool:
    """Return True if `delete(prefix)` deletes a key.

    >>> [key_matches("answer/6", "answer/64"), key_matches("answer/", "answer/64")]
    [False, True]
    """
    return key == prefix or (prefix.endswith("/") and key.startswith(prefix))


class _SingleProcess:
    """A job of one process: no other process sets a key, so `get` does not wait."""

    index = 0
    count = 1

    def __init__(self) -> None:
        self.state = RendezvousState()
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


SINGLE_PROCESS: Processes = _SingleProcess()


class JaxProcesses:
    """The processes of `jax.distributed`, with the store of its coordination service.

    The service runs in process 0. If process 0 dies, jax ends the other processes at once with its
    own message. If another process dies, jax ends the rest after its heartbeat timeout (100 s
    unless `jax.distributed.initialize` sets another), unless `jax_enable_recoverability` is on.
    """

    def __init__(self, client: Any, index: int, count: int) -> None:
        self._client = client
        self.index = index
        self.count = count
        self.state = RendezvousState()

    def put(self, key: str, value: bytes) -> None:
        with self._explaining_errors():
            self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        milliseconds = max(1, round(timeout_seconds * 1000))
        try:
            with self._explaining_errors():
                value: bytes = self._client.blocking_key_value_get_bytes(key, milliseconds)
        except ProcessError as e:
            if "DEADLINE_EXCEEDED" in str(e.__cause__):
                return None
            raise
        return value

    def list(self, prefix: str) -> Mapping[str, bytes]:
        with self._explaining_errors():
            items = self._client.key_value_dir_get_bytes(prefix)
        return {key.removeprefix(prefix): value for key, value in items}

    def delete(self, prefix: str) -> None:
        with self._explaining_errors():
            self._client.key_value_delete(prefix)

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:  # jax.errors.JaxRuntimeError
            raise ProcessError(
                f"process {self.index} cannot reach jax's coordination service, which runs in "
                f"process 0: {str(e).splitlines()[0]}; if process 0 died, restart the job"
            ) from e


_overriding: ContextVar[Processes | None] = ContextVar("cordwood_processes", default=None)
_lock = threading.Lock()
_jax_processes: tuple[Any, JaxProcesses] | None = None  # jax's client, and the object made for it


def current_processes() -> Processes:
    """Return the processes that take part, as this process sees them now; never import jax.

    Raises ProcessError if several processes run and cordwood cannot communicate with them.
    """
    processes = _overriding.get()
    if processes is not None:
        return processes
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "distributed"):  # another thread may be importing it now
        return SINGLE_PROCESS
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return SINGLE_PROCESS
    from cordwood.processes.coordination_client import coordination_client

    client = coordination_client()
    latest = _jax_processes
    if latest is not None and latest[0] is client:
        return latest[1]
    return run_in_worker(lambda: _processes_of(client, jax.process_index(), jax.process_count()))


def _processes_of(client: Any, index: int, count: int) -> JaxProcesses:
    """Return the one object for a client; called in a worker, because it takes a lock."""
    global _jax_processes
    with _lock:
        if _jax_processes is None or _jax_processes[0] is not client:
            _jax_processes = client, JaxProcesses(client, index, count)
        return _jax_processes[1]


@contextmanager
def override_processes(processes: Processes) -> Iterator[None]:
    """Take part as `processes` in the block, in this thread only."""
    token = _overriding.set(processes)
    try:
        yield
    finally:
        _overriding.reset(token)
