"""The report of a process on the files that it has written, a file in the staging directory.

Process 0 reads and removes all of them before it commits: the digests of many chunks are too large
for a rendezvous.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.errors import CorruptionError, LimitError, StorageError
from cordwood.plan.file_plan import PlannedFile
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile

_REPORT = "report.{}"  # never the path of an array: a dot in a name becomes a slash
_SIZE = struct.Struct("<Q")


def write_report(
    stage: StagingDirectory, process: int, written: Sequence[WrittenFile]
) -> tuple[int, str]:
    """Write the report of a process; return its size and digest, for `read_report`."""
    sizes = [_SIZE.pack(file.size_bytes) for file in written]
    report = b"".join([*sizes, *[file.digests for file in written]])
    stage.create_file(_REPORT.format(process), [report])
    stage.doing = "flushing its directories to the disk"
    stage.sync_directories()
    return len(report), digest_of(report).hex()


def read_report(
    stage: StagingDirectory, process: int, report: tuple[int, str], files: Sequence[PlannedFile]
) -> list[WrittenFile]:
    """Read and remove the report of a process; return the sizes and digests of its files.

    Raises StorageError if a file is not as its process wrote it.
    """
    name = _REPORT.format(process)
    size_bytes, digest = report
    try:
        with LocalDirectory(stage.path) as directory:
            data = directory.read(name, limit_bytes=size_bytes)
    except (CorruptionError, LimitError) as e:
        raise _lost(stage, name, process) from e
    if digest_of(data).hex() != digest:
        raise _lost(stage, name, process)
    at = len(files) * _SIZE.size
    written = []
    for file, (size,) in zip(files, _SIZE.iter_unpack(data[:at]), strict=True):
        stop = at + block_count(size, BLOCK_BYTES) * DIGEST_BYTES
        written.append(WrittenFile(size, data[at:stop]))
        at = stop
        if stage.size_of(file.path) != size:
            raise _lost(stage, file.path, process)
    stage.remove(name)
    return written


def _lost(stage: StagingDirectory, name: str, process: int) -> StorageError:
    return StorageError(
        errno.EIO,
        f"{name} is not there as process {process} wrote it: something else changes the "
        "directory, or the file system is at fault; what was there before is untouched",
        stage.asked,
    )
