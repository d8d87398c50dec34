"""Fake processes: threads that share a key-value store, may die at any call, and may be slow.

They are for tests of the communication of processes. All of them use the devices and the memory of
this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cordwood.errors import ProcessError
from cordwood.processes.key_value_store import RendezvousState, key_matches, override_processes


class Died(BaseException):
    """The end of the thread of a fake process; only `run_processes` catches it."""


class Store:
    """The key-value store that fake processes share; lost when process 0 dies, as with jax."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.dead: set[int] = set()


class FakeProcesses:
    """One fake process.

    Args:
        store: shared by all of them.
        index: the number of this process.
        count: the number of processes.
        dies_at: the call of its own thread at which it dies, the first being 0; None: never.
        delay_seconds: a delay of each call.
    """

    def __init__(
        self,
        store: Store,
        index: int,
        count: int,
        *,
        dies_at: int | None = None,
        delay_seconds: float = 0.0,
    ) -> None:
        self.index = index
        self.count = count
        self.state = RendezvousState()
        self.calls = 0
        self._store = store
        self._dies_at = dies_at
        self._delay_seconds = delay_seconds
        self._own_thread = threading.current_thread()

    def put(self, key: str, value: bytes) -> None:
        self._call()
        with self._store.changed:
            self._store.values[key] = value
            self._store.changed.notify_all()

    def get(self, key: str, timeout_seconds: float) -> bytes | None:
        self._call()
        with self._store.changed:
            self._store.changed.wait_for(
                lambda: key in self._store.values or self._unreachable(), timeout_seconds
            )
            if self._unreachable():
                raise self._lost()
            return self._store.values.get(key)

    def list(self, prefix: str) -> Mapping[str, bytes]:
        self._call()
        with self._store.changed:
            values = self._store.values
            return {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}

    def delete(self, prefix: str) -> None:
        self._call()
        with self._store.changed:
            values = self._store.values
            for key in [k for k in values if key_matches(prefix, k)]:
                del values[key]

    def die_after(self, calls: int) -> None:
        """Let it die after so many more calls of its own thread."""
        self._dies_at = self.calls + calls

    def _call(self) -> None:
        time.sleep(self._delay_seconds)
        is_own_thread = threading.current_thread() is self._own_thread
        with self._store.changed:
            if is_own_thread and self.calls == self._dies_at:
                self._store.dead.add(self.index)
                self._store.changed.notify_all()
            self.calls += is_own_thread
            if is_own_thread and self.index in self._store.dead:
                raise Died
            if self._unreachable():
                raise self._lost()

    def _unreachable(self) -> bool:
        return bool(self._store.dead & {0, self.index})

    def _lost(self) -> ProcessError:
        return ProcessError(f"process {self.index} cannot reach the store in process 0")


class Outcome(NamedTuple):
    """The result of one fake process: a value, or the exception that ended it."""

    value: Any
    error: BaseException | None


def run_processes(
    count: int,
    work: Callable[[FakeProcesses], Any],
    *,
    dies_at: Mapping[int, int] | None = None,
    delay_seconds: Mapping[int, float] | None = None,
    store: Store | None = None,
) -> list[Outcome]:
    """Call `work` once for each of `count` processes, each in its own thread.

    There `cordwood.processes.key_value_store.current_processes()` returns the argument of `work`.

    Args:
        count: the number of processes.
        work: the function that each process runs.
        dies_at: by process, the call at which it dies.
        delay_seconds: by process, a delay of each of its calls.
        store: a store to use, which the test can read afterwards.
    """
    shared = store or Store()
    outcomes = [Outcome(None, None)] * count

    def run(index: int) -> None:
        processes = FakeProcesses(
            shared,
            index,
            count,
            dies_at=(dies_at or {}).get(index),
            delay_seconds=(delay_seconds or {}).get(index, 0.0),
        )
        try:
            with override_processes(processes):
                outcomes[index] = Outcome(work(processes), None)
        except BaseException as e:  # noqa: BLE001  (Died among them; the caller looks at it)
            outcomes[index] = Outcome(None, e)

    threads = [threading.Thread(target=run, args=(i,), name=f"process-{i}") for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
