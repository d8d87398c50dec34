"""A file that fills a disk at a chosen moment, and frees the space later."""

from __future__ import annotations

import errno
import os
import threading


class Filler:
    """Fills the disk of a folder, except for some bytes, and frees it again; uses timer threads."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "filler")
        self._timers: list[threading.Timer] = []

    def fill_in(self, seconds: float, *, leave_bytes: int) -> None:
        """Fill the disk after some seconds."""
        self._after(seconds, lambda: self.fill(leave_bytes))

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk now."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            status = os.fstatvfs(fd)
            want = status.f_bavail * status.f_frsize - leave_bytes
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
        """Free the disk after some seconds, but not before every earlier filling is done."""
        before = list(self._timers)

        def free() -> None:
            for timer in before:
                timer.join()
            self._free()

        self._after(seconds, free)

    def settle(self) -> None:
        """Wait for all timers."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()

    def _after(self, seconds: float, work: object) -> None:
        assert callable(work)
        timer = threading.Timer(seconds, work)
        timer.start()
        self._timers.append(timer)

    def _free(self) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)
            os.sync()
