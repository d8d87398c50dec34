"""A process that dies at some call of the system, without dying."""

from __future__ import annotations

from cordwood.storage import syscalls

__all__ = ["Dying", "Killed"]


class Killed(BaseException):
    """Ends a save as SIGKILL would: nothing is cleaned up."""


class Dying(syscalls.SystemCalls):
    """Ends at the Nth call, and lets nothing be done afterwards, as if the process were gone."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at
        self.died = False

    def _call(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.died = True
            raise Killed

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._call()
        return super().pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        self._call()
        super().fsync(fd)

    def replace(self, source: str, target: str) -> None:
        self._call()
        super().replace(source, target)

    def link(self, source: str, target: str) -> None:
        self._call()
        super().link(source, target)

    def unlink(self, path: str, folder: int | None = None) -> None:
        self._call()
        super().unlink(path, folder)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._call()
        super().mkdir(path, mode)

    def rmdir(self, path: str, folder: int | None = None) -> None:
        self._call()
        super().rmdir(path, folder)
