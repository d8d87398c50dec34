"""detect: the format of the checkpoint at a path."""

from __future__ import annotations

import os

from cordwood.loading.detect_checkpoint import Detected, detect_checkpoint
from cordwood.storage.locations import parse_location


def detect(path: str | os.PathLike[str]) -> Detected:
    """Return the format of a file, a directory or a URL, from its contents.

    The suffix of a file counts only if its bytes fit two formats. `open` and `load` use a known
    suffix first, and this otherwise.

    Args:
        path: a file, a directory, or the URL of a directory in an object store. Little of it is
            read: the header of a file, the names in a directory.

    Returns:
        The name of the format, a description, and for a directory of steps their names.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        UnsupportedFormatError: the file is of no known format.
        IncompleteCheckpointError: the directory has no index, and is no directory of steps.
        NotACheckpointError: the directory has the indexes of two formats.
            Each message names what was expected and what was found.

    >>> from cordwood import save
    >>> save("example.safetensors", {"w": 1.5})
    >>> detect("example.safetensors")[:2]
    ('safetensors', 'a safetensors file')
    """
    return detect_checkpoint(parse_location(path))
