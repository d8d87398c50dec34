"""What an open checkpoint consists of, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from cordwood.index import Box, Digests, Index, Leaf
from cordwood.storage.open_files import ReadableFile

# Leaves by their positions, as far as they are wanted (None: whole): the same with their pieces.
Locate: TypeAlias = Callable[[Mapping[int, Sequence[Box] | None]], Mapping[int, Leaf]]


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Contents:
    """An index and its sources."""

    format: str
    index: Index
    files: Sequence[ReadableFile]  # the sources, open
    fetch_digests: Callable[[int], Digests] | None = None  # of a source that is sealed
    locate: Locate | None = None  # where the index leaves out pieces, which are too many
    is_current: Callable[[], bool] = _always  # whether no save has replaced it since


class Checked(NamedTuple):
    """How much of a directory was checked."""

    leaves: int
    size_bytes: int  # of its files, under digests
    unverified_bytes: int = 0  # of files of other writers
    unstored_chunks: int = 0  # not stored, and read as zeros
    unstored_leaves: tuple[str, ...] = ()  # which have them
