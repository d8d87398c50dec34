from __future__ import annotations

import threading

import numpy as np
import pytest

from cordwood.errors import CorruptionError, StorageError
from cordwood.index import Digests, HeaderDigest, Source
from cordwood.io.execute_load import execute_load
from cordwood.io.memory_file import MemoryFile
from cordwood.io.source_digests import SourceDigests, block_bytes
from cordwood.plan.load_plan import LoadPlan, Move
from tests.block_digests import digests_of

SEALED = HeaderDigest(10, bytes(16))
KNOWN = Digests(0, 100, bytes(16))


def test_only_the_digests_that_are_needed_are_fetched_and_once() -> None:
    data = [np.full(1000, i, np.uint8).tobytes() for i in range(4)]
    damaged = data[3][:-1] + b"x"
    files = [MemoryFile(each, f"file {i}") for i, each in enumerate([*data[:3], damaged])]
    sources = [Source(f"file {i}", 1000, None, SEALED) for i in range(4)]
    fetched = []

    def fetch(number: int) -> Digests:
        fetched.append(number)
        return digests_of(data[number], start=0, block_bytes=100)

    digests = SourceDigests(sources, fetch)
    moves = (Move(1, 0, 10, 0, 0), Move(1, 5, 10, 0, 20), Move(2, 0, 10, 0, 40))
    execute_load(LoadPlan((50,), moves, ()), files, digests=digests, verify=True)
    assert fetched == [1, 2]
    execute_load(LoadPlan((50,), (Move(3, 0, 10, 0, 0),), ()), files, digests=digests, verify=False)
    assert fetched == [1, 2]
    plan = LoadPlan((50,), (Move(3, 950, 10, 0, 0),), ())
    with pytest.raises(CorruptionError, match="file 3: bytes 900 to 1000"):
        execute_load(plan, files, digests=digests, verify=True)
    assert fetched == [1, 2, 3]
    assert digests[1:3] == [digests[1], digests[2]]
    assert fetched == [1, 2, 3]


def test_read_pack_digests_are_never_taken_for_none() -> None:
    digests = SourceDigests(
        [Source("plain", 5), Source("a", 5, KNOWN), Source("b", 5, None, SEALED)]
    )
    assert list(digests[:2]) == [None, KNOWN]
    with pytest.raises(ValueError, match="b: its digests are in itself"):
        digests[2]


def test_the_blocks_to_read_are_known_without_fetching() -> None:
    sources = [
        Source("plain", 5),
        Source("a", 5, KNOWN),
        Source("b", 5, None, SEALED),
        Source("lies", 5, Digests(0, 1 << 60, b"")),
        Source("lies", 5, Digests(0, -5, b"")),
    ]
    assert block_bytes(sources, verify=True) == [0, 100, 1 << 20, 64 << 20, 0]
    assert block_bytes(sources, verify=False) == [0] * 5


class RemoteFile(MemoryFile):
    latency_bound = True


def test_headers_of_remote_files_are_read_together() -> None:
    data = [np.full(1000, i, np.uint8).tobytes() for i in range(3)]
    everybody = threading.Barrier(3, timeout=30)

    def fetch(number: int) -> Digests:
        everybody.wait()
        return digests_of(data[number], start=0, block_bytes=100)

    names = [f"file {i}" for i in range(3)]
    files = [RemoteFile(each, name) for each, name in zip(data, names, strict=True)]
    digests = SourceDigests([Source(name, 1000, None, SEALED) for name in names], fetch)
    moves = tuple([Move(i, 0, 1000, 0, 1000 * i) for i in range(3)])
    (buffer,) = execute_load(LoadPlan((3000,), moves, ()), files, digests=digests, verify=True)
    assert buffer.tobytes() == b"".join(data)


def test_what_is_read_ahead_raises_only_what_a_store_refuses() -> None:
    errors: dict[int, Exception] = {1: CorruptionError("damaged"), 2: StorageError(0, "refused")}

    def fetch(number: int) -> Digests:
        if number in errors:
            raise errors[number]
        return KNOWN

    files = [RemoteFile(bytes(5), str(i)) for i in range(4)]
    digests = SourceDigests([Source(str(i), 5, None, SEALED) for i in range(4)], fetch)
    digests.read_ahead([0, 1, 3], files)
    assert digests[0] == digests[3] == KNOWN
    with pytest.raises(CorruptionError, match="damaged"):
        digests[1]
    with pytest.raises(StorageError, match="refused"):
        digests.read_ahead([1, 2], files)
