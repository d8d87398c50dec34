"""The index of an equinox file: the arrays of a tree as consecutive .npy, without names.

`equinox.tree_serialise_leaves` writes a `.npy` for each leaf that is an array or a number, in the
order of `jax.tree.leaves`. Other leaves (functions, strings) are not stored.
"""

from __future__ import annotations

from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.numpy_files.read_npy import MAGIC, raw_storage, read_array_header
from cordwood.index import Index, Leaf, Source
from cordwood.message_text import counted
from cordwood.storage.open_files import ReadableFile
from cordwood.tree.structure import LEAF, Node

FORMAT = "eqx"
MAX_ARRAYS = 1 << 20


def read_index(file: ReadableFile) -> Index:
    """Read the index of an equinox file: a list of numpy arrays. The file has no checksums.

    Raises:
        FormatError: something other than a .npy array follows; the message names the byte.
        TruncatedError: the file ends inside an array.
        LimitError: it holds more than MAX_ARRAYS.
        UnsupportedFormatError: elements are Python objects, text, or of a type that .npy does
            not name (float8, int4).
    """
    leaves: list[Leaf] = []
    at = 0
    while at < file.size_bytes:
        if len(leaves) == MAX_ARRAYS:
            raise LimitError(f"{file.name}: more than {MAX_ARRAYS} arrays (MAX_ARRAYS)")
        head = file.read(at, min(len(MAGIC), file.size_bytes - at))
        if head != MAGIC:
            raise FormatError(
                f"{file.name}: byte {at}: expected the end or another .npy array after "
                f"{counted(len(leaves), 'array')}, found {head!r}: it is damaged, or was written "
                "with a custom filter_spec, which only equinox can read"
            )
        try:
            header = read_array_header(file, at)
        except UnsupportedFormatError as e:
            raise UnsupportedFormatError(f"{e} (it is array {len(leaves)}, counted from 0)") from e
        storage = raw_storage(header, at + header.start)
        leaves.append(Leaf((len(leaves),), "numpy", header.shape, header.dtype, storage))
        at += header.stop
    structure = (Node("list", len(leaves)), *[LEAF] * len(leaves))
    source = Source(file.name, file.size_bytes)
    return Index(FORMAT, structure, tuple(leaves), (source,), "positions")
