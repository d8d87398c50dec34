"""The format of the checkpoint that a verb is to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.detect_file import format_of_file
from cordwood.formats.detect_in_store import format_in_store, format_saved_to_stores
from cordwood.formats.detect_on_hub import format_on_hub
from cordwood.formats.explain_absence import absence, not_a_checkpoint
from cordwood.formats.load_format import best_match, run_reader_of
from cordwood.formats.place import Place
from cordwood.formats.suffixes import all_by_suffix, require_suffix
from cordwood.formats.table import DEFAULT, Format, file_formats, require_name, run_formats
from cordwood.io.open_files import LocalFile
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import kind_at, locate_directory

T = TypeVar("T")


def format_of(location: Location, *, format: str | None, prefix: str | None) -> Format:
    """Return the format of the checkpoint at a path.

    A file's suffix is believed, where it is known. Nothing is asked of an object store: it holds
    the default format, unless `read_with_format` finds out that it does not. The hub lists the
    files of a model.

    Args:
        location: a local path or a URL.
        format: the name of the format, if the caller gave one.
        prefix: the item that is asked for; None: any.

    Raises:
        ValueError: a prefix is asked for, and it is a file.
        UnsupportedFormatError: it is a file of no known format, or `format` is unknown, or is of
            directories and this is a file.
        FileNotFoundError: there is nothing.
        IncompleteCheckpointError: it is a directory without an index, perhaps one of steps, or what
            a save that did not finish was to become.
        NotACheckpointError: it is a directory with several indexes.
    """
    text = str(location)
    named = None if format is None else require_name(format)
    if isinstance(location, Url) and location.is_hub:
        return format_on_hub(location, named)
    if isinstance(location, Url):
        if named is not None and named.reads_stores:
            return named
        return format_saved_to_stores(location, named)
    if location.held is not None:
        return named or DEFAULT
    place, kind = location, kind_at(location)
    if kind == "nothing":
        place = LocalPath(locate_directory(location))
        kind = kind_at(place)
    is_for_directories = named is not None and named.is_directory
    if kind == "nothing":
        for each in run_formats():
            run_reader_of(each).refuse_unfinished(place)
        raise absence(location)
    if kind == "a folder" and (named is None or is_for_directories):
        detected = named or format_in(Place(place))
        if detected is None:
            raise not_a_checkpoint(place, text)
        return detected
    if is_for_directories:
        raise UnsupportedFormatError(
            f"{text} is {kind}; format={format!r} is for directories: leave format= out, or name "
            "that of the file"
        )
    refuse_prefix(text, prefix)
    return named or _format_by_suffix_or_content(place, text, is_file=kind == "a file")


def read_with_format(
    location: Location,
    read: Callable[[Format], T],
    *,
    format: str | None,
    prefix: str | None,
) -> T:
    """Return what `read` returns for the format of the checkpoint at a path.

    Where an object store has no checkpoint of cordwood at a URL, what lies there is listed, and
    `read` is called again for the format of the tool that wrote it.

    Raises as `format_of`, and what `read` raises.
    """
    detected = format_of(location, format=format, prefix=prefix)
    if isinstance(location, LocalPath) or location.is_web or location.is_hub or format is not None:
        return read(detected)
    try:
        return read(detected)
    except FileNotFoundError:
        other = format_in_store(location.plain)
        if other is None or other is detected:
            raise
    return read(other)


def refuse_prefix(text: str, prefix: str | None) -> None:
    """Raise ValueError for a prefix of a file."""
    if prefix is not None:
        raise ValueError(f"{text}: prefix= is for directories; a file holds one tree")


def _format_by_suffix_or_content(place: LocalPath, text: str, *, is_file: bool) -> Format:
    formats = all_by_suffix(text)
    if len(formats) != 1 and is_file:
        with LocalFile(place) as file:
            if not formats:
                return format_of_file(file, place)
            # The first format of a suffix is the usual one: another must recognise the file.
            return best_match(formats[1:], Place(place, file)) or formats[0]
    return require_suffix(text, file_formats())
