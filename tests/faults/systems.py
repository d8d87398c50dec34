"""System calls of which the Nth fails, or ends the process."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from cordwood.storage.syscalls import SystemCalls

CALLS = tuple(name for name in vars(SystemCalls) if not name.startswith("_"))
FAULT_STATUS = 77  # the exit status of a process that an ExitingSystem ended


class CountingSystem(SystemCalls):
    """The real system calls, counted; `made` lists their names."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self._numbers = itertools.count(1)
        # An RLock: the garbage collector may run inside, and what it collects may close a file.
        self._counting = threading.RLock()

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name not in CALLS:
            return call
        return lambda *args: self._count(name, call, args)

    def _count(self, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self._counting:
            self.made.append(name)
            number = next(self._numbers)
        return self._make(number, name, call, args)

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        del number, name
        return call(*args)


class FailingSystem(CountingSystem):
    """System calls of which number `at` fails with errno `code`.

    With `lasting`, every later pwrite, fsync and fallocate fails too.
    """

    def __init__(self, at: int, code: int, *, lasting: bool = False) -> None:
        super().__init__()
        self._at = at
        self._code = code
        self._lasting = lasting

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        again = self._lasting and number > self._at and name in ("pwrite", "fsync", "fallocate")
        if number == self._at or again:
            if name == "close":  # Linux closes the file even if it reports an error
                call(*args)
            raise OSError(self._code, os.strerror(self._code))
        return call(*args)


class LackingSystem(CountingSystem):
    """System calls of a file system that lacks some: these fail with EOPNOTSUPP."""

    def __init__(self, lacks: Collection[str] = ()) -> None:
        super().__init__()
        self._lacks = lacks

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        del number
        if name in self._lacks:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return call(*args)


class ExitingSystem(CountingSystem):
    """System calls that end the process at number `at`: before it, or halfway through a pwrite."""

    def __init__(self, at: int, *, torn: bool) -> None:
        super().__init__()
        self._at = at
        self._torn = torn

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if number == self._at:
            if self._torn and name == "pwrite":
                fd, data, offset = args
                half = len(data) // 2
                half -= half % 4096 if half > 4096 else 0  # O_DIRECT needs whole pages
                call(fd, data[:half], offset)
            os._exit(FAULT_STATUS)
        return call(*args)
