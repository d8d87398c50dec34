"""The files of a load and the options that all its reads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.index import Digests, Source
from cordwood.storage.open_files import ReadableFile


class ReadContext(NamedTuple):
    """The open sources of a checkpoint, and the options of reading."""

    sources: Sequence[Source]
    files: Sequence[ReadableFile]  # the sources, open
    digests: Sequence[Digests | None]  # one entry per source; may be fetched on first use
    mmap: bool  # the caller has checked the digests of mapped files
    verify: bool
