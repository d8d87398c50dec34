"""The writer of OCDBT: a manifest, and the nodes of a B+tree over byte ranges of other files.

The format: https://google.github.io/tensorstore/kvstore/ocdbt/index.html

A value is in a node itself, or is a range of any file below the database, so a database can
describe files that exist without a copy of them. A value of several keys is stored once. Nodes are
written without compression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from cordwood.encoding.digests import digest_of
from cordwood.formats.ocdbt.envelope import put_in_envelope
from cordwood.formats.ocdbt.manifest import MANIFEST_MAGIC, NOWHERE
from cordwood.formats.ocdbt.nodes import NODE_MAGIC

MAX_INLINE_BYTES = 1024  # of values that other writers of the database keep in nodes
WRITTEN_NODE_BYTES = 100_000_000  # the same limit that Orbax sets; TensorStore refuses larger nodes
MIN_SHARED_BYTES = 16  # of a value that is stored once for all of its keys
NODE_ENTRIES = 1 << 17  # of one node: about 10 MB
_ARITY_LOG2 = 4  # of the tree of versions, which has one version here


class FileRange(NamedTuple):
    """A value that is a range of a file."""

    file: str  # the path, relative to the database
    offset: int  # in bytes
    length: int


class _Node(NamedTuple):
    """A node in the file of nodes, and what its parent says of it."""

    first_key: bytes
    offset: int
    length: int
    key_count: int
    tree_bytes: int  # of it and of all nodes below
    range_bytes: int  # of the values in files, of it and of all nodes below


_EMPTY = _Node(b"", NOWHERE, NOWHERE, 0, 0, 0)  # the root of a database without keys


class Database(NamedTuple):
    """The two files of a database. That of the nodes holds values too."""

    manifest: bytes
    nodes: bytes


def encode_database(
    values: Mapping[str, bytes | FileRange], *, node_file: str, node_entries: int = NODE_ENTRIES
) -> Database:
    """Return a database; the same values give the same bytes.

    Args:
        values: the value of each key.
        node_file: the name under which the nodes will be stored, relative to the database.
        node_entries: the most keys in one node.
    """
    data = bytearray()
    ranges = _put_repeated_values(values.values(), data, node_file)
    entries = [
        (key.encode(), ranges.get(value, value) if isinstance(value, bytes) else value)
        for key, value in sorted(values.items())
    ]
    chunks = [entries[i : i + node_entries] for i in range(0, len(entries), node_entries)]
    nodes: list[_Node] = []
    for chunk in chunks:
        node, range_bytes = _encode_leaf_node(chunk)
        nodes.append(_Node(chunk[0][0], len(data), len(node), len(chunk), len(node), range_bytes))
        data += node
    height = 0
    while len(nodes) > 1:
        height += 1
        parents: list[_Node] = []
        for i in range(0, len(nodes), node_entries):
            children = nodes[i : i + node_entries]
            node = _encode_inner_node(children, height, node_file)
            below = [(child.key_count, child.tree_bytes, child.range_bytes) for child in children]
            key_count, tree_bytes, range_bytes = map(sum, zip(*below, strict=True))
            first = children[0].first_key
            parents.append(
                _Node(first, len(data), len(node), key_count, len(node) + tree_bytes, range_bytes)
            )
            data += node
        nodes = parents
    root = nodes[0] if nodes else _EMPTY
    return Database(_encode_manifest(root, height, node_file, bytes(data)), bytes(data))


def _put_repeated_values(
    values: Iterable[bytes | FileRange], data: bytearray, node_file: str
) -> dict[bytes, FileRange]:
    """Append the values that several keys have to a file, and return where they are."""
    counts = Counter(value for value in values if isinstance(value, bytes))
    ranges = {}
    for value in sorted(value for value, count in counts.items() if count > 1):
        if len(value) >= MIN_SHARED_BYTES:
            ranges[value] = FileRange(node_file, len(data), len(value))
            data += value
    return ranges


def _encode_leaf_node(entries: Sequence[tuple[bytes, bytes | FileRange]]) -> tuple[bytes, int]:
    """Return a node of height 0, and the size of its values that are in files."""
    ranges = [value for _, value in entries if isinstance(value, FileRange)]
    inline = [value for _, value in entries if not isinstance(value, FileRange)]
    files = {name: number for number, name in enumerate(sorted({each.file for each in ranges}))}
    sizes = [value.length if isinstance(value, FileRange) else len(value) for _, value in entries]
    body = b"".join(
        [
            b"\0",  # its height
            _encode_files(list(files)),
            _varints([len(entries)]),
            *_encode_keys([key for key, _ in entries]),
            _varints(sizes),
            bytes([isinstance(value, FileRange) for _, value in entries]),
            _varints([files[each.file] for each in ranges]),
            _varints([each.offset for each in ranges]),
            *inline,
        ]
    )
    return put_in_envelope(NODE_MAGIC, body), sum([each.length for each in ranges])


def _encode_inner_node(children: Sequence[_Node], height: int, node_file: str) -> bytes:
    """Return a node over the nodes of the next lower height."""
    shared, *suffixes = _encode_keys([child.first_key for child in children])
    sizes, *texts = suffixes
    body = b"".join(
        [
            bytes([height]),
            _encode_files([node_file]),
            _varints([len(children)]),
            shared,
            sizes,
            bytes(len(children)),  # the keys below have no prefix in common that is left out
            *texts,
            bytes(len(children)),  # all are in the first file
            _varints([child.offset for child in children]),
            _varints([child.length for child in children]),
            _varints([child.key_count for child in children]),
            _varints([child.tree_bytes for child in children]),
            _varints([child.range_bytes for child in children]),
        ]
    )
    return put_in_envelope(NODE_MAGIC, body)


def _encode_manifest(root: _Node, height: int, node_file: str, nodes: bytes) -> bytes:
    body = b"".join(
        [
            digest_of(nodes)[:16],  # in place of a random identifier
            _varints([0, MAX_INLINE_BYTES, WRITTEN_NODE_BYTES]),  # 0: this is the only manifest
            bytes([_ARITY_LOG2]),
            _varints([0]),  # nodes written later are not compressed either
            _encode_files([node_file]),
            _varints([1, 1]),  # one version; its generation
            bytes([height]),
            _varints([0, root.offset, root.length]),
            _varints([root.key_count, root.tree_bytes, root.range_bytes]),
            bytes(8),  # the time of writing
            _varints([0]),  # no older versions
        ]
    )
    return put_in_envelope(MANIFEST_MAGIC, body)


def _encode_files(paths: Sequence[str]) -> bytes:
    """Return a table of files; their paths are relative to the database."""
    shared, lengths, *suffixes = _encode_keys([path.encode() for path in paths])
    return b"".join([_varints([len(paths)]), shared, lengths, bytes(len(paths)), *suffixes])


def _encode_keys(keys: Sequence[bytes]) -> list[bytes]:
    """Return the numbers of bytes shared with the key before, of the others, and those bytes."""
    shared = [_shared_bytes(a, b) for a, b in pairwise(keys)]
    suffixes = [key[count:] for key, count in zip(keys, [0, *shared], strict=False)]
    return [_varints(shared), _varints([len(each) for each in suffixes]), *suffixes]


def _shared_bytes(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix of two strings."""
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    differing = int.from_bytes(one[:limit], "big") ^ int.from_bytes(other[:limit], "big")
    return limit - (differing.bit_length() + 7) // 8


def _varints(numbers: Iterable[int]) -> bytes:
    """Return numbers of seven bits per byte, the lowest bits first."""
    values = np.fromiter(numbers, np.uint64)
    lengths = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        lengths += values >= np.uint64(1 << bits)
    ends = np.fromiter(accumulate(lengths.tolist()), np.int64, len(values))
    data = np.zeros(int(lengths.sum()), np.uint8)
    for i in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > i)
        part = (values[longer] >> np.uint64(7 * i)) & np.uint64(0x7F)
        more = np.where(lengths[longer] > i + 1, np.uint64(0x80), np.uint64(0))
        data[ends[longer] - lengths[longer] + i] = part | more
    return data.tobytes()
