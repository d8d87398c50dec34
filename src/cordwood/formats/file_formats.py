"""Which format a path is in, and the few things each one can do."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cordwood.errors import UnsupportedFormatError
from cordwood.index import Index
from cordwood.storage.open_files import LocalFile, ReadableFile


class _Scanner(Protocol):
    def read_index(self, file: ReadableFile) -> Index: ...


class Format(NamedTuple):
    """One row of the table."""

    name: str
    suffix: str  # "": none of its own
    scanner: str  # the module whose `read_index` reads it
    description: str
    compression: str | None = None
    writable: bool = True


_FLAX = "cordwood.formats.flax_msgpack.read_index"
FORMATS: Sequence[Format] = (
    Format(
        "safetensors",
        ".safetensors",
        "cordwood.formats.safetensors.read_index",
        "a safetensors file",
    ),
    Format(
        "npz",
        ".npz",
        "cordwood.formats.numpy_files.read_npz",
        "numpy arrays in a zip archive",
        writable=False,
    ),
    Format(
        "npy", ".npy", "cordwood.formats.numpy_files.read_npy", "one numpy array", writable=False
    ),
    Format(
        "eqx",
        ".eqx",
        "cordwood.formats.numpy_files.read_eqx",
        "an equinox tree without names",
        writable=False,
    ),
    Format("msgpack", ".msgpack", _FLAX, "a tree in Flax's msgpack"),
    Format("msgpack.gz", ".msgpack.gz", _FLAX, "a tree in Flax's msgpack, under gzip", "gz"),
    Format("msgpack.zst", ".msgpack.zst", _FLAX, "a tree in Flax's msgpack, under zstd", "zst"),
    Format(
        "msgpack-records",
        "",
        "cordwood.formats.msgpack_records.read_index",
        "a stream of msgpack records, as EasyLM writes it",
        writable=False,
    ),
)
# Suffixes of files that others write: a directory of such a name would be a mistake.
_FILE_SUFFIXES = frozenset(
    {
        *(".bin", ".eqx", ".gguf", ".gz", ".h5", ".hdf5", ".json", ".npy", ".npz", ".onnx"),
        *(".pickle", ".pkl", ".pt", ".pth", ".tar", ".zarr", ".zip", ".zst"),
    }
)
_BY_NAME: Mapping[str, Format] = {row.name: row for row in FORMATS}


def format_for(path: str | os.PathLike[str], name: str | None) -> Format:
    """The format called `name`, or else the one that the path's suffix stands for.

    Raises:
        UnsupportedFormatError: neither is known; the message lists those that are.
    """
    return _format_for(path, name, FORMATS)


def _format_for(path: str | os.PathLike[str], name: str | None, rows: Sequence[Format]) -> Format:
    """As `format_for`; the message lists `rows` alone."""
    names = ", ".join(repr(row.name) for row in rows)
    if name is not None:
        if name in _BY_NAME:
            return _BY_NAME[name]
        raise UnsupportedFormatError(f"format {name!r} is unknown; expected one of {names}")
    text = os.fspath(path)
    row = format_by_suffix(text)
    if row is not None:
        return row
    suffix = Path(text).suffix
    close = close_suffix(text)
    hint = f"; did you mean {close}?" if close else ""
    suffixes = ", ".join(row.suffix for row in rows if row.suffix)
    raise UnsupportedFormatError(
        f"{text}: expected a name that ends in {suffixes}, found "
        f"{repr(suffix) if suffix else 'no suffix'}{hint} "
        f"(or pass format=, one of {names})"
    )


def close_suffix(name: str) -> str | None:
    """The known suffix that a name's is nearly, where it is none itself."""
    suffix = Path(name).suffix
    if not suffix or format_by_suffix(name) is not None:
        return None
    import difflib

    close = difflib.get_close_matches(suffix, [row.suffix for row in FORMATS], n=1)
    return close[0] if close else None


def format_by_suffix(name: str) -> Format | None:
    """The format that a name's suffix stands for."""
    found = [row for row in FORMATS if row.suffix and name.endswith(row.suffix)]
    return max(found, key=lambda row: len(row.suffix), default=None)


def format_to_write(path: str | os.PathLike[str], name: str | None) -> Format:
    """As `format_for`, of a file that is to be written.

    Raises:
        UnsupportedFormatError: no such format is known, or it can only be read.
    """
    row = _format_for(path, name, [row for row in FORMATS if row.writable])
    if not row.writable:
        known = [other.suffix for other in FORMATS if other.writable]
        raise UnsupportedFormatError(
            f"{os.fspath(path)}: {row.name} is read, and not written; expected a name that ends in "
            f"{', '.join(known)}, or one without a suffix, for a directory"
        )
    return row


def is_directory_name(text: str) -> bool:
    """Return whether a name without `format` or `layout` is meant for a directory.

    All are but those with the suffix of a file: one of a known format, one like it (a slip of
    the pen), or one that other tools write.

    >>> [is_directory_name(name) for name in ("ckpt/100", "run-1.5", "m.safetensor", "m.npz")]
    [True, True, False, False]
    """
    if text.endswith("/"):
        return True
    import difflib

    suffix = Path(text).suffix.lower()
    known = [row.suffix for row in FORMATS if row.suffix and row.writable]
    return suffix not in _FILE_SUFFIXES and not difflib.get_close_matches(suffix, known, n=1)


def open_source(
    path: str | os.PathLike[str],
    row: Format,
    *,
    max_bytes: int | None,
    read_once: bool,
    scratch: str | os.PathLike[str] | None,
) -> ReadableFile:
    """Return the bytes to read: the file itself, or what it decompresses to.

    Args:
        path: where it lies.
        row: its format.
        max_bytes: how far it may decompress; None: see `decompress_into`.
        read_once: whether each leaf is read at most once, so that memory can be given back.
        scratch: a directory on whose disk it is decompressed; None: in memory.
    """
    file = LocalFile(path)
    if row.compression is None:
        return file
    from cordwood.formats.compressed.decompress import decompress, decompress_into
    from cordwood.formats.flax_msgpack.value_size import ValueSize

    outline = ValueSize()
    with file:
        if scratch is None:
            return decompress(
                file, row.compression, max_bytes=max_bytes, outline=outline, read_once=read_once
            )
        from cordwood.storage.temporary_file import UnnamedTemporaryFile

        out = UnnamedTemporaryFile(scratch, file.name)
        try:
            decompress_into(out, file, row.compression, max_bytes=max_bytes, outline=outline)
            out.finish()
        except BaseException:
            out.close()
            raise
        return out


def read_file_index(file: ReadableFile, row: Format, *, max_bytes: int | None = None) -> Index:
    """Return what a source holds.

    `max_bytes` is for an archive whose members are compressed; what is compressed as a whole is
    limited by `open_source`.
    """
    module: Any = importlib.import_module(row.scanner)
    reader: Callable[..., Index] = module.read_index
    if row.name == "npz" and max_bytes is not None:
        return reader(file, max_bytes=max_bytes)
    return reader(file)
