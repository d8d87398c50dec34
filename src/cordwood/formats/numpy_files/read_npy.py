"""The index of a .npy file."""

from __future__ import annotations

from cordwood.errors import FormatError, TruncatedError, UnsupportedFormatError
from cordwood.formats.numpy_files.element_layout import raw_storage
from cordwood.formats.numpy_files.npy_header import (
    FIRST_BYTES,
    NpyHeader,
    header_bytes,
    parse_header,
)
from cordwood.index import Index, Leaf, Source
from cordwood.message_text import counted
from cordwood.storage.open_files import ReadableFile
from cordwood.tree.structure import LEAF

FORMAT = "npy"


def read_index(file: ReadableFile) -> Index:
    """Read the index of a .npy file: one numpy array is the tree. The file has no checksums.

    numpy writes bfloat16, which it does not have, as two bytes of void; they are read as bfloat16.
    The other types of ml_dtypes cannot be distinguished in this format.

    Raises:
        FormatError: it is not a .npy file, or holds more than one array.
        TruncatedError: it ends too early.
        LimitError: its header is longer than numpy allows, or has more dimensions.
        UnsupportedFormatError: its elements are Python objects, text, or of a type that the
            header does not name.
    """
    header = read_array_header(file, 0)
    if header.stop != file.size_bytes:
        raise FormatError(
            f"{file.name}: byte {header.stop}: expected the end of the data, found "
            f"{counted(file.size_bytes - header.stop, 'more byte')}: if these are more arrays, "
            'they have no names: load it with like= and format="eqx"'
        )
    storage = raw_storage(header, header.start)
    leaf = Leaf((), "numpy", header.shape, header.dtype, storage)
    return Index(FORMAT, (LEAF,), (leaf,), (Source(file.name, file.size_bytes),))


def read_array_header(file: ReadableFile, offset: int) -> NpyHeader:
    """Read the header of the array that begins at `offset`; check that the file holds all of it.

    Raises as `read_index`; the message names the file and the byte.
    """
    room = file.size_bytes - offset
    try:
        size = header_bytes(file.read(offset, min(FIRST_BYTES, room)))
        if size > room:
            raise TruncatedError(
                f"its header takes {size} bytes, and the file has {room}; copy or save it again"
            )
        header = parse_header(file.read(offset, size))
        if header.stop > room:
            raise TruncatedError(
                f"an array {header.dtype}{list(header.shape)} ends at byte "
                f"{offset + header.stop}, after the end of the file at byte {file.size_bytes}; "
                "copy or save it again"
            )
    except (FormatError, UnsupportedFormatError) as e:
        raise type(e)(f"{file.name}: byte {offset}: {e}") from e
    return header
