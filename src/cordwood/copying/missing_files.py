"""The data files of a step that its destination does not have whole."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from cordwood.errors import CorruptionError, FormatError
from cordwood.formats.load_format import copier_of
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.storage.storage_protocol import Storage
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads


def missing_files(target: Storage, files: Mapping[str, Source], *, by_size: bool) -> list[str]:
    """Return the new names of the files that the destination does not have whole, in their order.

    Args:
        target: the destination.
        files: the files by their new names.
        by_size: True to compare the sizes alone, where whole files alone have their names.
    """
    threads = reading_threads(latency_bound=True) if target.has_pool else 1
    whole = map_in_threads(
        partial(_is_whole, target, by_size=by_size), list(files.items()), threads=threads
    )
    return [name for name, is_present in zip(files, whole, strict=True) if not is_present]


def _is_whole(target: Storage, name: str, file: Source, *, by_size: bool) -> bool:
    with suppress(CorruptionError, FormatError, FileNotFoundError, NotADirectoryError):
        (opened,) = target.open([file._replace(name=name)])
        with opened:
            if by_size:
                opened.read(0, 0)  # compares its size
                return True
            return copier_of(DEFAULT).is_whole(opened, file)
    return False
