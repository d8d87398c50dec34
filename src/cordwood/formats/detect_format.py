"""Detection: the format of a file, of a directory, and of the checkpoint that a verb is to read."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cordwood.errors import (
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    UnsupportedFormatError,
)
from cordwood.formats.foreign_directories import foreign_directory
from cordwood.formats.foreign_files import foreign_file, not_expected
from cordwood.formats.load_format import match_of, run_reader_of
from cordwood.formats.place import Match, Place
from cordwood.formats.step_names import MAX_STEPS_OPENED, is_named_step, sorted_steps
from cordwood.formats.suffixes import (
    all_by_suffix,
    by_suffix,
    close_suffix,
    is_directory_name,
    require_suffix,
)
from cordwood.formats.table import (
    DEFAULT,
    Format,
    directory_formats,
    file_formats,
    require_name,
    run_formats,
)
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.message_text import counted, listed, nearest_name, printable
from cordwood.storage.directories import list_names, scan_directory
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import is_folder, is_link, kind_at, locate_directory, stale_stages

T = TypeVar("T")

_MAX_SIBLINGS = 1000  # entries beside a path that are compared with its name


# Files


def format_of_file(file: ReadableFile, location: Location) -> Format:
    """Return the format of a file by its content. If two formats fit equally, its suffix decides.

    Raises UnsupportedFormatError if none fits; says which formats there are, and what the file is.
    """
    place = Place(location, file)
    format = _best(all_by_suffix(file.name) + file_formats(), place)
    if format is not None:
        return format
    names = ", ".join([each.name for each in file_formats()])
    what = foreign_file(file) or f"{file.size_bytes} bytes that begin with {place.head[:8]!r}"
    raise UnsupportedFormatError(
        f"{file.name}: expected a file of one of the formats {names}, found {what}"
    )


def _best(formats: Sequence[Format], place: Place, *, above: Match = Match.NO) -> Format | None:
    """Return the format that fits best, of equal ones the first; None if none fits."""
    best = None
    for format in formats:
        match = match_of(format, place)
        if match > above:
            best, above = format, match
        if match == Match.YES:
            break
    return best


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
    other = _best(others, place, above=match) if file.size_bytes else None
    if other is not None:
        instead = f"{other.description}: rename it, or pass format={other.name!r}"
        return type(error)(f"{error}; the file looks like {instead}")
    what = None if match else foreign_file(file)
    return None if what is None else not_expected(file.name, format.description, what, error=error)


# Directories, on a disk or in an object store


def place_at(location: Location) -> Place:
    """Return the place of a directory. What lies below the URL of an object store is listed.

    Raises FileNotFoundError if nothing lies below a URL.
    """
    if isinstance(location, LocalPath):
        return Place(location)
    from cordwood.storage.object_stores.object_directory import ObjectDirectory

    return Place(location.plain, directory=ObjectDirectory(location))


def format_of_directory(path: LocalPath) -> Format | None:
    """Return the format of a local directory; None if it has none. Raises as `indexed_format`."""
    return format_in(place_at(path))


def format_in(place: Place) -> Format | None:
    """Return the format of the checkpoint that a directory is; None if it is none.

    Raises as `indexed_format`.
    """
    format = indexed_format(place)
    if format is not None or _is_directory_of_steps(place):
        return format
    below = Place(place.location, directory=place.directory, search_below=True)
    return next((each for each in directory_formats() if match_of(each, below)), None)


def indexed_format(place: Place) -> Format | None:
    """Return the format whose index, or whose items, lie in the directory itself.

    Raises NotACheckpointError if there are indexes of several formats that are written.
    """
    written = written_format(place)
    if written is not None:
        return written
    read_only = [each for each in directory_formats() if not each.is_writable]
    return _best(read_only, place)


def written_format(place: Place) -> Format | None:
    """Return the format of the checkpoint in a directory, of those that are written.

    Raises NotACheckpointError if there are indexes of several.
    """
    formats = [each for each in directory_formats() if each.is_writable and match_of(each, place)]
    if len(formats) > 1:
        names = " and ".join([each.index_name for each in formats])
        raise NotACheckpointError(
            f"{place.path} has both {names}: remove the one that is not meant"
        )
    return formats[0] if formats else None


def _is_directory_of_steps(place: Place) -> bool:
    """Return whether the directories in one are steps, and not the keys of a tree.

    Those that are called by a number alone are a list's, if they count from 0 on.
    """
    foreign = _foreign_steps(place)
    steps = steps_in(place, foreign=foreign)
    if any(map(is_named_step, steps)) or foreign:
        return True
    if all(map(str.isdecimal, steps)) and steps and sorted(steps) == sorted(place.folders):
        return sorted(map(int, steps)) != list(range(len(steps))) or any(
            indexed_format(place.child(name)) is not None for name in steps[-MAX_STEPS_OPENED:]
        )
    return False


def steps_at(location: Location) -> list[str]:
    """Return the names of the checkpoints of single steps in a directory, the oldest first."""
    return steps_in(place_at(location))


def steps_in(place: Place, *, foreign: Sequence[str] | None = None) -> list[str]:
    """Return the names of the checkpoints of single steps in a directory, the oldest first.

    Args:
        place: the directory.
        foreign: the steps of other tools in it, if the caller has looked for them.
    """
    if foreign is None:
        foreign = _foreign_steps(place)
    # A file whose name is a number is a chunk of an array.
    likely = [name for name in place.names if name in place.folders or is_named_step(name)]
    return sorted_steps(likely, extra=foreign)


def _foreign_steps(place: Place) -> list[str]:
    return [name for format in run_formats() for name in run_reader_of(format).steps_at(place)]


def format_in_store(url: Url) -> Format | None:
    """Return the format of what another tool has written to a URL; None if it is not known.

    Raises UnsupportedFormatError for a format that is not read in object stores.
    """
    try:
        place = place_at(url)
    except FileNotFoundError:
        from cordwood.storage.object_stores.object_file import whole_object

        with suppress(FileNotFoundError):
            return _require_reads_stores(format_of_file(whole_object(url), url), url)
        return None
    format = format_in(place)
    return None if format is None else _require_reads_stores(format, url)


def format_in_object_store(url: Url, named: Format | None) -> Format:
    """Return the only format that is saved to object stores.

    Raises UnsupportedFormatError for another one.
    """
    if (named is not None and not named.is_directory) or not is_directory_name(str(url)):
        raise UnsupportedFormatError(
            f"{url}: an object store holds directories, and this means a file; leave the suffix "
            "out, or use a local path"
        )
    if named is not None and named is not DEFAULT:
        raise UnsupportedFormatError(
            f"{url}: the format {named.name!r} needs a local path; an object store holds "
            f"{DEFAULT.name!r}"
        )
    return DEFAULT


def format_to_read(url: Url, named: Format | None) -> Format:
    """Return the format to read at a URL: `named`, or the one that is saved to object stores.

    Raises UnsupportedFormatError for a format that is not read there.
    """
    if named is not None and named.reads_stores:
        return named
    return format_in_object_store(url, named)


def _require_reads_stores(format: Format, url: Url) -> Format:
    if not format.reads_stores:
        raise UnsupportedFormatError(
            f"{url} is {format.description}, which is read on a disk only: download it, and load "
            "that copy"
        )
    return format


# What a verb is to read


def format_of(location: Location, *, format: str | None, prefix: str | None) -> Format:
    """Return the format of the checkpoint at a path.

    A file's suffix is believed, where it is known. Nothing is asked of an object store: it holds
    the default format, unless `read_with_format` finds out that it does not.

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
    if isinstance(location, Url):
        return format_to_read(location, named)
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
        detected = named or format_of_directory(place)
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
    if isinstance(location, LocalPath) or location.is_web or format is not None:
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
            return _best(formats[1:], Place(place, file)) or formats[0]
    return require_suffix(text, file_formats())


# What to say where there is no checkpoint


def absence(path: LocalPath) -> OSError:
    """Return the error for a path with nothing there: an unfinished save, or a similar name."""
    stages = stale_stages(path)
    if stages:
        return IncompleteCheckpointError(
            f"{path}: a save to this path has not finished; it left {Path(stages[-1]).name} "
            "beside it: wait if it is still running; otherwise load an earlier checkpoint, or save "
            "again"
        )
    if is_link(path):
        what = "there is no checkpoint where this symbolic link leads"
        return FileNotFoundError(errno.ENOENT, what, path.text)
    parent = Path(path).parent
    if not is_folder(parent):
        what = f"there is no checkpoint, as there is no directory {os.fspath(parent)!r}"
        return FileNotFoundError(errno.ENOENT, what, path.text)
    name = Path(path).name
    siblings = [entry.name for entry in scan_directory(os.fspath(parent))[:_MAX_SIBLINGS]]
    # It may have come just now.
    close = nearest_name(name, [each for each in siblings if each != name])
    steps = steps_at(LocalPath(str(parent))) if name == "latest" else []
    if steps:
        hint = printable(f" (no step is complete; the newest is {_newest(parent, steps)})")
    elif close is not None:
        hint = printable(f" (did you mean {os.fspath(parent / close)}?)")
    else:
        suffix = close_suffix(path.text)
        hint = f" (did you mean one that ends in {suffix}?)" if suffix else ""
    return FileNotFoundError(errno.ENOENT, f"there is no checkpoint{hint}", path.text)


def not_a_checkpoint(place: LocalPath, text: str) -> OSError | IncompleteCheckpointError:
    """Return the error for a directory without an index; `text` is what the caller calls it."""
    steps = steps_at(place)
    if steps:
        return IncompleteCheckpointError(
            f"{text} is a directory of {counted(len(steps), 'step')} ({listed(steps)}), not "
            f"a checkpoint: load one of them; the newest is {_newest(Path(place), steps)}; "
            f"`cordwood steps {shlex.quote(text)}` lists all"
        )
    names = list_names(place.text)
    if not names and not is_folder(place):  # it has just been removed
        return absence(LocalPath(text))
    if not names:
        return IncompleteCheckpointError(
            f"{text} is an empty directory: expected a directory with an index, or a checkpoint "
            "file"
        )
    foreign = foreign_directory(text, names)
    if foreign is not None:
        return IncompleteCheckpointError(
            f"{text} is not a checkpoint that is read: it is {foreign}"
        )
    from cordwood.formats.packs.cordwood_json import INDEX_NAME
    from cordwood.formats.packs.file_names import PACK_NAME

    files = [name for name in names if by_suffix(name) is not None]
    advice = ""
    if any(map(PACK_NAME.fullmatch, names)):
        advice = (
            "; wait if a save to it is still running; otherwise load another checkpoint, or save "
            f"again (if {INDEX_NAME} was removed: restore a copy)"
        )
    elif files:
        advice = f"; one of its files can be loaded by itself: {Path(place) / files[0]}"
    indexes = " or ".join([each.index_name for each in directory_formats()])
    return IncompleteCheckpointError(
        f"{text} is not a checkpoint, or no save to it has finished: it contains {listed(names)}, "
        f"and no index ({indexes}){advice}"
    )


def _newest(place: Path, steps: Sequence[str]) -> Path:
    """Return the newest step that is a checkpoint, as far as can be told; else the newest."""
    for name in reversed(steps[-MAX_STEPS_OPENED:]):
        child = place / name
        if not is_folder(child) or format_of_directory(LocalPath(str(child))) is not None:
            return child
    return place / steps[-1]
