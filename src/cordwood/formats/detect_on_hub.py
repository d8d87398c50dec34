"""The detection of the format of a model on the Hugging Face hub."""

from __future__ import annotations

from cordwood.errors import NotACheckpointError, UnsupportedFormatError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.place import place_at
from cordwood.formats.table import Format
from cordwood.message_text import first_names
from cordwood.storage.locations import Url

_MAX_NAMED = 8  # files, in a message


def format_on_hub(url: Url, named: Format | None = None) -> Format:
    """Return the format of a model, or of a folder in it: `named`, if the caller has named one.

    Raises:
        FileNotFoundError: there is no such model, revision or folder.
        NotACheckpointError: it is no checkpoint; names its files.
        UnsupportedFormatError: `named` is a format of files.
    """
    if named is not None:
        if named.is_directory:
            return named
        raise UnsupportedFormatError(
            f"{url} is a folder; format={named.name!r} is for files: name one of its files"
        )
    place = place_at(url)
    format = format_in(place)
    if format is None:
        raise NotACheckpointError(
            f"{url} is no checkpoint: expected model.safetensors, or *.safetensors.index.json with "
            f"its files; found {first_names(place.names, _MAX_NAMED)}. A file or a folder in it is "
            f"read by its name, such as {url}/{place.names[0]}"
        )
    return format
