"""The formats that the suffix of a name stands for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.table import Format, file_formats


def all_by_suffix(name: str) -> list[Format]:
    """Return the formats with the longest suffix that the name of a file ends in."""
    suffix = suffix_of(name)
    return [format for format in file_formats() if suffix and suffix in format.suffixes]


def by_suffix(name: str) -> Format | None:
    """Return the format that the suffix of a name stands for; of several, the first."""
    return next(iter(all_by_suffix(name)), None)


def suffix_of(name: str) -> str:
    """Return the suffix of a file format that a name ends in; "" for none."""
    return max(filter(name.endswith, suffixes_of(file_formats())), key=len, default="")


def suffixes_of(formats: Iterable[Format]) -> list[str]:
    """Return the suffixes of formats, each once."""
    return list(dict.fromkeys([suffix for format in formats for suffix in format.suffixes]))


def close_suffix(name: str) -> str | None:
    """Return the suffix of a format that a name nearly has; None if it has one, or none is near."""
    suffix = PurePath(name).suffix
    if not suffix or suffix_of(name):
        return None
    import difflib

    close = difflib.get_close_matches(suffix, suffixes_of(file_formats()), n=1)
    return close[0] if close else None


def require_suffix(path: str, formats: list[Format]) -> Format:
    """Return the format that the suffix of a path stands for.

    Raises UnsupportedFormatError for another suffix; the message lists those of `formats`.
    """
    format = by_suffix(path)
    if format is not None:
        return format
    suffix = PurePath(path).suffix
    close = close_suffix(path)
    hint = f"; did you mean {close}?" if close else ""
    names = ", ".join([repr(format.name) for format in formats])
    raise UnsupportedFormatError(
        f"{path}: expected a name that ends in {', '.join(suffixes_of(formats))}, found "
        f"{repr(suffix) if suffix else 'no suffix'}{hint} (or pass format=, one of {names})"
    )


# Suffixes of files that others write: a directory of such a name would be a mistake.
_FILE_SUFFIXES = frozenset(
    {
        *(".bin", ".gguf", ".gz", ".h5", ".hdf5", ".json", ".onnx", ".pickle", ".pkl"),
        *(".pt", ".pth", ".tar", ".zarr", ".zip", ".zst"),
    }
)


def is_directory_name(text: str) -> bool:
    """Return whether a name is meant for a directory, where the caller names no format.

    Every name is, but those with the suffix of a file: of a known format, of one that is
    misspelled, or of a format of other tools.

    >>> [is_directory_name(name) for name in ("ckpt/100", "run-1.5", "m.safetensor", "m.npz")]
    [True, True, False, False]
    """
    if text.endswith("/"):
        return True
    suffix = PurePath(text).suffix.lower()
    if suffix_of(text.lower()) or suffix in _FILE_SUFFIXES:
        return False
    import difflib

    suffixes = suffixes_of(file_formats(writable=True))
    return not difflib.get_close_matches(suffix, suffixes, n=1)
