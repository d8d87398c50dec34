"""The nodes of the B+tree, in which an inner node refers to its children, and a leaf has values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from cordwood.errors import FormatError
from cordwood.formats.ocdbt.data_files import DataFile, data_file_at, read_data_files
from cordwood.formats.ocdbt.envelope import open_envelope

NODE_MAGIC = 0x0CDB20DE


class NodeReference(NamedTuple):
    """A reference to a node."""

    file: DataFile
    offset: int
    length: int
    height: int
    prefix: bytes  # of all keys in the node


class OcdbtEntry(NamedTuple):
    """A key and the location of its value: in the node itself (file is None), or in a file."""

    key: bytes
    file: DataFile | None
    offset: int  # in the file, or in the decoded node
    length: int


class BTreeNode(NamedTuple):
    """A node: an inner node has children, a leaf has entries."""

    children: Sequence[NodeReference]
    entries: Sequence[OcdbtEntry]
    data: bytes  # decoded; holds the values of entries without a file


def parse_node(data: bytes, child: NodeReference) -> BTreeNode:
    """Parse and check the node that `child` refers to.

    Raises as `open_envelope`; LimitError for a node of more than MAX_NODE_BYTES, for a key of more
    than MAX_KEY_BYTES, and for keys that are too large in all for the stored size of the node.
    """
    body = open_envelope(data, NODE_MAGIC)
    height = body.take(1)[0]
    if height != child.height:
        raise FormatError(f"expected a node of height {child.height}, found one of {height}")
    files = read_data_files(body, base=child.file.base)
    count = body.varint()
    lengths = [0, *body.varints(max(0, count - 1))], body.varints(count)
    body.require_room(count * len(child.prefix))
    if height:
        shared = body.varints(count)
        keys = body.keys(*lengths)
        numbers, offsets, sizes = [body.varints(count) for _ in range(3)]
        for _ in range(3):
            body.varints(count)  # statistics
        body.end()
        _require_rising(keys)
        children = []
        for key, common, number, offset, size in zip(
            keys, shared, numbers, offsets, sizes, strict=True
        ):
            if common > len(key):
                raise FormatError(f"a prefix of {common} bytes of the key {key!r:.80}")
            prefix = child.prefix + key[:common]
            children.append(
                NodeReference(data_file_at(files, number), offset, size, height - 1, prefix)
            )
        return BTreeNode(children, (), body.data)
    keys = [child.prefix + key for key in body.keys(*lengths)]
    sizes, kinds = body.varints(count), body.varints(count)
    if not set(kinds) <= {0, 1}:
        raise FormatError("a value is neither in its node nor in a file")
    numbers, offsets = body.varints(sum(kinds)), body.varints(sum(kinds))
    locations = zip(numbers, offsets, strict=True)
    entries = []
    for key, size, kind in zip(keys, sizes, kinds, strict=True):
        if kind:
            number, offset = next(locations)
            entries.append(OcdbtEntry(key, data_file_at(files, number), offset, size))
        else:
            entries.append(OcdbtEntry(key, None, body.skip(size), size))
    body.end()
    _require_rising(keys)
    return BTreeNode((), entries, body.data)


def _require_rising(keys: Sequence[bytes]) -> None:
    for key, following in pairwise(keys):
        if key >= following:
            raise FormatError(f"the key {following!r:.200} does not come after {key!r:.200}")
