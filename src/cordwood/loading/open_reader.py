"""The opening of a checkpoint: its step is located, its format detected, its index read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cordwood.errors import FormatError
from cordwood.formats.detect_file import error_by_content
from cordwood.formats.detect_format import read_with_format
from cordwood.formats.format_protocol import OpenOptions
from cordwood.formats.load_format import reader_of
from cordwood.formats.table import Format
from cordwood.io.open_files import LocalFile
from cordwood.loading.enclosing_checkpoint import enclosing_checkpoint
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.storage.locations import Location, Url
from cordwood.threads.run_in_worker import run_in_worker


def open_reader(
    location: Location, *, format: str | None, prefix: str | None, options: OpenOptions
) -> LeafReader:
    """Open a checkpoint; the caller closes it. Raises as `cordwood.open` does.

    The first of each kind is opened in a worker, because this imports the modules of the format: a
    signal handler that saves in the middle would wait for imports of the main thread. A worker
    takes as long as the opening of a small checkpoint, so later ones are opened directly.
    """
    kind = format or str(location).rpartition(".")[2]
    if kind in _opened_kinds:
        return _open_reader(location, format, prefix, options)
    reader = run_in_worker(lambda: _open_reader(location, format, prefix, options))
    _opened_kinds.add(kind)
    return reader


_opened_kinds: set[str] = set()  # formats by name, or suffixes


def _open_reader(
    location: Location, format: str | None, prefix: str | None, options: OpenOptions
) -> LeafReader:
    checkpoint = locate_checkpoint(location)
    enclosing = enclosing_checkpoint(checkpoint) if format is None and prefix is None else None
    if enclosing is not None:
        checkpoint, prefix = enclosing

    def read(detected_format: Format) -> LeafReader:
        with explaining_format(checkpoint, detected_format):
            opened = reader_of(detected_format).open_item(
                detected_format, checkpoint, prefix, options
            )
            return LeafReader(str(checkpoint), opened, checkpoint)

    return read_with_format(checkpoint, read, format=format, prefix=prefix)


@contextmanager
def explaining_format(location: Location, format: Format) -> Iterator[None]:
    """Say what the file is in a FormatError of the block, where it is not of the format."""
    try:
        yield
    except FormatError as e:
        if format.is_directory or isinstance(location, Url):
            raise
        with LocalFile(location) as file:
            better = error_by_content(file, location, format, e)
        if better is None:
            raise
        raise better from e
