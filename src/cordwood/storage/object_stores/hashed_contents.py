"""The contents of a data object: hashed first, then filled into buffers part by part."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count
from cordwood.errors import StorageError
from cordwood.index import Digests
from cordwood.io.file_contents import FileContents
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.plan.file_plan import FilePlan, build_header, segment_offsets
from cordwood.storage.write_units import block_digests
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import default_threads
from cordwood.threads.thread_pool import run_tasks

_UNIT_BYTES = 4 << 20


class HashedContents:
    """The bytes of a data object, which are read twice: to hash them, and to send them.

    Args:
        name: the object, for errors.
        plan: its plan.
        leaves: the leaves.

    Attributes:
        plan: its plan.
        header: its first bytes, with the digests of all blocks.
    """

    def __init__(self, name: str, plan: FilePlan, leaves: Leaves) -> None:
        self._name = name
        self.plan = plan
        self._ends = segment_offsets(plan)
        self._contents = FileContents(plan.segments, self._ends, leaves.view)
        digests = plan.digests
        if digests is None or digests.block_bytes != BLOCK_BYTES:
            digests = Digests(plan.header_bytes, BLOCK_BYTES, self._hash())
        self._digests = digests
        self.header = build_header(plan, self._digests)

    def _hash(self) -> bytes:
        base, size = self.plan.header_bytes, self.plan.size_bytes
        values = bytearray(DIGEST_BYTES * block_count(size - base, BLOCK_BYTES))

        def make_worker() -> Callable[[int], None]:
            scratch = ScratchBuffer()

            def work(task: int) -> None:
                check_stop()
                start = base + task * _UNIT_BYTES
                unit = scratch.view(min(_UNIT_BYTES, size - start))
                self._fill(unit, start)
                digests = block_digests(unit)
                at = task * (_UNIT_BYTES // BLOCK_BYTES) * DIGEST_BYTES
                values[at : at + len(digests)] = digests

            return work

        units = block_count(size - base, _UNIT_BYTES)
        run_tasks(units, threads=default_threads(), make_worker=make_worker)
        return bytes(values)

    def _fill(self, buffer: memoryview, start: int) -> None:
        segment = bisect_right(self._ends, start) - 1
        self._contents.fill(buffer, segment, start - self._ends[segment])

    def fill_part(self, buffer: memoryview, start: int, stop: int) -> tuple[int, int]:
        """Fill bytes [start, stop) of the object into a buffer; return where they lie in it.

        The buffer has room for a block more: the block in which the part begins is filled whole, so
        that its digest can be compared.

        Raises StorageError for bytes that have changed since they were hashed.
        """
        base = self.plan.header_bytes
        head = self.header[start:stop] if start < base else b""
        buffer[: len(head)] = head
        first = max(start, base)
        first -= (first - base) % BLOCK_BYTES
        data = buffer[len(head) : len(head) + max(0, stop - first)]
        self._fill(data, first)
        cut = 0 if stop == self.plan.size_bytes else len(data) % BLOCK_BYTES
        at = (first - base) // BLOCK_BYTES * DIGEST_BYTES
        sent = block_digests(data[: len(data) - cut])
        if self._digests.values[at : at + len(sent)] != sent:
            raise StorageError(
                0,
                "a leaf changed while it was saved: expected the bytes that were hashed, found "
                "others; do not write to arrays during a save",
                self._name,
            )
        skip = max(start, base) - first
        return (0, stop - start) if head else (skip, skip + stop - start)
