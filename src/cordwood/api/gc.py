"""gc: what saves that died have left in a directory."""

from __future__ import annotations

import os

from cordwood.formats.detect_format import written_format
from cordwood.formats.format_protocol import WritableFormat
from cordwood.formats.registry import DEFAULT
from cordwood.storage.path_kind import is_folder
from cordwood.storage.staging_directory import collect_stages, locate_directory
from cordwood.storage.urls import local_or_url, parse_url


def gc(path: str | os.PathLike[str], *, dry_run: bool = False) -> list[str]:
    """Remove what saves of a directory that died have left there, or beside it.

    No tree loses anything. The next save of the directory does the same. Files of saves that are
    under way stay, and so does whatever is not cordwood's. In an object store there are no locks to
    tell the two apart: there, only what began more than 24 hours ago is taken for dead, and only by
    this function. A save that turns out to be alive all the same fails, and what was there before
    it stays.

    Args:
        path: the directory, or its URL.
        dry_run: remove nothing.

    Returns:
        The paths of what was, or would be, removed.

    Raises:
        FileNotFoundError: there is no directory at `path`.
        CorruptionError, FormatError: its index cannot be read, so nothing is removed.

    >>> from cordwood import save
    >>> save("/tmp/example-step-7", {"w": 1.5})
    >>> gc("/tmp/example-step-7")
    []
    """
    path = local_or_url(path)
    if parse_url(path) is not None:
        format: WritableFormat = DEFAULT
        beside: list[str] = []
    else:
        beside = collect_stages(path, dry_run=dry_run)
        if not is_folder(path) and (beside or locate_directory(path) != os.fspath(path)):
            return beside  # of saves that died before the first one ended, or between two renames
        format = written_format(path) or DEFAULT
    names = format.collect(path, dry_run=dry_run)
    return [os.fspath(path).rstrip("/") + f"/{name}" for name in names] + beside
