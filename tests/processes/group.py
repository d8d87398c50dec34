"""Groups of real processes: each has a few CPU devices, and jax makes one job of them all.

A group is started once and then runs scenarios, functions of `tests.processes.scenarios` (or of
another module there: "directories.save") that every process of it calls with the same arguments.
The processes are forked from a server that has imported jax but not begun to use it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any, NamedTuple, Self

__all__ = ["DEVICES_EACH", "Group", "Result", "forked"]

DEVICES_EACH = 2
SECONDS = 400.0  # no scenario takes longer

_context = get_context("forkserver")
_context.set_forkserver_preload(["jax", "cordwood", "tests.processes.managers"])


def forked(target: Callable[..., object], *arguments: Any, **named: Any) -> ForkServerProcess:
    """Start a process that calls a function, and return it."""
    process = _context.Process(target=target, args=arguments, kwargs=named, daemon=True)
    process.start()
    return process


class Result(NamedTuple):
    """The result of a scenario in one process: a value or an error; neither if it is dead."""

    value: Any = None
    error: str | None = None  # its type and text
    trace: str = ""
    dead: bool = False


class Group:
    """Real processes that save together; use it in a `with` block.

    Args:
        count: how many processes.
        alone: start them without `jax.distributed`: each is a job of its own.
        devices_each: how many devices each process has.
    """

    def __init__(
        self, count: int, *, alone: bool = False, devices_each: int = DEVICES_EACH
    ) -> None:
        self.count = count
        self._pipes: list[Connection[Any, Any]] = []
        self.processes = []
        self._port = None if alone else _own_port()
        address = f"127.0.0.1:{self._port.getsockname()[1]}" if self._port else ""
        for index in range(count):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_serve, args=(theirs, address, index, count, devices_each), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(0 if error is not None else 20)
            process.kill()
            process.join()
        if self._port is not None:
            self._port.close()

    def start(self, scenario: str, **arguments: Any) -> None:
        """Have every process begin a scenario."""
        for pipe in self._pipes:
            with suppress(OSError):  # it was killed
                pipe.send((scenario, arguments))

    def results(self) -> list[Result]:
        """Return the results, once every process has ended the call or has died."""
        by_name: dict[int, Result] = {}
        deadline = time.monotonic() + SECONDS
        while len(by_name) < self.count:
            waiting = [self._pipes[i] for i in range(self.count) if i not in by_name]
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                for process in self.processes:  # so that the next scenario fails at once
                    process.kill()
                raise TimeoutError(
                    f"processes {sorted(set(range(self.count)) - set(by_name))} hang"
                )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                index = self._pipes.index(pipe)
                try:
                    by_name[index] = Result(*pipe.recv())
                except (EOFError, OSError):
                    by_name[index] = Result(dead=True)
        return [by_name[i] for i in range(self.count)]

    def run(self, scenario: str, **arguments: Any) -> list[Any]:
        """Run a scenario that must succeed on every process; return the values."""
        self.start(scenario, **arguments)
        results = self.results()
        for index, result in enumerate(results):
            assert not result.dead, f"process {index} died in {scenario}"
            assert result.error is None, f"process {index}: {result.error}\n{result.trace}"
        return [result.value for result in results]

    def fail(self, scenario: str, **arguments: Any) -> list[str]:
        """Run a scenario that must fail on every process; return the errors."""
        self.start(scenario, **arguments)
        results = self.results()
        for index, result in enumerate(results):
            assert result.error is not None, f"process {index}: {result}"
        return [str(result.error) for result in results]

    def kill(self, index: int) -> None:
        """SIGKILL one process."""
        pid = self.processes[index].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


def _own_port() -> socket.socket:
    """Reserve a port; gRPC in jax shares it, and no other program gets it while this is open."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def _serve(pipe: Connection[Any, Any], address: str, index: int, count: int, devices: int) -> None:
    """Join the job, then run the calls that come over the pipe."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax

    if address:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator_address=address, num_processes=count, process_id=index
        )
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # not jax's own end, which waits for processes that were killed
        try:
            module, _, function = f"scenarios.{name}".rpartition(".")
            module = module.rpartition(".")[2]
            actual = import_module(f"tests.processes.{module}")
            pipe.send((getattr(actual, function)(**arguments),))
        except BaseException as e:  # noqa: BLE001  (the test looks at it)
            pipe.send((None, f"{type(e).__name__}: {e}", traceback.format_exc()))
