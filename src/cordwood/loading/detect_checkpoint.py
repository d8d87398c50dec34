"""The format of a checkpoint, found in its bytes or in the names of its directory."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from cordwood.errors import IncompleteCheckpointError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.detect_file import format_of_file
from cordwood.formats.detect_in_store import format_in_store
from cordwood.formats.detect_on_hub import format_on_hub
from cordwood.formats.explain_absence import not_a_checkpoint
from cordwood.formats.list_steps import steps_in
from cordwood.formats.load_format import steps_beside, storage_of
from cordwood.formats.place import Place, place_at
from cordwood.formats.step_names import sorted_steps
from cordwood.formats.table import DEFAULT, Format
from cordwood.io.open_files import LocalFile
from cordwood.io.stale_handles import retry_stale
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.message_text import counted, listed
from cordwood.public_names import document_fields
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import kind_at, locate_directory


@document_fields
class Detected(NamedTuple):
    """The result of `detect`: the format of a path.

    Attributes:
        format: the name of the format, as in `Checkpoint.format`; or "steps", for a directory of
            checkpoints.
        description: the format in words.
        path: the path that was examined.
        steps: for "steps", the names of the checkpoints, oldest first. For the output of a Trainer
            of Hugging Face, the checkpoints in it, beside its model.
    """

    format: str
    description: str
    path: str
    steps: tuple[str, ...] = ()


def detect_checkpoint(location: Location) -> Detected:
    """Return the format of a file, a directory or a URL, as `detect`."""
    checkpoint = locate_checkpoint(location)
    if isinstance(checkpoint, Url):
        if checkpoint.is_hub:
            model_format = format_on_hub(checkpoint)
            return Detected(model_format.name, model_format.description, str(checkpoint))
        return _in_a_store(checkpoint)
    text, place = str(checkpoint), LocalPath(locate_directory(checkpoint))
    what = kind_at(place)
    if what == "a folder":
        format = format_in(Place(place))
        if format is not None:
            beside = steps_beside(format, Place(place))
            return Detected(format.name, format.description, text, tuple(beside))
        steps = steps_in(Place(place))
        if not steps:
            raise not_a_checkpoint(place, text)
        return _steps(text, steps)
    if what == "nothing":
        raise FileNotFoundError(errno.ENOENT, "there is nothing", text)
    file_format = retry_stale(partial(_format_at, place))
    return Detected(file_format.name, file_format.description, text)


def _format_at(path: LocalPath) -> Format:
    with LocalFile(path) as file:
        return format_of_file(file, path)


def _steps(path: str, steps: Sequence[str]) -> Detected:
    what = f"a directory of {counted(len(steps), 'step')}: {listed(steps)}"
    return Detected("steps", what, path, tuple(steps))


def _in_a_store(url: Url) -> Detected:
    store, text = storage_of(DEFAULT).store_at(url), str(url)
    names = store.names()
    if DEFAULT.index_name in names:
        return Detected(DEFAULT.name, DEFAULT.description, text)
    if url.is_web and not names:
        storage_of(DEFAULT).require_index(store)  # raises
    format = None if url.is_web else format_in_store(url)
    if format is not None:
        return Detected(format.name, format.description, text)
    if not names:
        raise FileNotFoundError(errno.ENOENT, "there is nothing", text)
    steps = sorted_steps(names) if url.is_web else steps_in(place_at(url))
    if steps:
        return _steps(text, steps)
    raise IncompleteCheckpointError(
        f"{url} has no {DEFAULT.index_name}: no save to it has finished, or it is no checkpoint; "
        f"found {listed(names)}"
    )
