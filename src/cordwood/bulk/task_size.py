"""The size of a task, which tests and benchmarks lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# A multiple of every size of a block that is a power of two. A second of reading or less: executors
# need 1 to 10 ms for a task.
TASK_BYTES = 256 << 20

_CURRENT: ContextVar[int] = ContextVar("task_bytes", default=TASK_BYTES)


def current_task_bytes() -> int:
    """Return the most bytes of a task, unless what cannot be divided is larger."""
    return _CURRENT.get()


@contextmanager
def task_size(size_bytes: int) -> Iterator[None]:
    """Divide the calls of the block, in this thread, into tasks of another size."""
    token = _CURRENT.set(size_bytes)
    try:
        yield
    finally:
        _CURRENT.reset(token)
