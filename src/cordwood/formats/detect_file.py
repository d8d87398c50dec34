"""The detection of the format of a file, by its content."""

from __future__ import annotations

from cordwood.errors import FormatError, UnsupportedFormatError
from cordwood.formats.foreign_files import foreign_file, not_expected
from cordwood.formats.load_format import best_match, match_of
from cordwood.formats.place import Match, Place
from cordwood.formats.suffixes import all_by_suffix
from cordwood.formats.table import Format, file_formats
from cordwood.io.open_files import ReadableFile
from cordwood.storage.locations import Location


def format_of_file(file: ReadableFile, location: Location) -> Format:
    """Return the format of a file by its content. If two formats fit equally, its suffix decides.

    Raises UnsupportedFormatError if none fits; says which formats there are, and what the file is.
    """
    place = Place(location, file)
    format = best_match(all_by_suffix(file.name) + file_formats(), place)
    if format is not None:
        return format
    names = ", ".join([each.name for each in file_formats()])
    what = foreign_file(file) or f"{file.size_bytes} bytes that begin with {place.head[:8]!r}"
    raise UnsupportedFormatError(
        f"{file.name}: expected a file of one of the formats {names}, found {what}"
    )


def error_by_content(
    file: ReadableFile, location: Location, format: Format, error: FormatError
) -> FormatError | None:
    """Return the error for a file that could not be read as one of `format`, by what it is.

    None where nothing is better than `error`: the file is of that format, and damaged, or of no
    known kind.
    """
    place = Place(location, file)
    # Before `matches`: by its suffix an empty file may be msgpack.
    match = match_of(format, place) if file.size_bytes else Match.NO
    if match == Match.YES:
        return None
    others = [each for each in file_formats() if each is not format]
    other = best_match(others, place, above=match) if file.size_bytes else None
    if other is not None:
        instead = f"{other.description}: rename it, or pass format={other.name!r}"
        return type(error)(f"{error}; the file looks like {instead}")
    what = None if match else foreign_file(file)
    return None if what is None else not_expected(file.name, format.description, what, error=error)
