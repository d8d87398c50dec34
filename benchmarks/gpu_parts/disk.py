"""Plain rates of the host: the disk, the page cache, and the digests; jax takes no part."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bare import CHUNK_BYTES, read_into, read_through, write_direct
from benchmarks.gpu_parts.part import (
    MIB,
    NotPossibleError,
    Results,
    Setting,
    in_turns,
    seconds_of,
)

WRITE_THREADS = (1, 4)
READ_THREADS = (1, 2, 4, 8, 16)
DIGEST_THREADS = (1, 2, 4, 8)
_PROBE_BYTES = 64 * MIB
_SECONDS = 1.5  # of one write of the file: how large it is on a slow disk


def measure(setting: Setting, results: Results) -> None:
    """Measure rates in GB/s, by the number of threads."""
    import numpy as np

    path = setting.folder / "plain"
    noise = np.random.default_rng(0).bytes(min(setting.plain_bytes, 16 * CHUNK_BYTES))
    source = memoryview(mmap.mmap(-1, len(noise)))
    source[:] = noise

    def probe() -> int:
        size = min(setting.plain_bytes, _PROBE_BYTES)
        rate = size / seconds_of(lambda: _write_buffered(path, source, size))
        return file_bytes(rate, setting.plain_bytes)

    results.measure("bytes", probe)
    size = results.values.get("bytes", min(setting.plain_bytes, _PROBE_BYTES))
    memory = memoryview(mmap.mmap(-1, size))
    memory[:] = b"\1" * size

    def rates(works: Mapping[str, Callable[[], Any]], remaining: int) -> dict[str, float]:
        timed = {name: partial(seconds_of, work) for name, work in works.items()}
        rounds = in_turns(timed, until=setting.share(remaining), most=4)
        return {name: size / each.median / 1e9 for name, each in rounds.items()}

    def reads(direct: bool) -> Mapping[str, Callable[[], Any]]:
        return {
            str(threads): partial(read_into, path, memory, threads=threads, direct=direct)
            for threads in READ_THREADS
        }

    direct_writes = {str(n): partial(_write_direct, path, source, size, n) for n in WRITE_THREADS}
    digests = {str(n): partial(_digest, memory, n) for n in DIGEST_THREADS}
    buffered = {"1": partial(_write_buffered, path, source, size)}
    results.measure("write with O_DIRECT", lambda: _direct(lambda: rates(direct_writes, 5)))
    results.measure("write, buffered", lambda: rates(buffered, 4))
    results.measure("read with O_DIRECT", lambda: _direct(lambda: rates(reads(direct=True), 3)))
    read_through([path])
    results.measure("read from the page cache", lambda: rates(reads(direct=False), 2))
    results.measure("xxh3_128", lambda: rates(digests, 1))
    path.unlink()


def file_bytes(rate: float, most: int) -> int:
    """Return the size of the file for a disk that writes at a rate (bytes per second)."""
    whole = max(16 * MIB, int(rate * _SECONDS)) // CHUNK_BYTES * CHUNK_BYTES
    return min(most, whole)


def _direct(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    try:
        return work()
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise NotPossibleError("the file system of the folder has no O_DIRECT") from e


def _write_direct(path: Path, source: memoryview, size: int, threads: int) -> None:
    path.unlink(missing_ok=True)
    write_direct(path, source, size, threads=threads)


def _write_buffered(path: Path, source: memoryview, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, source.nbytes):
            file.write(source[: min(source.nbytes, size - start)])
        os.fsync(file.fileno())


def _digest(memory: memoryview, threads: int) -> None:
    import xxhash

    starts = range(0, memory.nbytes, MIB)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda at: xxhash.xxh3_128_digest(memory[at : at + MIB]), starts))
