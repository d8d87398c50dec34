"""Processes that are threads: what they put in the common store, when they die, how slow they are.

For tests of what processes tell each other; devices and memory are this process's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cordwood.errors import ProcessError
from cordwood.processes.coordination import RendezvousState, key_matches, override


class Died(BaseException):
    """Ends the thread of a fake process; nothing but `run_processes` catches it."""


class Store:
    """The keys that fake processes share; gone when process 0 dies, as jax's is."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.dead: set[int] = set()


class FakeProcesses:
    """One fake process.

    Args:
        store: shared by all of them.
        index, count: which process this is, among how many.
        dies_at: at which call of its own thread it dies, the first being 0; None: never.
        delay_seconds: how long each call takes longer.
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

    def _call(self) -> None:
        time.sleep(self._delay_seconds)
        own = threading.current_thread() is self._own_thread
        with self._store.changed:
            if own and self.calls == self._dies_at:
                self._store.dead.add(self.index)
                self._store.changed.notify_all()
            self.calls += own
            if own and self.index in self._store.dead:
                raise Died
            if self._unreachable():
                raise self._lost()

    def _unreachable(self) -> bool:
        return bool(self._store.dead & {0, self.index})

    def _lost(self) -> ProcessError:
        return ProcessError(f"process {self.index} cannot reach the store in process 0")


class Outcome(NamedTuple):
    """What became of one fake process: a value, or the exception that ended it."""

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
    """Call `work` once for each of `count` processes, each in a thread of its own.

    In it, `cordwood.processes.coordination.current_processes()` is what `work` gets too.

    Args:
        count: how many processes.
        work: what each does.
        dies_at: for processes that are to die: at which of their calls.
        delay_seconds: for slow ones: how much longer each call takes.
        store: one to look into afterwards.
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
            with override(processes):
                outcomes[index] = Outcome(work(processes), None)
        except BaseException as e:  # noqa: BLE001  (Died among them; the caller looks at it)
            outcomes[index] = Outcome(None, e)

    threads = [threading.Thread(target=run, args=(i,), name=f"process-{i}") for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
