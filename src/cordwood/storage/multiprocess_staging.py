"""A staging directory that all processes of a rendezvous fill, each with its own files.

Process 0 creates the staging directory, and puts it in place or removes it; its random name is the
probe that the others look for. Each other process writes a report on its files, with their digests,
to a file in the staging directory, which is removed before the commit: the digests of many chunks
are too large for a rendezvous.

A failure is announced before the staging directory is removed. So a process that is still writing,
and finds no directory any more, knows why; it stops, and removes what it has created since. A
process that has reported no longer touches the directory: process 0 may be putting it in place.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.errors import CorruptionError, LimitError, ProcessError, StorageError
from cordwood.io.encode_chunk import Encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.threads import never_stop, stop_check
from cordwood.plan.chunk_files import PlannedFile
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.directories import remove_tree
from cordwood.storage.directory_reader import LocalDirectory
from cordwood.storage.staging_directory import StagingDirectory
from cordwood.storage.storage_protocol import wait_until_visible
from cordwood.storage.write_chunk_files import WrittenFile, write_new_files

_REPORT = "report.{}"  # never the path of an array: a dot in a name becomes a slash
_SIZE = struct.Struct("<Q")


class MultiprocessStaging:
    """The view of one process; also used by a rendezvous of one process.

        shared = MultiprocessStaging(path, rendezvous)
        with shared.transaction():
            begin_together(rendezvous, shared, ...)
            report = shared.write_files(...)
            rendezvous.exchange(report, commit)  # calls `collect_written`

    For threads without interrupts (`run_in_worker`). Raises as `StagingDirectory` does.
    """

    def __init__(self, path: str | os.PathLike[str], rendezvous: Rendezvous) -> None:
        self.stage = StagingDirectory(path, timeout_seconds=rendezvous.timeout_seconds)
        self._rendezvous = rendezvous
        self._written: list[WrittenFile] = []
        self._reported = False

    def create_probe(self) -> str:
        self.stage.begin()
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
        self, files: Sequence[PlannedFile], leaves: Leaves, encode: Encoder | None
    ) -> tuple[int, str]:
        """Write the files of this process. When this returns, they are on the disk.

        Args:
            files: the files; other processes may create the same directories.
            leaves: the leaves.
            encode: compresses a chunk; None for raw chunks.

        Returns:
            The size and digest of the report, which process 0 passes to `collect_written`.
        """
        if not self.stage.path:
            self.stage.begin()
        try:
            report = self._fill(files, leaves, encode)
            self._rendezvous.poll_now()
        except OSError:
            self._rendezvous.poll_now()  # another process failed, so the staging directory is gone
            raise
        self._reported = True
        return report

    def _fill(
        self, files: Sequence[PlannedFile], leaves: Leaves, encode: Encoder | None
    ) -> tuple[int, str]:
        stage = self.stage
        stage.make_directories(dict.fromkeys([os.path.dirname(file.path) for file in files]))
        self._written = write_new_files(stage.path, files, leaves, encode)
        if self._rendezvous.count > 1:
            for file in files:
                stage.mark_unsynced(file.path)  # another process may have created its directory
        if self._rendezvous.index == 0:
            return 0, ""
        report = _pack(self._written)
        stage.write(_REPORT.format(self._rendezvous.index), [report])
        stage.doing = "flushing its directories to the disk"
        stage.sync_directories()
        return len(report), digest_of(report).hex()

    def collect_written(
        self, reports: Sequence[tuple[int, str]], files: Sequence[Sequence[PlannedFile]]
    ) -> list[list[WrittenFile]]:
        """Return on process 0 the sizes and digests of the files of each process.

        Raises StorageError if a file is not as its process wrote it.
        """
        written = [self._written]
        for process in range(1, self._rendezvous.count):
            self.stage.doing = "looking for what the other processes have written"
            self._rendezvous.poll()
            data = self._read(process, *reports[process])
            written.append(_unpack(data, len(files[process])))
            for file, result in zip(files[process], written[process], strict=True):
                if _size_of(f"{self.stage.path}/{file.path}") != result.size_bytes:
                    raise self._lost(file.path, process)
            self.stage.remove(_REPORT.format(process))
        return written

    def _read(self, process: int, size: int, digest: str) -> bytes:
        name = _REPORT.format(process)
        try:
            with LocalDirectory(self.stage.path) as directory:
                data = directory.read(name, limit_bytes=size)
        except (CorruptionError, LimitError) as e:
            raise self._lost(name, process) from e
        if digest_of(data).hex() != digest:
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
        """Enter the rendezvous in the block; announce an exception of it, then remove the files."""
        try:
            with self._rendezvous, self.stage.explain_errors():
                yield
        except BaseException as e:
            if self._rendezvous.index == 0:
                self.stage.abandon()
            elif self.stage.path and not self._reported and self._must_remove(e):
                with stop_check(never_stop):
                    remove_tree(self.stage.path)
            raise

    def _must_remove(self, error: BaseException) -> bool:
        """Return True if process 0 may have removed the staging directory before this one stopped.

        If no failure has been announced yet, process 0 will remove everything that exists now.
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
