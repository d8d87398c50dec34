"""The registry: all formats, in the order in which a file or directory is compared with them.

To add a format, write its package and add its line to FORMATS.
"""

from __future__ import annotations

from pathlib import Path

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.flax_msgpack import MSGPACK, MSGPACK_GZ, MSGPACK_RECORDS, MSGPACK_ZST
from cordwood.formats.format_protocol import (
    Format,
    WritableFormat,
    is_directory_format,
    is_writable,
)
from cordwood.formats.hugging_face import HUGGING_FACE, SHARDS, SINGLE_FILE
from cordwood.formats.numpy_files import EQX, NPY, NPZ
from cordwood.formats.orbax import ORBAX
from cordwood.formats.packs import PACKS
from cordwood.formats.safetensors import SAFETENSORS
from cordwood.formats.zarr import ZARR, ZARR_TREE

FORMATS: tuple[Format, ...] = (
    SAFETENSORS,
    NPZ,
    NPY,
    EQX,
    MSGPACK,
    MSGPACK_GZ,
    MSGPACK_ZST,
    MSGPACK_RECORDS,
    PACKS,
    ZARR,
    ORBAX,
    SHARDS,
    SINGLE_FILE,
    ZARR_TREE,
)
# Formats that only `convert` writes: they do not hold all of a tree.
EXPORTS: tuple[WritableFormat, ...] = (HUGGING_FACE,)

# The format of a new directory where the caller names none, and of all of an object store.
DEFAULT = PACKS


def file_formats(*, writable: bool = False) -> list[Format]:
    """Return the formats of one file; with `writable`, those that are written."""
    return [
        format for format in FORMATS if format.suffixes and (is_writable(format) or not writable)
    ]


def directory_formats() -> list[Format]:
    """Return the formats of directories."""
    return [format for format in FORMATS if is_directory_format(format)]


def writable_directory_formats() -> list[WritableFormat]:
    """Return the formats of directories that are written."""
    return [format for format in directory_formats() if is_writable(format)]


def by_name(name: str) -> Format | None:
    """Return the format of a name; None where there is none."""
    return next((format for format in (*FORMATS, *EXPORTS) if format.name == name), None)


def require_name(name: str) -> Format:
    """Return the format of a name. Raises UnsupportedFormatError with the names that there are."""
    format = by_name(name)
    if format is None:
        raise unknown_name(name, [format.name for format in FORMATS])
    return format


def unknown_name(name: str, names: list[str]) -> UnsupportedFormatError:
    """Return the error for a name that is none of `names`."""
    expected = ", ".join(map(repr, dict.fromkeys(names)))
    return UnsupportedFormatError(f"format {name!r} is unknown; expected one of {expected}")


def all_by_suffix(name: str) -> list[Format]:
    """Return the formats with the longest suffix that the name of a file ends in."""
    length = 0
    formats: list[Format] = []
    for format in FORMATS:
        for suffix in format.suffixes:
            if name.endswith(suffix):
                if len(suffix) > length:
                    length, formats = len(suffix), []
                if len(suffix) == length:
                    formats.append(format)
    return formats


def by_suffix(name: str) -> Format | None:
    """Return the format that the suffix of a name stands for; of several, the first."""
    formats = all_by_suffix(name)
    return formats[0] if formats else None


def suffix_of(name: str) -> str:
    """Return the suffix of a file format that a name ends in; "" for none."""
    suffixes = [each for format in FORMATS for each in format.suffixes if name.endswith(each)]
    return max(suffixes, key=len, default="")


def suffixes_of(formats: list[Format]) -> list[str]:
    """Return the suffixes of formats, each once."""
    return list(dict.fromkeys([suffix for format in formats for suffix in format.suffixes]))


def close_suffix(name: str) -> str | None:
    """Return the suffix of a format that a name nearly has; None if it has one, or none is near."""
    suffix = Path(name).suffix
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
    suffix = Path(path).suffix
    close = close_suffix(path)
    hint = f"; did you mean {close}?" if close else ""
    names = ", ".join([repr(format.name) for format in formats])
    raise UnsupportedFormatError(
        f"{path}: expected a name that ends in {', '.join(suffixes_of(formats))}, found "
        f"{repr(suffix) if suffix else 'no suffix'}{hint} (or pass format=, one of {names})"
    )


def format_in_object_store(url: str, named: Format | None) -> WritableFormat:
    """Return the only format of object stores. Raises UnsupportedFormatError for another one."""
    if (named is not None and not is_directory_format(named)) or not is_directory_name(url):
        raise UnsupportedFormatError(
            f"{url}: an object store holds directories, and this means a file; leave the suffix "
            "out, or use a local path"
        )
    if named is not None and named is not DEFAULT:
        raise UnsupportedFormatError(
            f"{url}: the layout {named.name!r} needs a local path; an object store holds "
            f"{DEFAULT.name!r}"
        )
    return DEFAULT


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
    suffix = Path(text).suffix.lower()
    if suffix_of(text.lower()) or suffix in _FILE_SUFFIXES:
        return False
    import difflib

    suffixes = suffixes_of(file_formats(writable=True))
    return not difflib.get_close_matches(suffix, suffixes, n=1)
