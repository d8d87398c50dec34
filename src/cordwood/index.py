"""The index: the contents of a checkpoint as plain values, the same for all formats.

The `read_index` of a format makes an `Index`; planners, `verify`, `open` and all other tools work
on it alone. These are named tuples and not dataclasses because reading an index of 20,000 leaves
makes 60,000 of them, and a frozen dataclass takes four times as long to make.

A structure has the containers of a tree without its leaves. It is a flat list in pre-order, so that
deep nesting needs no recursion and no deeply nested JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood import dtypes
from cordwood.errors import LimitError
from cordwood.keypath import DictKey, Key, KeyPath

NodeKind: TypeAlias = Literal["leaf", "none", "dict", "list", "tuple", "namedtuple", "object"]


class Node(NamedTuple):
    """One node; its children follow it in the list, each with its descendants."""

    kind: NodeKind
    size: int = 0  # the number of children
    keys: tuple[str | DictKey, ...] = ()  # dict keys or field names; empty for list and tuple
    type_name: str = ""  # of a namedtuple or object; only displayed, never imported


LEAF = Node("leaf")
Structure: TypeAlias = tuple[Node, ...]

MAX_DEPTH = 1000  # of nesting; the limit of flattening too
MAX_LEAVES = 1 << 24
# The number of keys in all leaf paths together. A path repeats the keys above it, so without this
# limit a few bytes of deep structure could need gigabytes of paths.
MAX_PATH_KEYS = 1 << 20
MAX_PATH_KEYS_PER_NODE = 64  # added for each node


LeafKind: TypeAlias = Literal[
    "jax",  # a jax.Array
    "numpy",  # a numpy.ndarray, 0-d included
    "numpy_scalar",  # a numpy.generic
    "prng_key",  # a typed jax PRNG key array; the stored array is its uint32 key data
    "bool",
    "int",
    "float",
    "complex",
    "str",
    "bytes",
    "opaque",  # a value that only its own format understands (an unknown msgpack extension)
    "unreadable",  # an element of a foreign file that cannot be read, while the others can
]

MAX_DIMS = 64  # numpy's limit
MAX_ARRAY_BYTES = (1 << 63) - 1

ARRAY_KINDS: frozenset[LeafKind] = frozenset({"jax", "numpy", "numpy_scalar", "prng_key"})

Encoding: TypeAlias = Literal[
    "raw",  # elements as in little-endian memory, one after another
    "swapped",  # big-endian elements
    "packed4",  # two 4-bit elements a byte, the low bits first
    "packed6",  # four 6-bit elements in three bytes, the low bits first
]

Naming: TypeAlias = Literal[
    "exact",  # leaves have the key paths of the saved tree
    "strings",  # every key is a string ('0' for the first element of a list)
    "keys",  # the same, and lists may be tuples, named tuples dicts, empty containers None
    "dotted",  # the whole name of a leaf is one string, joined by '.'
    "slashed",  # the same, joined by '/'
    "positions",  # leaves have no names: they are in the order of jax.tree.leaves
]


class Digests(NamedTuple):
    """xxh3-128 digests of consecutive blocks of one source."""

    start: int  # the offset of the first block, in bytes; blocks run from it to the source's end
    block_bytes: int
    values: bytes  # 16 bytes a block, one after another; the last block may be short


class HeaderDigest(NamedTuple):
    """The digest of a source's header, if the header holds the digests of the data."""

    header_bytes: int
    digest: bytes  # xxh3-128 of the first `header_bytes` of the source


class Checksum(NamedTuple):
    """The CRC-32 of bytes start to stop of a source, or of the data inflated from them."""

    start: int
    stop: int
    crc32: int
    head_bytes: int = 0  # the number of leading bytes that reading the index has read already
    head_crc32: int = 0  # the CRC-32 of those
    inflated_bytes: int | None = None  # the inflated size, if the bytes are a raw deflate stream


class Source(NamedTuple):
    """A file (or object, or buffer) that holds pieces of leaves."""

    name: str
    size_bytes: int
    digests: Digests | None = None
    header_digest: HeaderDigest | None = None  # if the digests are in the header of the source
    checksums: tuple[Checksum, ...] = ()  # of parts of it, if there are no digests


class Span(NamedTuple):
    """Elements start to stop (half-open) of a leaf in C order."""

    start: int
    stop: int


class Box(NamedTuple):
    """A part of a leaf by index: start to stop (half-open) along each axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


class Piece(NamedTuple):
    """A stored part of a leaf: the elements of a box, or a span of elements, in C order."""

    where: Span | Box
    source: int  # position in Index.sources
    offset: int  # in bytes, from the start of the source
    length: int  # in bytes


class Pieces(NamedTuple):
    """A leaf stored as byte ranges."""

    pieces: tuple[Piece, ...]
    encoding: Encoding = "raw"


class Codec(NamedTuple):
    """The encoding of a chunk's elements."""

    compressor: str | None  # "zstd", "gzip", "zlib", "deflate", "bz2", "blosc", "lz4"
    order: Literal["C", "F"] = "C"
    swapped: bool = False  # the elements are big-endian
    skip_bytes: int = 0  # in front of the elements, once decompressed
    crc32: int | None = None  # of all decompressed bytes


class Encoded(NamedTuple):
    """A leaf stored as chunks of one shape that have to be decoded (compressed, Fortran order).

    The box of a piece is the part of the leaf in its chunk: of `chunk_shape`, or smaller at an
    edge of the leaf, where the chunk is padded. Chunks are always decoded completely.
    """

    pieces: tuple[Piece, ...]
    chunk_shape: tuple[int, ...]
    codec: Codec


class Inline(NamedTuple):
    """A small value that the index holds itself."""

    value: Any


class ArrangedPart(NamedTuple):
    """A part of an arranged leaf: elements of another leaf, with the axes in another order."""

    leaf: Leaf
    shape: tuple[int, ...]  # of that leaf, seen as an array of more axes, in C order
    start: tuple[int, ...]  # the first element of the part in it
    # For each axis of `shape`, the axis of the arranged array along which it runs; -1: one index.
    axes: tuple[int, ...]
    box: Box  # the part in the arranged array


class Arithmetic(NamedTuple):
    """A multiplication, and then an addition, of each element; or the inverse of both."""

    scale: float
    add: float
    inverse: bool  # True: a subtraction, and then a division
    lossy: bool  # False: elements that the inverse does not give back are an error


class Arranged(NamedTuple):
    """A leaf made of parts of other leaves, and of zeros.

    The other leaves have one dtype, which is the leaf's unless there is arithmetic.
    """

    shape: tuple[int, ...]  # of the leaf, seen as an array of more axes, in C order
    parts: tuple[ArrangedPart, ...]
    padding: tuple[Box, ...] = ()  # boxes of zeros, which may overlap
    arithmetic: Arithmetic | None = None
    copies: tuple[Arranged, ...] = ()  # others that have to be equal
    dropped: tuple[Arranged, ...] = ()  # padding that is left out, which has to be zeros

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the leaves of all parts, in their order."""
        storages = [part.leaf.storage for part in self.parts]
        return tuple([p for each in storages if not isinstance(each, Inline) for p in each.pieces])


class Unreadable(NamedTuple):
    """The inline value of a leaf of the kind "unreadable": what it is, and what to do."""

    reason: str

    def __repr__(self) -> str:
        return f"<not readable: {self.reason}>"


LeafStorage: TypeAlias = "Pieces | Encoded | Inline | Arranged"


def unreadable_leaf(key_path: KeyPath, reason: str) -> Leaf:
    """Return a leaf that can be listed, and raises an error when it is loaded."""
    return Leaf(key_path, "unreadable", (), "", Inline(Unreadable(reason)))


class Leaf(NamedTuple):
    """One leaf: its type and the place of its bytes."""

    key_path: KeyPath
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str  # a name of cordwood.dtypes; "" for an inline value
    storage: LeafStorage
    weak_type: bool = False
    prng_impl: str | None = None  # of a prng_key, such as "threefry2x32"


class LeafSpec(NamedTuple):
    """The type of one leaf of a tree to save, or of a `like`, without its bytes."""

    key_path: KeyPath
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str  # "" for Python values
    weak_type: bool = False
    prng_impl: str | None = None
    value: Any = None  # of a Python value


def size_in_memory(leaf: Leaf | LeafSpec) -> int:
    """Return the size of the elements of an array in bytes; 0 for a Python value."""
    if leaf.kind not in ARRAY_KINDS or not leaf.dtype:
        return 0
    return math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype)


class LeafRuns(NamedTuple):
    """The types of the leaves of a checkpoint, run by run, without the places of their bytes."""

    key_paths: Sequence[KeyPath]  # of all leaves
    types: Sequence[LeafSpec]  # without key paths
    cuts: Sequence[tuple[int, ...]]  # for each type, the number of stored parts along each axis
    runs: Sequence[tuple[int, int]]  # of leaves: position in `types`, count


class Index(NamedTuple):
    """Everything a checkpoint holds, without its bulk bytes."""

    format: str
    structure: Structure  # one leaf slot for each of `leaves`, in order
    leaves: tuple[Leaf, ...]
    sources: tuple[Source, ...]
    naming: Naming = "exact"
    metadata: Mapping[str, str] = {}  # the user's strings; never mutated
    shardings: Mapping[int, str] = {}  # by leaf, as text from the writer; only displayed


def leaf_text(value: Leaf | LeafSpec) -> str:
    """Return dtype and shape of an array, or the kind of any other leaf.

    >>> leaf_text(LeafSpec(("w",), "numpy", (4, 8), "float32"))
    'float32[4,8]'
    """
    if value.kind == "prng_key":
        return f"key<{value.prng_impl}>[{_shape(value.shape[:-1])}]"
    if value.kind in ARRAY_KINDS:
        return f"{value.dtype}[{_shape(value.shape)}]"
    return value.kind


def _shape(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def leaf_paths(structure: Structure) -> list[KeyPath]:
    """Return the key paths of the leaves, in order.

    Raises:
        LimitError: together they hold more keys than MAX_PATH_KEYS allows.
    """
    paths: list[KeyPath] = []
    above: list[tuple[KeyPath, Iterator[Key]]] = []
    budget = MAX_PATH_KEYS + MAX_PATH_KEYS_PER_NODE * len(structure)
    path: KeyPath = ()
    i = 0
    while i < len(structure):
        while above:
            prefix, keys = above[-1]
            key = next(keys, None)
            if key is not None:
                path = (*prefix, key)
                break
            above.pop()
        kind, size, node_keys, _ = structure[i]
        i += 1
        if kind == "leaf":
            paths.append(path)
            budget -= len(path)
        elif size and structure[i : i + size].count(LEAF) == size:
            budget -= (len(path) + 1) * size
            if budget >= 0:
                paths += [(*path, key) for key in node_keys or range(size)]
            i += size
        elif size:
            above.append((path, iter(node_keys or range(size))))
        if budget < 0:
            raise LimitError(
                f"the key paths of {len(structure)} nodes hold more keys than the limit: "
                f"{MAX_PATH_KEYS} (MAX_PATH_KEYS) and {MAX_PATH_KEYS_PER_NODE} per node; "
                "the tree is both very deep and very wide"
            )
    return paths


def jax_order(structure: Structure) -> list[int]:
    """Return the positions of the leaves in the structure, in the order of jax.tree.leaves.

    jax sorts the keys of dicts; a structure has them in the order of the dict. If keys cannot be
    compared, jax refuses the tree; here they keep their order.
    """
    built: list[Any] = []  # of the nodes after the current one, the next one last
    leaf = sum([node.kind == "leaf" for node in structure])
    for node in reversed(structure):
        if node.kind == "leaf":
            leaf -= 1
            built.append(leaf)
            continue
        first = len(built) - node.size
        children = built[first:][::-1]
        del built[first:]
        built.append([children[i] for i in _child_order(node)])
    order: list[int] = []
    while built:
        each = built.pop()
        if type(each) is int:
            order.append(each)
        else:
            built += reversed(each)
    return order


def _child_order(node: Node) -> list[int]:
    positions = list(range(node.size))
    if node.kind != "dict" or node.type_name == "OrderedDict":
        return positions
    keys: list[Any] = [key.value if isinstance(key, DictKey) else key for key in node.keys]
    try:
        return sorted(positions, key=keys.__getitem__)
    except TypeError:
        return positions
