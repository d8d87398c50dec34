"""detect: what a path is."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.errors import IncompleteCheckpointError, counted
from cordwood.field_docs import document_fields
from cordwood.formats.detect_format import (
    format_of_directory,
    format_of_file,
    not_a_checkpoint,
    steps_at,
)
from cordwood.formats.packs.locate import store_at
from cordwood.formats.registry import DEFAULT
from cordwood.formats.step_directories import listed, sorted_steps
from cordwood.storage.open_files import LocalFile
from cordwood.storage.path_kind import kind_at
from cordwood.storage.staging_directory import locate_directory
from cordwood.storage.urls import local_or_url, parse_url


@document_fields
class Detected(NamedTuple):
    """The format of a path, as `detect` has found it.

    Attributes:
        format: as `Checkpoint.format` has it; "steps": a directory of checkpoints.
        description: what that is, in words.
        path: the path that was looked at.
        steps: of "steps": the names of the checkpoints, the oldest first.
    """

    format: str
    description: str
    path: str
    steps: tuple[str, ...] = ()


def detect(path: str | os.PathLike[str]) -> Detected:
    """Say which format a file, a directory or the URL of one is, by what it holds.

    A file's suffix counts only where its bytes would do for two formats. `open` and `load` go by
    the suffix where that is known, and otherwise by this.

    Args:
        path: what to look at. Little of it is read: of a file its header, of a directory the
            names in it.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        UnsupportedFormatError: it is a file of no known format.
        IncompleteCheckpointError: it is a directory without an index, and no directory of steps.
        NotACheckpointError: it is a directory with the indexes of two layouts.
            Each says what was looked for and what was found.

    >>> from cordwood import save
    >>> save("/tmp/example.safetensors", {"w": 1.5})
    >>> detect("/tmp/example.safetensors")[:2]
    ('safetensors', 'a safetensors file')
    """
    path = local_or_url(path)
    text = os.fspath(path)
    if parse_url(path) is not None:
        return _in_a_store(text)
    place = locate_directory(path)
    what = kind_at(place)
    if what == "a folder":
        format = format_of_directory(place)
        if format is not None:
            return Detected(format.name, format.description, text)
        steps = steps_at(place)
        if not steps:
            raise not_a_checkpoint(place, text)
        return _steps(text, steps)
    if what == "nothing":
        raise FileNotFoundError(errno.ENOENT, "there is nothing", text)
    with LocalFile(place) as file:
        found = format_of_file(file)
    return Detected(found.name, found.description, text)


def _steps(path: str, steps: Sequence[str]) -> Detected:
    what = f"a directory of {counted(len(steps), 'step')}: {listed(steps)}"
    return Detected("steps", what, path, tuple(steps))


def _in_a_store(url: str) -> Detected:
    names = store_at(url).names()
    if not names:
        raise FileNotFoundError(errno.ENOENT, "there is nothing", url)
    if DEFAULT.index_name in names:
        return Detected(DEFAULT.name, DEFAULT.description, url)
    steps = sorted_steps(names)
    if steps:
        return _steps(url, steps)
    raise IncompleteCheckpointError(
        f"{url} has no {DEFAULT.index_name}: no save to it has finished, or it is no checkpoint; "
        f"found {listed(names)}"
    )
