"""`_strings.json`: the values of leaves that are strings."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import FormatError
from cordwood.formats.orbax.json_files import read_json
from cordwood.storage.readable_directory import ReadableDirectory

STRINGS_NAME = "_strings.json"


def read_strings(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return the values of string leaves, by their names."""
    strings = read_json(directory, STRINGS_NAME)
    if type(strings) is not dict or not all(type(text) is str for text in strings.values()):
        raise FormatError(f"{directory.name}/{STRINGS_NAME}: expected an object of strings")
    return strings
