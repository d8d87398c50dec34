"""A stage that all processes of a rendezvous fill, each its own files.

Process 0 begins it, puts it in place or removes it; its random name is the mark that the others
look for. What became of a process's files it leaves in the stage, in a file that goes before the
commit: digests of many chunks are more than a rendezvous should carry.

A failure is announced before the stage goes. So whoever is still writing, and finds no stage any
more, can tell why; it stops, and removes what it has made since. A process that has reported
leaves the stage alone: from then on process 0 may be putting it in place.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.errors import CorruptionError, LimitError, ProcessError, StorageError
from cordwood.io.encode_chunk import Encoder
from cordwood.io.write_chunk_files import WrittenFile, write_new_files
from cordwood.plan.chunk_files import PlannedFile
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.directories import remove_tree
from cordwood.storage.directory_reader import LocalDirectory
from cordwood.storage.staging_directory import StagingDirectory
from cordwood.storage.visibility import wait_until_visible

_REPORT = "report.{}"  # no array lies there: a dot in its name is a step down
_SIZE = struct.Struct("<Q")


class MultiprocessStaging:
    """One process's view of it; a rendezvous of one has a stage like any other.

        shared = MultiprocessStaging(path, rendezvous)
        with shared.saving():
            save_together(rendezvous, shared, ...)  # which calls `fill`, then `gather`

    In a thread where no interrupts come (`run_uninterruptible`). Raises as `StagingDirectory` does.
    """

    def __init__(self, path: str | os.PathLike[str], rendezvous: Rendezvous) -> None:
        self.stage = StagingDirectory(path, timeout_seconds=rendezvous.timeout_seconds)
        self._rendezvous = rendezvous
        self._written: list[WrittenFile] = []
        self._reported = False

    def create_probe(self) -> str:
        self.stage.begin(self._rendezvous.poll)
        return os.path.basename(self.stage.path)

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        path = self.stage.path_beside(probe)
        if not wait_until_visible(
            lambda: os.path.lexists(path), path, timeout_seconds=timeout_seconds
        ):
            return False
        self.stage.join(probe)
        return True

    def write_files(
        self, files: Sequence[PlannedFile], fetch: Callable[[int], Any], encode: Encoder | None
    ) -> bytes:
        """Write the files of this process. When this returns, they are on the disk.

        Args:
            files: which; others may make the same directories.
            fetch, encode: as `write_new_files` has them.

        Returns:
            What process 0 needs to `gather` what became of them.
        """
        if not self.stage.path:
            self.stage.begin(self._rendezvous.poll)
        try:
            report = self._fill(files, fetch, encode)
            self._rendezvous.poll_now()
        except OSError:
            self._rendezvous.poll_now()  # another process has failed, and so the stage is gone
            raise
        self._reported = True
        return report

    def _fill(
        self, files: Sequence[PlannedFile], fetch: Callable[[int], Any], encode: Encoder | None
    ) -> bytes:
        stage = self.stage
        stage.make_directories(dict.fromkeys([os.path.dirname(file.path) for file in files]))
        self._written = write_new_files(
            stage.path, files, fetch, encode, check=self._rendezvous.poll
        )
        if self._rendezvous.count > 1:
            for file in files:
                stage.mark_unsynced(file.path)  # another process may have made its directory
        if self._rendezvous.index == 0:
            return b""
        report = _pack(self._written)
        stage.write(_REPORT.format(self._rendezvous.index), [report])
        stage.doing = "flushing its directories to the disk"
        stage.sync_directories()
        return _SIZE.pack(len(report)) + digest_of(report)

    def collect_written(
        self, reports: Sequence[bytes], files: Sequence[Sequence[PlannedFile]]
    ) -> list[list[WrittenFile]]:
        """On process 0: what became of the files of each process.

        Raises StorageError where one of them is not there as its process left it.
        """
        written = [self._written]
        for process in range(1, self._rendezvous.count):
            self.stage.doing = "looking for what the other processes have written"
            self._rendezvous.poll()
            data = self._read(process, reports[process])
            written.append(_unpack(data, len(files[process])))
            for file, result in zip(files[process], written[process], strict=True):
                if _size_of(f"{self.stage.path}/{file.path}") != result.size_bytes:
                    raise self._lost(file.path, process)
            self.stage.remove(_REPORT.format(process))
        return written

    def _read(self, process: int, report: bytes) -> bytes:
        name = _REPORT.format(process)
        (size,) = _SIZE.unpack_from(report)
        try:
            with LocalDirectory(self.stage.path) as directory:
                data = directory.read(name, limit_bytes=size)
        except (CorruptionError, LimitError) as e:
            raise self._lost(name, process) from e
        if digest_of(data) != report[_SIZE.size :]:
            raise self._lost(name, process)
        return data

    def _lost(self, name: str, process: int) -> StorageError:
        return StorageError(
            errno.EIO,
            f"{name} is not there as process {process} wrote it: something else changes the "
            "directory, or the file system is at fault; what was there before is untouched",
            self.stage.asked,
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Meet in the block; an exception that leaves it is announced, then the stage goes."""
        try:
            with self._rendezvous, self.stage.explain_errors():
                yield
        except BaseException as e:
            if self._rendezvous.index == 0:
                self.stage.abandon()
            elif self.stage.path and not self._reported and self._goes(e):
                remove_tree(self.stage.path)
            raise

    def _goes(self, error: BaseException) -> bool:
        """Whether process 0 may have removed the stage before this process stopped.

        Where it has not announced a failure yet, it removes all that is there by now.
        """
        return isinstance(error, ProcessError) or self._rendezvous.has_failed()


def _pack(written: Sequence[WrittenFile]) -> bytes:
    sizes = [_SIZE.pack(file.size_bytes) for file in written]
    return b"".join([*sizes, *[file.digests for file in written]])


def _unpack(data: bytes, count: int) -> list[WrittenFile]:
    at = count * _SIZE.size
    written = []
    for (size,) in _SIZE.iter_unpack(data[:at]):
        stop = at + block_count(size, BLOCK_BYTES) * DIGEST_BYTES
        written.append(WrittenFile(size, data[at:stop]))
        at = stop
    return written


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return None
