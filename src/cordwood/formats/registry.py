"""The registry: all formats, in the order in which a file or directory is compared with them.

To add a format, write its package and add its line to FORMATS. Here is also decided which format a
save writes, and which destinations it refuses.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from cordwood.errors import NotACheckpointError, UnsupportedFormatError
from cordwood.formats.flax_msgpack import MSGPACK, MSGPACK_GZ, MSGPACK_RECORDS, MSGPACK_ZST
from cordwood.formats.format_protocol import (
    Format,
    Place,
    RunFormat,
    WritableFormat,
    has_runs,
    is_directory_format,
    is_writable,
    reads_stores,
)
from cordwood.formats.hugging_face import HUGGING_FACE, SHARDS, SINGLE_FILE
from cordwood.formats.numpy_files import EQX, NPY, NPZ
from cordwood.formats.ocdbt_arrays import OCDBT_ARRAYS
from cordwood.formats.orbax import ORBAX
from cordwood.formats.packs import PACKS
from cordwood.formats.safetensors import SAFETENSORS
from cordwood.formats.zarr import ZARR, ZARR_TREE
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import blocking_parent, is_folder, kind_at, locate_directory

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
    OCDBT_ARRAYS,
    ZARR_TREE,
)
# Formats that `save` and `convert` write where they are named, and managers do not: they do not
# hold all of a tree.
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


def run_formats() -> list[RunFormat]:
    """Return the formats of tools that have directories of steps of their own."""
    return [format for format in directory_formats() if has_runs(format)]


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
    suffix = suffix_of(name)
    return [format for format in FORMATS if suffix and suffix in format.suffixes]


def by_suffix(name: str) -> Format | None:
    """Return the format that the suffix of a name stands for; of several, the first."""
    return next(iter(all_by_suffix(name)), None)


def suffix_of(name: str) -> str:
    """Return the suffix of a file format that a name ends in; "" for none."""
    return max(filter(name.endswith, suffixes_of(FORMATS)), key=len, default="")


def suffixes_of(formats: Iterable[Format]) -> list[str]:
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


def format_in_object_store(url: Url, named: Format | None) -> WritableFormat:
    """Return the only format that is saved to object stores.

    Raises UnsupportedFormatError for another one.
    """
    if (named is not None and not is_directory_format(named)) or not is_directory_name(str(url)):
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


def format_to_read(url: Url, named: Format | None) -> Format:
    """Return the format to read at a URL: `named`, or the one that is saved to object stores.

    Raises UnsupportedFormatError for a format that is not read there.
    """
    if named is not None and reads_stores(named):
        return named
    return format_in_object_store(url, named)


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


def written_format(place: Place) -> WritableFormat | None:
    """Return the format of the checkpoint in a directory, of those that are written.

    Raises NotACheckpointError if there are indexes of several.
    """
    formats = [each for each in directory_formats() if is_writable(each) and each.matches(place)]
    if len(formats) > 1:
        names = " and ".join([each.index_name for each in formats])
        raise NotACheckpointError(
            f"{place.path} has both {names}: remove the one that is not meant"
        )
    return formats[0] if formats else None


# The format of a save


def format_for_saving(
    location: Location,
    *,
    format: str | None,
    layout: str | None,
    prefix: str | None,
    exports: bool = False,
) -> WritableFormat:
    """Return the format of a save to a location.

    Args:
        location: the destination.
        format: the name of a format, if the caller gave one.
        layout: the same, of a directory format.
        prefix: the name of the tree, if the caller gave one.
        exports: allow formats that do not hold all of a tree.

    Raises:
        UnsupportedFormatError: the suffix, `format` or `layout` names no format that is written.
        NotACheckpointError: there is a checkpoint of another format, or of another tool.
        ValueError: the arguments contradict each other.
    """
    text = str(location)
    named = _named(text, format, layout, exports=exports)
    if named in EXPORTS:
        return _export(location, named)
    if isinstance(location, Url):
        return format_in_object_store(location, named)
    blocking = blocking_parent(location)
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
    if not (is_directory_name(text) if named is None else is_directory_format(named)):
        refuse_prefix(text, prefix)
        if named is None:
            named = _require_writable(require_suffix(text, file_formats(writable=True)), text)
        kind_at(location)
        return named
    if named is not None and text.endswith(tuple(suffixes_of(file_formats(writable=True)))):
        which = "layout=" if layout is not None else f"format={format!r}"
        raise ValueError(
            f"{text}: {which} is for directories, and a name with the suffix of a file means a file"
        )
    return _of_directory(location, named)


def refuse_prefix(text: str, prefix: str | None) -> None:
    """Raise ValueError for a prefix of a file."""
    if prefix is not None:
        raise ValueError(f"{text}: prefix= is for directories; a file holds one tree")


def _named(
    text: str, format: str | None, layout: str | None, *, exports: bool
) -> WritableFormat | None:
    """Return the format that the caller has named; None where there is no name."""
    directories = [format for format in directory_formats() if is_writable(format)]
    directories += EXPORTS if exports else ()
    if layout is not None:
        named = next((each for each in directories if each.name == layout), None)
        if format not in (None, layout):
            other = by_name(format or "")
            raise ValueError(
                f"{text}: format={format!r} and layout={layout!r} name two formats: leave one out"
                if other is not None and is_directory_format(other)
                else f"{text}: layout= is for directories, and format={format!r} means a file"
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


def _export(location: Location, format: WritableFormat) -> WritableFormat:
    if isinstance(location, Url):
        raise UnsupportedFormatError(
            f"{location}: {format.description} is local; upload it from there"
        )
    format.refuse_foreign(location)
    format_for_saving(location, format=None, layout=DEFAULT.name, prefix=None)
    return format


def _of_directory(path: LocalPath, named: WritableFormat | None) -> WritableFormat:
    """Return `named`, or the format of the directory that is there, or else the default.

    Raises NotACheckpointError where `named` is not the format of the directory.
    """
    text, place = path.text, LocalPath(locate_directory(path))
    if kind_at(place) == "nothing":
        return named or DEFAULT
    existing = written_format(Place(place))
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


def _refuse_to_hide(place: LocalPath, *, asked: str) -> None:
    """Raise NotACheckpointError for a checkpoint that an index beside it would replace or hide."""
    from cordwood.formats.detect_format import format_of_directory

    format = format_of_directory(place) if is_folder(place) else None
    # A format that is written has come meanwhile.
    if format is not None and not is_writable(format):
        raise NotACheckpointError(
            f"{asked} is {format.description}, which cordwood only reads: remove it, or save to "
            "another path"
        )


def refuse_other_tools(place: LocalPath, *, asked: str) -> None:
    """Raise NotACheckpointError for a directory with checkpoints of a tool such as Orbax.

    `asked` is the path that the caller gave.
    """
    for format in run_formats():
        if format.is_at(Place(place)):
            raise NotACheckpointError(
                f"{asked} holds what {format.tool} has written, which cordwood only reads: remove "
                "it, or save to another path"
            )
