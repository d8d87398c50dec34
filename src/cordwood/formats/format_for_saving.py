"""The format that a save writes, and destinations that it refuses."""

from __future__ import annotations

import errno
import os

from cordwood.errors import NotACheckpointError, UnsupportedFormatError
from cordwood.formats.detect_format import format_of_directory, run_formats, written_format
from cordwood.formats.format_protocol import (
    Format,
    WritableFormat,
    is_directory_format,
    is_writable,
)
from cordwood.formats.registry import (
    DEFAULT,
    EXPORTS,
    by_name,
    by_suffix,
    file_formats,
    format_in_object_store,
    is_directory_name,
    require_suffix,
    suffixes_of,
    unknown_name,
    writable_directory_formats,
)
from cordwood.storage.paths import blocking_parent, is_folder, kind_at, locate_directory, parse_url


def format_for_saving(
    path: str | os.PathLike[str],
    *,
    format: str | None,
    layout: str | None,
    prefix: str | None,
    exports: bool = False,
) -> WritableFormat:
    """Return the format of a save to `path`.

    Args:
        path: the destination.
        format: the name of a format, if the caller gave one.
        layout: the same, of a directory format.
        prefix: the name of the tree, if the caller gave one.
        exports: allow formats that do not hold all of a tree.

    Raises:
        UnsupportedFormatError: the suffix, `format` or `layout` names no format that is written.
        NotACheckpointError: there is a checkpoint of another format, or of another tool.
        ValueError: the arguments contradict each other.
    """
    text = os.fspath(path)
    named = _named(text, format, layout, exports=exports)
    if named in EXPORTS:
        return _export(path, named)
    if parse_url(path) is not None:
        return format_in_object_store(text, named)
    blocking = blocking_parent(path)
    if blocking is not None:
        raise NotADirectoryError(
            errno.ENOTDIR,
            f"{text} is to be saved below it, and it is no directory; save to another path",
            blocking,
        )
    if named is None and text.endswith("/") and by_suffix(text[:-1]):
        raise ValueError(
            f"{text}: the suffix means a file, and the slash at the end a directory: leave one "
            "out, or say layout="
        )
    if named is None and not is_directory_name(text):
        if prefix is not None:
            raise _no_prefix(text)
        named = _require_writable(require_suffix(text, file_formats(writable=True)), text)
    if named is not None and not is_directory_format(named):
        if prefix is not None:
            raise _no_prefix(text)
        kind_at(path)
        return named
    if named is not None and text.endswith(tuple(suffixes_of(file_formats(writable=True)))):
        which = "layout=" if layout is not None else f"format={format!r}"
        raise ValueError(
            f"{text}: {which} is for directories, and a name with the suffix of a file means a file"
        )
    return _of_directory(path, named)


def _no_prefix(text: str) -> ValueError:
    return ValueError(f"{text}: prefix= is for directories; a file holds one tree")


def _named(
    text: str, format: str | None, layout: str | None, *, exports: bool
) -> WritableFormat | None:
    """Return the format that the caller has named; None where there is no name."""
    extra = EXPORTS if exports else ()
    directories = [*writable_directory_formats(), *extra]
    if layout is not None:
        named = next((each for each in directories if each.name == layout), None)
        if format not in (None, layout):
            other = by_name(format) if format is not None else None
            if other is not None and is_directory_format(other):
                raise ValueError(
                    f"{text}: format={format!r} and layout={layout!r} name two formats: leave one "
                    "out"
                )
            raise ValueError(
                f"{text}: layout= is for directories, and format={format!r} means a file"
            )
        if named is None:
            names = ", ".join([repr(each.name) for each in directories])
            raise UnsupportedFormatError(f"layout {layout!r} is unknown; expected one of {names}")
        return named
    if format is None:
        return None
    chosen = by_name(format)
    writable = [each.name for each in (*file_formats(writable=True), *directories)]
    if chosen is None or (chosen in EXPORTS and not exports):
        raise unknown_name(format, writable)
    if not is_writable(chosen):
        names = ", ".join(map(repr, writable))
        raise UnsupportedFormatError(
            f"{text}: {chosen.name} is read, and not written; expected one of {names} as format="
        )
    return chosen


def _require_writable(format: Format, text: str) -> WritableFormat:
    if is_writable(format):
        return format
    suffixes = suffixes_of(file_formats(writable=True))
    raise UnsupportedFormatError(
        f"{text}: {format.name} is read, and not written; expected a name that ends in "
        f"{', '.join(suffixes)}, or one without a suffix, for a directory"
    )


def _export(path: str | os.PathLike[str], format: WritableFormat) -> WritableFormat:
    if parse_url(path) is not None:
        raise UnsupportedFormatError(
            f"{os.fspath(path)}: {format.description} is local; upload it from there"
        )
    format.refuse_foreign(path)
    format_for_saving(path, format=None, layout=DEFAULT.name, prefix=None)
    return format


def _of_directory(path: str | os.PathLike[str], named: WritableFormat | None) -> WritableFormat:
    """Return `named`, or the format of the directory that is there, or else the default.

    Raises NotACheckpointError where `named` is not the format of the directory.
    """
    text, place = os.fspath(path), locate_directory(path)
    if kind_at(place) == "nothing":
        return named or DEFAULT
    existing = written_format(place)
    if existing is None:
        refuse_other_tools(place, asked=text)
    if named is None:
        return existing or DEFAULT
    if existing is None:
        _refuse_to_hide(place, asked=text)
    elif existing is not named:
        raise NotACheckpointError(
            f"{text} is a checkpoint of the layout {existing.name!r}: save with layout="
            f"{existing.name!r}, remove it, or save to another path"
        )
    return named


def _refuse_to_hide(place: str, *, asked: str) -> None:
    """Raise NotACheckpointError for a checkpoint that an index beside it would replace or hide."""
    format = format_of_directory(place) if is_folder(place) else None
    # A format that is written has come meanwhile.
    if format is not None and not is_writable(format):
        raise NotACheckpointError(
            f"{asked} is {format.description}, which cordwood only reads: remove it, or save to "
            "another path"
        )


def refuse_other_tools(place: str | os.PathLike[str], *, asked: str) -> None:
    """Raise NotACheckpointError for a directory with checkpoints of a tool such as Orbax.

    `asked` is the path that the caller gave.
    """
    for format in run_formats():
        if format.is_at(place):
            raise NotACheckpointError(
                f"{asked} holds what {format.tool} has written, which cordwood only reads: remove "
                "it, or save to another path"
            )
