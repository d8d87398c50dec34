"""The journal of bulk work: small files that list the tasks that are done, by which others go on.

Each call that works on the tasks has a file of its own, which says who it is, and holds its lock.
Beside it are the records of its workers.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from cordwood.bulk.task_records import TaskRecords, append_line
from cordwood.errors import StorageError
from cordwood.plan.parts_of_work import WorkPart
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.locks.file_locks import LOCK_FLAGS, is_locked, lock, opened_for_lock
from cordwood.storage.paths import absolute_path, journal_beside, new_save_id, path_exists

_NAME = re.compile(r"tasks(?:-(\d+)-of-(\d+))?\.jsonl")
_RECORDS_NAME = re.compile(r"done-[A-Za-z0-9.-]+\.jsonl")
_SAVES_NAME = "saves.jsonl"
_VERSION = 1


class WorkJournal:
    """A journal that is open, and locked.

    Attributes:
        results: what the tasks that are done have returned, by their keys.
        records: the place for the records of the workers of this call.
    """

    def __init__(self, folder: LocalPath, fd: int, results: dict[str, Any]) -> None:
        self._folder = folder
        self._fd = fd
        self.results = results
        self.records = TaskRecords(folder, secrets.token_hex(8))

    def reload(self) -> None:
        """Read what the workers of this call have recorded."""
        for name in filter(self.records.is_of_call, os.listdir(self._folder)):
            self.results.update(_results_in(_lines(self._folder.child(name))))

    def record(self, key: str, result: Any) -> None:
        """Add a task that is done; its result is a value of JSON."""
        self._write({"task": key, "result": result})

    def save_id(self, key: str) -> str:
        """Return the id of the save of some work: the same in all calls until it is committed.

        The id is in the names of files and in the keys of tasks. So no file of a commit is written
        again, and no result from before a commit counts after it.
        """
        with self._saves() as fd:
            lines = _lines(self._folder.child(_SAVES_NAME))
            ids = {line["key"]: str(line["save_id"]) for line in lines if "save_id" in line}
            committed = {line["commits"] for line in lines if "commits" in line}
            if key not in ids or ids[key] in committed:
                ids[key] = new_save_id()
                append_line(fd, {"key": key, "save_id": ids[key]})
            return ids[key]

    def note_commit(self, save_id: str) -> None:
        """Note durably that a save is committed from now on, if this call ends or not."""
        with self._saves() as fd:
            append_line(fd, {"commits": save_id})
            os.fsync(fd)

    @contextmanager
    def _saves(self) -> Iterator[int]:
        """Open and lock the file of the ids of saves, which all parts share."""
        path = self._folder.child(_SAVES_NAME).text
        with opened_for_lock(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | LOCK_FLAGS) as fd:
            lock(fd, path=path)
            yield fd

    def delete(self) -> None:
        """Delete the journal of all parts, once nobody needs it."""
        for name in _files_in(self._folder):
            with suppress(FileNotFoundError):
                os.unlink(self._folder.child(name))
        with suppress(OSError):
            os.rmdir(self._folder)

    def _write(self, value: Mapping[str, Any]) -> None:
        end = os.fstat(self._fd).st_size
        try:
            append_line(self._fd, value)
        except OSError:
            os.ftruncate(self._fd, end)  # nobody else writes it: the lock is of this call
            raise


def refuse_files_of_other_call(destination: Location, work: str) -> None:
    """Raise ValueError if the journal beside a local destination is that of another call.

    The files which that call has written are at the destination, and a commit removes them.
    """
    if not isinstance(destination, LocalPath):
        return
    folder = absolute_path(journal_beside(destination))
    for name in _files_in(folder) if path_exists(folder) else ():
        with suppress(FileNotFoundError):  # that call has just ended
            other = _other_work(_lines(folder.child(name)), work)
            if other is not None:
                raise ValueError(
                    f"{folder} is the journal of another call, {other!r}, which has written files "
                    f"at {destination}; expected that of {work!r}: end that call, write to another "
                    "path, or delete this journal; this call then removes the files of that one"
                )


@contextmanager
def open_journal(folder: LocalPath, *, work: str, part: WorkPart | None) -> Iterator[WorkJournal]:
    """Open the journal in a directory, which is made if there is none, for one call.

    Args:
        folder: the directory.
        work: the text of the call, as `call_text` makes it: all calls that use the journal are the
            same.
        part: the part that this call works on; None: all that is not done yet.

    Raises:
        ValueError: the directory holds something else, or the journal of another call.
        StorageError: another call works on the same tasks now; names it.
    """
    name = "tasks.jsonl" if part is None else f"tasks-{part.number}-of-{part.total}.jsonl"
    path = folder.child(name)
    os.makedirs(folder, exist_ok=True)
    _files_in(folder)  # raises
    with ExitStack() as stack:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | LOCK_FLAGS
        fd = stack.enter_context(opened_for_lock(path.text, flags))
        try:
            lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, path=path.text)
        except BlockingIOError as e:
            raise _busy(path) from e
        for other in filter(_NAME.fullmatch, _files_in(folder)):
            is_rival = other != name and _overlaps(part, other)
            if is_rival and is_locked(folder.child(other).text, even_shared=True):
                raise _busy(folder.child(other))
        results: dict[str, Any] = {}
        for each in _files_in(folder):
            results.update(_read(folder.child(each), work, fd if each == name else None))
        journal = WorkJournal(folder, fd, results)
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        run = {"host": socket.gethostname(), "process": os.getpid(), "since": since}
        journal._write({"journal": _VERSION, "work": work, **run})
        try:
            yield journal
        except BaseException:
            with suppress(FileNotFoundError):  # it was deleted: all is done
                journal.reload()
                if not journal.results:  # a call that was refused leaves nothing to go on by
                    os.unlink(path)
                    if os.listdir(folder) == [_SAVES_NAME]:
                        os.unlink(folder.child(_SAVES_NAME))
                    with suppress(OSError):
                        os.rmdir(folder)
            raise


def _files_in(folder: LocalPath) -> list[str]:
    """Return the files of a journal. Raises ValueError if there are others."""
    names = sorted(os.listdir(folder))
    is_of_journal = (_NAME.fullmatch, _RECORDS_NAME.fullmatch, _SAVES_NAME.__eq__)
    others = [name for name in names if not any(test(name) for test in is_of_journal)]
    if others:
        raise ValueError(
            f"journal={folder.text!r}: expected a new directory, or the journal of an interrupted "
            f"call; this one holds {others[0]!r}, and was left as it is: name another path"
        )
    return names


def _overlaps(part: WorkPart | None, name: str) -> bool:
    """Return True if the call that writes a file of the journal may work on the tasks of a part."""
    match = _NAME.fullmatch(name)
    return part is None or match is None or match[2] is None or int(match[2]) != part.total


def _busy(path: LocalPath) -> StorageError:
    runs = [line for line in _lines(path) if "host" in line]
    who = "another call"
    if runs:
        who = f"process {runs[-1]['process']} on {runs[-1]['host']}, since {runs[-1]['since']},"
    return StorageError(
        errno.EBUSY,
        f"{who} works on these tasks: wait until it ends, or end it; tasks that are done are not "
        "repeated",
        path.text,
    )


def _read(path: LocalPath, work: str, fd: int | None) -> dict[str, Any]:
    """Return the results in a file; cut off a line that was not written to its end in `fd`."""
    lines = _lines(path, fd)
    other = _other_work(lines, work)
    if other is not None:
        raise ValueError(
            f"journal={path.parent.text!r}: this is the journal of another call, {other!r}; "
            f"expected that of {work!r}: name another directory by journal= (--journal), or delete "
            "this one if that call is not to go on"
        )
    return _results_in(lines)


def _other_work(lines: Iterable[Mapping[str, Any]], work: str) -> str | None:
    """Return the call that lines are of, if it is another one."""
    for line in lines:
        if "journal" in line and line != {**line, "journal": _VERSION, "work": work}:
            return str(line.get("work"))
    return None


def _results_in(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {line["task"]: line.get("result") for line in lines if "task" in line}


def _lines(path: LocalPath, fd: int | None = None) -> list[dict[str, Any]]:
    with open(path, "rb") as file:
        data = file.read()
    end = data.rfind(b"\n") + 1
    if fd is not None and end < len(data):
        os.ftruncate(fd, end)
    lines = []
    for text in filter(None, data[:end].split(b"\n")):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if type(line) is not dict:
            if not _NAME.fullmatch(path.name):
                continue  # it was cut off: what it says is done once more
            raise ValueError(
                f"journal={path.parent.text!r}: {path.name} is no file of a journal, and was left "
                "as it is: name another path"
            )
        lines.append(line)
    return lines
