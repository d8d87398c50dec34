"""A file that fills a disk at some moment, and frees it later."""

from __future__ import annotations

import errno
import os
import threading

__all__ = ["Filler"]


class Filler:
    """Fills the disk that a folder lies on, but for so many bytes; from threads of its own."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "filler")
        self._later: list[threading.Timer] = []

    def fill_in(self, seconds: float, *, leave_bytes: int) -> None:
        """Fill it then."""
        self._after(seconds, lambda: self.fill(leave_bytes))

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill it now."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            found = os.fstatvfs(fd)
            want = found.f_bavail * found.f_frsize - leave_bytes
            offset = os.fstat(fd).st_size
            while want >= 4096:
                try:
                    os.posix_fallocate(fd, offset, want)
                    offset += want
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    want //= 2
                else:
                    break
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_in(self, seconds: float) -> None:
        """Free it then, but only after every filling that was asked for before."""
        before = list(self._later)

        def free() -> None:
            for timer in before:
                timer.join()
            self._free()

        self._after(seconds, free)

    def settle(self) -> None:
        """Wait for all that was to come."""
        for timer in self._later:
            timer.join()
        self._later.clear()

    def _after(self, seconds: float, work: object) -> None:
        assert callable(work)
        timer = threading.Timer(seconds, work)
        timer.start()
        self._later.append(timer)

    def _free(self) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)
            os.sync()
