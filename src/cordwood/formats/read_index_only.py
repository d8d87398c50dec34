"""The leaves of a local checkpoint from its index alone, without numpy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.formats.format_protocol import Format, ListableFormat, is_listable
from cordwood.formats.registry import by_suffix, directory_formats
from cordwood.index import Index, LeafRuns
from cordwood.storage.paths import is_link, kind_at, local_or_url, parse_url


class QuickLook(NamedTuple):
    """The leaves of a checkpoint, from its index."""

    path: str
    format: str
    leaves: Index | LeafRuns
    metadata: Mapping[str, str]


def quick_look(
    path: str | os.PathLike[str], *, prefix: str | None, format: str | None
) -> QuickLook | None:
    """Return the leaves of a local checkpoint whose format and index can be seen at once.

    None for any other checkpoint, and where only opening it tells: if it is damaged, for example,
    or if its index is a symbolic link, which opening refuses.

    Raises what `cordwood.open` raises for an index.
    """
    path = local_or_url(path)
    text = os.fspath(path)
    if format is not None or parse_url(path) is not None:
        return None
    format_of_path = by_suffix(text)
    if format_of_path is not None:
        format_of_path = format_of_path if kind_at(text) == "a file" else None
    else:
        format_of_path = _only_directory_format(text)
    if format_of_path is None or not is_listable(format_of_path):
        return None
    listing = format_of_path.list_index(text, prefix)
    return None if listing is None else QuickLook(text, format_of_path.name, *listing)


def _only_directory_format(path: str) -> Format | None:
    """Return the only format whose index is a regular file in a directory; None: open it."""
    formats: list[ListableFormat] = [
        format
        for format in directory_formats()
        if is_listable(format) and kind_at(f"{path}/{format.index_name}") == "a file"
    ]
    if len(formats) != 1 or is_link(f"{path}/{formats[0].index_name}"):
        return None
    return formats[0]
