"""The index of an equinox file: .npy after .npy, without names.

`equinox.tree_serialise_leaves` writes one for each leaf that is an array or a number, in the order
of `jax.tree.leaves`. Other leaves (functions, strings) are not stored.
"""

from __future__ import annotations

import json

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.numpy_files.npy_header import MAGIC, UnreadableArrayError, read_array_header
from cordwood.formats.numpy_files.npy_storage import raw_storage
from cordwood.index import LEAF, Index, Leaf, Node, Source, unreadable_leaf
from cordwood.io.open_files import ReadableFile
from cordwood.message_text import counted

MAX_ARRAYS = 1 << 20  # of an equinox file
MAX_LINE_BYTES = 1 << 20  # of JSON in front of the arrays of an equinox file


def read_eqx_index(file: ReadableFile) -> Index:
    """Read the index of an equinox file: a list of numpy arrays. The file has no checksums.

    A line of JSON in front of the arrays, as equinox's documentation writes hyperparameters, is the
    metadata: the members of an object, those that are no strings as JSON.

    An array of text, or of a type that .npy does not name (float8, int4), is a leaf that cannot be
    read.

    Raises:
        FormatError: something other than a .npy array follows; the message names the byte.
        TruncatedError: the file ends inside an array.
        LimitError: it holds more than MAX_ARRAYS.
        UnsupportedFormatError: an array of unknown size cannot be read: of Python objects, or of a
            structured dtype.
    """
    leaves: list[Leaf] = []
    line = line_in_front(file.read(0, min(MAX_LINE_BYTES, file.size_bytes)))
    metadata = {} if line is None else _metadata_of(line, file.name)
    at = 0 if line is None else len(line)
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
        key_path = (len(leaves),)
        try:
            header = read_array_header(file, at)
        except UnreadableArrayError as e:
            if e.stop is None:
                raise UnsupportedFormatError(
                    f"{e} (it is array {len(leaves)}, counted from 0, and its size is unknown: "
                    "what follows it cannot be read either)"
                ) from e
            leaves.append(unreadable_leaf(key_path, e.reason))
            at += e.stop
            continue
        storage = raw_storage(header, at + header.start)
        leaves.append(Leaf(key_path, "numpy", header.shape, header.dtype, storage))
        at += header.stop
    structure = (Node("list", len(leaves)), *[LEAF] * len(leaves))
    source = Source(file.name, file.size_bytes)
    return Index("eqx", structure, tuple(leaves), (source,), "positions", metadata)


def line_in_front(head: bytes) -> bytes | None:
    """Return the line of JSON in front of the first array, with its end; None for none.

    Args:
        head: the first bytes of a file, at most MAX_LINE_BYTES.
    """
    at = head.find(b"\n" + MAGIC)
    if not head[:1] or head[0] not in b'{["-0123456789tfn' or at < 0 or b"\n" in head[:at]:
        return None
    return head[: at + 1]


def _metadata_of(line: bytes, name: str) -> dict[str, str]:
    value = parse_json(line, f"{name}: the line in front of the arrays", start=0)
    if type(value) is not dict:
        return {"json": line.decode().strip()}
    return {
        key: member if type(member) is str else json.dumps(member) for key, member in value.items()
    }
