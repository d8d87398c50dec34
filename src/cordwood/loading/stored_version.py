"""The record of a published version of weights at a location."""

from __future__ import annotations

from contextlib import closing, suppress

from cordwood.errors import CordwoodError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.formats.table import DEFAULT
from cordwood.formats.version_record import VersionRecord, version_in
from cordwood.loading.open_reader import open_reader
from cordwood.storage.locations import Location


def stored_version(location: Location) -> VersionRecord | None:
    """Return the record of a version; None for anything else, or what cannot be read."""
    with suppress(CordwoodError, OSError):
        options = OpenOptions()
        reader = open_reader(location, format=DEFAULT.name, prefix=None, options=options)
        with closing(reader.opened):
            return version_in(reader.index.metadata, reader.path)
    return None
