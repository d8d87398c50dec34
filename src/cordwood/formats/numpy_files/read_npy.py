"""The index of a .npy file: one array."""

from __future__ import annotations

from cordwood.errors import FormatError
from cordwood.formats.numpy_files.npy_header import read_array_header
from cordwood.formats.numpy_files.npy_storage import raw_storage
from cordwood.index import LEAF, Index, Leaf, Source
from cordwood.io.open_files import ReadableFile
from cordwood.message_text import counted


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
    return Index("npy", (LEAF,), (leaf,), (Source(file.name, file.size_bytes),))
