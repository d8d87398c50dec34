"""Files of JSON that Orbax writes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError, FormatError
from cordwood.storage.readable_directory import ReadableDirectory

MAX_FILE_BYTES = 1 << 29


def read_json(directory: ReadableDirectory, path: str, *, limit_bytes: int = MAX_FILE_BYTES) -> Any:
    """Return the value in a file. Raises CorruptionError, FormatError and LimitError."""
    data = directory.read(path, limit_bytes=limit_bytes)
    return parse_json(data, f"{directory.name}/{path}", allow_nan=True)


def read_object(directory: ReadableDirectory, path: str, *, limit_bytes: int) -> dict[str, Any]:
    """Return the members of the object in a file. Raises as `read_json`."""
    members = read_json(directory, path, limit_bytes=limit_bytes)
    if type(members) is not dict:
        raise FormatError(f"{directory.name}/{path}: expected an object, found {members!r:.80}")
    return members


def read_object_if_any(
    directory: ReadableDirectory, path: str, *, limit_bytes: int
) -> dict[str, Any]:
    """Return the members of the object in a file; {} if there is none that can be read."""
    with suppress(CordwoodError, PermissionError):
        if directory.has(path):
            return read_object(directory, path, limit_bytes=limit_bytes)
    return {}


def as_float(value: object) -> float | None:
    """Return a number of JSON as a float; None for anything else, or a number too large."""
    if type(value) not in (int, float):
        return None
    with suppress(OverflowError):
        return float(value)  # type: ignore[arg-type]
    return None
