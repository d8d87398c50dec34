"""The choice of the format that a save writes, and the destinations that it refuses."""

from __future__ import annotations

import errno

from cordwood.errors import NotACheckpointError, UnsupportedFormatError
from cordwood.formats.detect_directory import format_in, written_format
from cordwood.formats.detect_format import refuse_prefix
from cordwood.formats.detect_in_store import format_saved_to_stores
from cordwood.formats.load_format import writer_of
from cordwood.formats.place import Place
from cordwood.formats.refuse_other_tools import refuse_other_tools
from cordwood.formats.suffixes import by_suffix, is_directory_name, require_suffix, suffixes_of
from cordwood.formats.table import (
    DEFAULT,
    EXPORTS,
    Format,
    by_name,
    directory_formats,
    file_formats,
    unknown_name,
)
from cordwood.storage.hub.hub_address import refuse_hub
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import blocking_parent, is_folder, kind_at, locate_directory


def format_for_saving(
    location: Location,
    *,
    format: str | None,
    prefix: str | None,
    exports: bool = False,
) -> Format:
    """Return the format of a save to a location.

    Args:
        location: the destination.
        format: the name of a format, if the caller gave one.
        prefix: the name of the tree, if the caller gave one.
        exports: allow formats that do not hold all of a tree.

    Raises:
        UnsupportedFormatError: the suffix or `format` names no format that is written.
        NotACheckpointError: there is a checkpoint of another format, or of another tool.
        ValueError: the arguments contradict each other.
    """
    refuse_hub(location)
    text = str(location)
    named = _named(text, format, exports=exports)
    if named in EXPORTS:
        return _export(location, named)
    if isinstance(location, Url):
        return format_saved_to_stores(location, named)
    blocking = blocking_parent(location)
    if blocking is not None:
        raise NotADirectoryError(
            errno.ENOTDIR,
            f"{text} is to be saved below it, and it is no directory; save to another path",
            blocking,
        )
    if named is None and text.endswith("/") and by_suffix(text[:-1]):
        raise ValueError(
            f"{text}: the suffix means a file, and the slash at the end a directory: leave one "
            "out, or say format="
        )
    if not (is_directory_name(text) if named is None else named.is_directory):
        refuse_prefix(text, prefix)
        if named is None:
            named = _require_writable(require_suffix(text, file_formats(writable=True)), text)
        kind_at(location)
        return named
    if named is not None:
        _refuse_file_suffix(text, named)
    return _of_directory(location, named)


def _named(text: str, format: str | None, *, exports: bool) -> Format | None:
    """Return the format that the caller has named; None where there is no name."""
    if format is None:
        return None
    chosen = next((each for each in EXPORTS if exports and each.name == format), by_name(format))
    directories = [each for each in directory_formats() if each.is_writable]
    directories += EXPORTS if exports else ()
    writable = [each.name for each in (*file_formats(writable=True), *directories)]
    if chosen is None or (chosen in EXPORTS and not exports):
        raise unknown_name(format, writable)
    if not chosen.is_writable:
        names = ", ".join(map(repr, writable))
        raise UnsupportedFormatError(
            f"{text}: {chosen.name} is read, and not written; expected one of {names} as format="
        )
    return chosen


def _require_writable(format: Format, text: str) -> Format:
    if format.is_writable:
        return format
    suffixes = suffixes_of(file_formats(writable=True))
    raise UnsupportedFormatError(
        f"{text}: {format.name} is read, and not written; expected a name that ends in "
        f"{', '.join(suffixes)}, or one without a suffix, for a directory"
    )


def _export(location: Location, format: Format) -> Format:
    if isinstance(location, Url):
        raise UnsupportedFormatError(
            f"{location}: {format.description} is local; upload it from there"
        )
    writer_of(format).refuse_foreign(format, location)
    _refuse_file_suffix(location.text, format)
    format_for_saving(location, format=DEFAULT.name, prefix=None)
    return format


def _refuse_file_suffix(text: str, format: Format) -> None:
    """Raise ValueError if the name of a directory has the suffix of a file format."""
    suffixes = list(filter(text.endswith, suffixes_of(file_formats(writable=True))))
    if suffixes:
        raise ValueError(
            f"{text}: the format {format.name} is one of directories, and a name with the suffix "
            f"of a file means a file: leave out {max(suffixes, key=len)}"
        )


def _of_directory(path: LocalPath, named: Format | None) -> Format:
    """Return `named`, or the format of the directory that is there, or else the default.

    Raises NotACheckpointError where `named` is not the format of the directory.
    """
    text, place = path.text, LocalPath(locate_directory(path))
    if kind_at(place) == "nothing":
        return named or DEFAULT
    existing = written_format(Place(place))
    if existing is None:
        refuse_other_tools(place, asked=text)
    if named is None:
        return existing or DEFAULT
    if existing is None:
        _refuse_to_hide(place, asked=text)
    elif existing is not named:
        raise NotACheckpointError(
            f"{text} is a checkpoint of the format {existing.name!r}: save with format="
            f"{existing.name!r}, remove it, or save to another path"
        )
    return named


def _refuse_to_hide(place: LocalPath, *, asked: str) -> None:
    """Raise NotACheckpointError for a checkpoint that an index beside it would replace or hide."""
    format = format_in(Place(place)) if is_folder(place) else None
    # A format that is written has come meanwhile.
    if format is not None and not format.is_writable:
        raise NotACheckpointError(
            f"{asked} is {format.description}, which cordwood only reads: remove it, or save to "
            "another path"
        )
