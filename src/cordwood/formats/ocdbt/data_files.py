"""The table of data files in a manifest or node, to which its entries refer by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.errors import FormatError
from cordwood.formats.ocdbt.body_reader import BodyReader


class DataFile(NamedTuple):
    """A file that a node refers to, relative to the database."""

    base: bytes  # paths in the nodes of this file are relative to it
    path: bytes  # the whole path


def read_data_files(body: BodyReader, *, base: bytes) -> list[DataFile]:
    """Read a table of data files, whose paths are relative to `base`."""
    count = body.varint()
    shared = [0, *body.varints(max(0, count - 1))]
    lengths, bases = body.varints(count), body.varints(count)
    return [
        DataFile(base + path[:length], base + path)
        for path, length in zip(body.keys(shared, lengths), bases, strict=True)
    ]


def data_file_at(files: Sequence[DataFile], number: int) -> DataFile:
    """Return the data file of a number. Raises FormatError if the table has none."""
    if number >= len(files):
        raise FormatError(f"file {number} of {len(files)} is referred to")
    return files[number]
