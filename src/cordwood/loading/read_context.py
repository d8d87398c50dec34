"""What all reads of one load have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.index import Digests, Source
from cordwood.storage.open_files import ReadableFile


class ReadContext(NamedTuple):
    """What to read from, and how."""

    sources: Sequence[Source]
    files: Sequence[ReadableFile]  # the sources, open
    digests: Sequence[Digests | None]  # of each; sealed ones may be fetched when asked for
    mmap: bool  # the digests of files that are mapped have been checked by the caller
    verify: bool
