"""The digests of the sources of a checkpoint, some of which are in the sources themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import overload

from cordwood.encoding.digests import BLOCK_BYTES, MAX_BLOCK_BYTES
from cordwood.errors import CordwoodError
from cordwood.index import Digests, Source
from cordwood.io.open_files import ReadableFile
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks


class SourceDigests(Sequence[Digests | None]):
    """The digests of each source, or None; digests in a source's own header are read on demand."""

    def __init__(
        self, sources: Sequence[Source], fetch: Callable[[int], Digests] | None = None
    ) -> None:
        self._sources = sources
        self._fetch = fetch
        self._fetched: dict[int, Digests] = {}

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, number: int) -> Digests | None: ...

    @overload
    def __getitem__(self, number: slice) -> list[Digests | None]: ...

    def __getitem__(self, number: int | slice) -> Digests | list[Digests | None] | None:
        if isinstance(number, slice):
            return [self[i] for i in range(len(self))[number]]
        source = self._sources[number]
        if source.digests is not None or source.header_digest is None:
            return source.digests
        if number not in self._fetched:
            if self._fetch is None:
                raise ValueError(f"{source.name}: its digests are in itself: pass what reads them")
            self._fetched[number] = self._fetch(number)
        return self._fetched[number]

    def read_ahead(self, numbers: Collection[int], files: Sequence[ReadableFile]) -> None:
        """Read the digests in the headers of sources several at once, where reads are requests.

        A header that is damaged or missing is read again, and its error raised, when its digests
        are needed. Raises OSError where a store refuses.
        """
        unread = [
            number
            for number in sorted(numbers)
            if self._sources[number].digests is None
            and self._sources[number].header_digest is not None
            and number not in self._fetched
            and files[number].latency_bound
        ]

        def read(task: int) -> None:
            try:
                self[unread[task]]
            except CordwoodError as e:
                if isinstance(e, OSError):
                    raise

        if len(unread) > 1:
            threads = reading_threads(latency_bound=True)
            run_tasks(len(unread), threads=threads, make_worker=lambda: read)


def block_bytes(sources: Sequence[Source], *, verify: bool) -> list[int]:
    """Return for each source the size of the blocks that must be read whole; 0 for none.

    Reads nothing: a source with digests in its own header is assumed to have the usual block size.
    """
    if not verify:
        return [0] * len(sources)
    return [
        min(max(0, source.digests.block_bytes), MAX_BLOCK_BYTES)
        if source.digests is not None
        else BLOCK_BYTES * (source.header_digest is not None)
        for source in sources
    ]
