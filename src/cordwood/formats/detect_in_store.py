"""The detection of what lies at a URL, and the formats that are saved there."""

from __future__ import annotations

from contextlib import suppress

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.detect_file import format_of_file
from cordwood.formats.place import place_at
from cordwood.formats.suffixes import is_directory_name
from cordwood.formats.table import DEFAULT, ZARR, ZARR_IN_STORE, Format
from cordwood.storage.locations import Url


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


def format_saved_to_stores(url: Url, named: Format | None) -> Format:
    """Return the format of a save to an object store: the default one, or zarr if it is named.

    Raises UnsupportedFormatError for another one.
    """
    if (named is not None and not named.is_directory) or not is_directory_name(str(url)):
        raise UnsupportedFormatError(
            f"{url}: an object store holds directories, and this means a file; leave the suffix "
            "out, or use a local path"
        )
    if named == ZARR:
        return ZARR_IN_STORE
    if named is not None and named != DEFAULT:
        raise UnsupportedFormatError(
            f"{url}: the format {named.name!r} needs a local path; an object store holds "
            f"{DEFAULT.name!r}, and compressed {ZARR.name!r}"
        )
    return DEFAULT


def _require_reads_stores(format: Format, url: Url) -> Format:
    if not format.reads_stores:
        raise UnsupportedFormatError(
            f"{url} is {format.description}, which is read on a disk only: download it, and load "
            "that copy"
        )
    return format
