"""verify: check every byte of a checkpoint against its digests."""

from __future__ import annotations

import os
from concurrent.futures import Executor

from cordwood.bulk.bulk_arguments import bulk_options
from cordwood.io.progress import ProgressOption
from cordwood.storage.locations import parse_location
from cordwood.verifying.verify_checkpoints import VerifyOptions, verify_checkpoint
from cordwood.verifying.verify_result import Verification


def verify(
    path: str | os.PathLike[str],
    *,
    sample: float = 1.0,
    seed: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
    format: str | None = None,
    max_bytes: int | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Verification:
    """Read a checkpoint and check every byte that a digest or checksum covers.

    A bare `.msgpack`, a safetensors file of another writer, and a zstd frame without a checksum
    carry no digests: their structure is checked, and their bytes are counted as unverified.

    In a directory all trees are checked, and all files are compared with its index. Files of saves
    that are in progress, or that died, are ignored. Trees that another tool saved into a directory
    of the zarr layout carry no digests. Orbax's checkpoints carry checksums only in the nodes of
    their databases. Members of a `.npz` carry a CRC-32.

    Chunks that an older Orbax left out because they were zeros are counted separately. If the
    files do not record such chunks, an array may lack all of its chunks, but not some of them.

    Args:
        path: a file, a directory, or the URL of a directory in an object store. The suffix of a
            file gives its format.
        sample: the share of the blocks of each file to check, chosen at random; more than 0, at
            most 1. 0.05 takes a twentieth of the time, and may miss damage that is in few places.
            The result counts only the bytes that were read as verified.
        seed: the seed of the random choice. None: another choice in each call.
        resume: a file that records which files of the checkpoint were verified. If it exists,
            left by an interrupted call, those files are not read again. It is removed at the
            end. A file that is not such a record is refused. It is for calls without tasks, of any
            format; `journal` is for tasks, of several processes or of one.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.
        format: the name of the format, for a file whose suffix does not give it. For a directory,
            no other format is looked for.
        max_bytes: the limit for the decompressed size of a compressed file, in bytes; see
            `cordwood.load`.
        executor: any executor of `concurrent.futures`, whose workers check the files: a
            `ProcessPoolExecutor`, or that of Dask, mpi4py or Ray. They read the same path. A
            directory of safetensors files is divided into tasks of 256 MiB; a checkpoint of another
            format is one task. The task of a worker that died is run again. None: this process.
        part: (i, n) checks part i of n, counted from 0, for jobs of several machines without an
            executor. The result counts the bytes of that part alone as verified.
        journal: a directory that lists the tasks that are done, for all parts. Calls with the same
            journal do not repeat them; a call without `part` does what remains, and removes it. It
            is refused while another call works on the same tasks.

    Returns:
        The numbers of leaves and bytes that were checked. Damage is an error instead.

    Raises:
        CorruptionError: bytes do not match or cannot be read from the disk (EIO), or files of a
            directory are missing, of another size, or too many; names each leaf, file and byte
            range.
        FileChangedError: another program wrote to a file in place while it was read.
        FormatError: the file, or the index of a directory, does not follow its format.
        IncompleteCheckpointError: the directory has no index.
        ProcessError: the executor lost all its workers, and takes no more tasks.
        StorageError: another call works with the same journal; names its process.
    """
    bulk = bulk_options(executor, part, journal)
    options = VerifyOptions(sample, seed, resume, progress, format, max_bytes, bulk)
    return verify_checkpoint(parse_location(path), options)
