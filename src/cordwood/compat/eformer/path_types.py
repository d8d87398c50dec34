"""Paths as eFormer's callers write them: str, Path, its own path objects, file:// URLs."""

from __future__ import annotations

import os

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.urls import expand_home, parse_url


def local_path(path: object) -> str:
    """Return the path of a local directory.

    Raises UnsupportedFormatError for a URL of anything else.
    """
    text = os.fspath(expand_home(path if isinstance(path, os.PathLike) else str(path)))
    url = parse_url(text)
    if url is None:
        return text
    if url.scheme == "file":
        return url.key
    raise UnsupportedFormatError(
        f"{text}: this layout replaces whole directories, which {url.scheme}:// cannot do; save "
        "to a local directory, or use cordwood.save, whose own layout any store can hold"
    )
