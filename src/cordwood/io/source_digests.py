"""The digests of a checkpoint's sources, those that lie in the sources themselves included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from cordwood.encoding.digests import BLOCK_BYTES, MAX_BLOCK_BYTES
from cordwood.index import Digests, Source


class SourceDigests(Sequence[Digests | None]):
    """One for each source, or None where it has none; sealed ones are fetched when asked for."""

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
    """Of each source, the size of the blocks that have to be read as wholes; 0 where none have.

    Nothing is fetched for this: sealed sources are taken to have blocks of the usual size.
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
