"""The protocol of a task of bulk work, and the call by which a worker runs it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from cordwood.bulk.task_records import TaskRecords
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

    def to_json(self, result: Any, /) -> Any:
        """Return a result as a journal has it, a value of JSON; None if it is to be run again."""
        ...


class EndedTask(NamedTuple):
    """A task that has ended.

    Attributes:
        result: what it returned.
        is_recorded: True if the journal lists it.
    """

    result: Any
    is_recorded: bool


def run_task(
    task: BulkTask, key: str, options: BucketOptions, records: TaskRecords | None
) -> EndedTask:
    """Run a task as a worker, and record it before anybody is told.

    Args:
        task: the task.
        key: its key in the journal.
        options: those of object stores that the caller has set.
        records: where to record it; None: nowhere.
    """
    BUCKETS.use_options(options)
    result = task.run()
    value = None if records is None else task.to_json(result)
    is_recorded = records is not None and value is not None and records.add(key, value)
    return EndedTask(result, is_recorded)


def task_key(task: BulkTask) -> str:
    """Return the key of a task in a journal: equal for equal tasks, in any process."""
    return digest_of(f"{type(task).__name__}{task!r}".encode(errors="surrogatepass")).hex()
