"""The files in which workers record the tasks that they have done, each in one of its own.

A worker writes a line before it returns the result. So a task whose result is lost on the way, with
the worker, the executor or the call, is known to be done. A line is written once what the task
wrote is durable. The lines themselves are not flushed: a task whose line is lost in a power cut is
run again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from cordwood.storage.locations import LocalPath


class TaskRecords(NamedTuple):
    """The records of the tasks of one call.

    Attributes:
        folder: the journal.
        call: 16 hexadecimal digits, of this call alone.
    """

    folder: LocalPath
    call: str

    def add(self, key: str, result: Any) -> bool:
        """Record a task that is done, with its result, a value of JSON.

        Returns False if this process does not see the journal.
        """
        host = re.sub(r"[^A-Za-z0-9.]", "-", socket.gethostname())
        path = self.folder.child(f"done-{self.call}-{host}-{os.getpid()}.jsonl")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError:
            return False
        try:
            append_line(fd, {"task": key, "result": result})
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def is_of_call(self, name: str) -> bool:
        """Return True for the name of a file of these records."""
        return name.startswith(f"done-{self.call}-")


def append_line(fd: int, value: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file.

    It begins a new line: what was cut off before, because the disk was full, is then a line of its
    own, which readers pass over. Raises OSError if this line is cut off too.
    """
    data = f"\n{json.dumps(value)}\n".encode()
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
