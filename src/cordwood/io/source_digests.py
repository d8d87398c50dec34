"""The digests of the sources of a checkpoint, also where the sources themselves contain them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from cordwood.encoding.digests import BLOCK_BYTES, MAX_BLOCK_BYTES
from cordwood.index import Digests, Source


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


def block_bytes(sources: Sequence[Source], *, verify: bool) -> list[int]:
    """Return for each source the size of the blocks that must be read whole; 0 for none.

    Reads nothing: a source with digests in its own header is assumed to have the usual block size.
    """
    sizes = []
    for source in sources:
        size = 0
        if verify and source.digests is not None:
            size = min(max(0, source.digests.block_bytes), MAX_BLOCK_BYTES)
        elif verify and source.header_digest is not None:
            size = BLOCK_BYTES
        sizes.append(size)
    return sizes
