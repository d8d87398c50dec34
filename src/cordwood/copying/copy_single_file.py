"""The copy of a checkpoint that is one file."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from cordwood.copying.copy_step import Copier
from cordwood.errors import CordwoodError, UnsupportedFormatError
from cordwood.formats.detect_format import format_of
from cordwood.formats.suffixes import suffix_of
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.io.progress import METER, ProgressMeter
from cordwood.storage.atomic_file import atomic_file, finish_file
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import kind_at
from cordwood.storage.write_stream import write_chunks
from cordwood.verifying.verify_checkpoints import VerifyOptions, verify_checkpoint

_UNIT_BYTES = 8 << 20


def copy_single_file(source: LocalPath, destination: Location) -> Copier:
    """Copy a single local file to another local path."""
    copied = Copier(verify=False, in_pool=False)
    suffix = suffix_of(source.text)
    if isinstance(destination, Url):
        raise UnsupportedFormatError(
            f"{source} is a file, and an object store holds directories: cordwood.convert "
            f"(cordwood convert) writes it to {destination} as one"
        )
    if kind_at(destination) == "a folder" or suffix_of(destination.text) != suffix:
        raise UnsupportedFormatError(
            f"{destination}: expected the path of a file that ends in {suffix or 'no suffix'}, as "
            f"{source}; cordwood.convert (cordwood convert) writes other formats"
        )
    format = format_of(source, format=None, prefix=None).name
    with LocalFile(source) as file:
        if kind_at(destination) != "nothing":
            if not _same_bytes(file, destination):
                raise FileExistsError(
                    f"{destination}: there is another file already; copy replaces nothing: remove "
                    "it, or copy to another path"
                )
            finish_file(destination.text)  # it may be of a copy that was killed
            copied.steps_there, copied.skipped_bytes = [""], file.size_bytes
            return copied
        with atomic_file(destination) as temporary:
            write_chunks(temporary, _chunks_of(file, METER.get()))
            try:
                verify_checkpoint(LocalPath(temporary.path), VerifyOptions(format=format))
            except CordwoodError:
                verify_checkpoint(source, VerifyOptions(format=format))  # names the source
                raise
        copied.steps, copied.files, copied.copied_bytes = [""], 1, file.size_bytes
    return copied


def _chunks_of(file: ReadableFile, meter: ProgressMeter | None = None) -> Iterator[bytes]:
    """Read a file from its start to its end; `meter` counts the bytes once they are used."""
    for start in range(0, file.size_bytes, _UNIT_BYTES):
        data = file.read(start, min(_UNIT_BYTES, file.size_bytes - start))
        yield data
        if meter is not None:
            meter.advance(len(data), file.name)


def _same_bytes(file: ReadableFile, path: LocalPath) -> bool:
    with LocalFile(path) as other:
        return other.size_bytes == file.size_bytes and all(
            map(operator.eq, _chunks_of(file), _chunks_of(other))
        )
