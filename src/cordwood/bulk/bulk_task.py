"""The protocol of a task of bulk work, and the call by which a worker runs it."""

from __future__ import annotations

from typing import Any, Protocol

from cordwood.encoding.digests import digest_of
from cordwood.storage.object_stores.bucket_cache import BUCKETS, BucketOptions


class BulkTask(Protocol):
    """A part of the work of one call: a value that can be pickled.

    A task refers to what it needs by location, file and byte range, so any process that sees the
    same storage can run it. To run it twice has the effect of running it once.
    """

    @property
    def size_bytes(self) -> int:
        """The number of bytes to read, or an estimate."""
        ...

    def run(self) -> Any:
        """Run the task, in several threads, and return its result, which can be pickled too."""
        ...


def run_task(task: BulkTask, options: BucketOptions) -> Any:
    """Run a task with the options of object stores that the caller has set."""
    BUCKETS.use_options(options)
    return task.run()


def task_key(task: BulkTask) -> str:
    """Return the key of a task in a journal: equal for equal tasks, in any process."""
    return digest_of(f"{type(task).__name__}{task!r}".encode(errors="surrogatepass")).hex()
