"""The waist: what a checkpoint holds, as plain values.

A format's `read_index` makes an `Index`; planners, `verify`, `open` and every other tool work on
it alone. These are named tuples and not dataclasses because reading an index of 20,000 leaves makes
60,000 of them, and a frozen dataclass costs four times as much to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood.keypath import KeyPath
from cordwood.tree.structure import Structure

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
]

ARRAY_KINDS: frozenset[LeafKind] = frozenset({"jax", "numpy", "numpy_scalar", "prng_key"})

Encoding: TypeAlias = Literal[
    "raw",  # elements as they lie in little-endian memory, one after another
    "swapped",  # big-endian elements
    "packed4",  # two 4-bit elements a byte, the low bits first
    "packed6",  # four 6-bit elements in three bytes, the low bits first
]

Naming: TypeAlias = Literal[
    "exact",  # leaves carry the key paths that the saved tree had
    "strings",  # every key was turned into a string ('0' for a list's first element)
    "keys",  # the same, and lists may be tuples, named tuples dicts, empty containers None
    "dotted",  # a leaf's whole name is one '.'-joined string
    "slashed",  # the same, joined by '/'
    "positions",  # leaves have no names: they come in the order of jax.tree.leaves
]


class Digests(NamedTuple):
    """xxh3-128 digests of consecutive blocks of one source."""

    start: int  # the offset of the first block, in bytes; blocks run from it to the source's end
    block_bytes: int
    values: bytes  # 16 bytes a block, one after another; the last block may be short


class HeaderDigest(NamedTuple):
    """The digests of a source lie in its own header, which has a digest here."""

    header_bytes: int
    digest: bytes  # xxh3-128 of the first `header_bytes` of the source


class Checksum(NamedTuple):
    """The CRC-32 of bytes start to stop of a source, or of what they hold once inflated."""

    start: int
    stop: int
    crc32: int
    head_bytes: int = 0  # of them in front that a scan has read
    head_crc32: int = 0  # of those
    inflated_bytes: int | None = None  # of a raw deflate stream: what it holds


class Source(NamedTuple):
    """A file (or object, or buffer) that holds pieces of leaves."""

    name: str
    size_bytes: int
    digests: Digests | None = None
    header_digest: HeaderDigest | None = None  # where the digests are not here
    checksums: tuple[Checksum, ...] = ()  # of parts of it, where there are no digests


class Span(NamedTuple):
    """Elements start to stop (half-open) of a leaf in C order."""

    start: int
    stop: int


class Box(NamedTuple):
    """A part of a leaf by index: start to stop (half-open) along each axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


class Piece(NamedTuple):
    """Where a part of a leaf lies: the elements of a box, or a span of them, in C order."""

    where: Span | Box
    source: int  # position in Index.sources
    offset: int  # in bytes, from the start of the source
    length: int  # in bytes


class Pieces(NamedTuple):
    """A leaf stored as byte ranges."""

    pieces: tuple[Piece, ...]
    encoding: Encoding = "raw"


class Encoded(NamedTuple):
    """A leaf stored as chunks of one shape that have to be decoded (compressed, Fortran order).

    A piece's box is the part of the leaf that its chunk holds: of `chunk_shape`, or less at an
    edge of the leaf, where the chunk is padded. A chunk is decoded whole.
    """

    pieces: tuple[Piece, ...]
    chunk_shape: tuple[int, ...]
    # JSON: {"compressor": its zarr id, "deflate" or null, "order": "C" or "F", "swapped": bool},
    # and where needed "skip_bytes" (before the elements) and "crc32" (of all that is decoded).
    codec: str


class Inline(NamedTuple):
    """A small value that the scan already holds."""

    value: Any


class Leaf(NamedTuple):
    """One leaf: what it is and where its bytes are."""

    key_path: KeyPath
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str  # a name of cordwood.dtypes; "" for an inline value
    storage: Pieces | Encoded | Inline
    weak_type: bool = False
    prng_impl: str | None = None  # of a prng_key, such as "threefry2x32"


class LeafSpec(NamedTuple):
    """One leaf of a tree that is to be saved (or of a `like`): what it is, without its bytes."""

    key_path: KeyPath
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str  # "" for Python values
    weak_type: bool = False
    prng_impl: str | None = None
    value: Any = None  # of a Python value


class LeafRuns(NamedTuple):
    """What the leaves of a checkpoint are, run by run, without where their bytes are."""

    key_paths: Sequence[KeyPath]  # of all leaves
    types: Sequence[LeafSpec]  # without key paths
    cuts: Sequence[tuple[int, ...]]  # of each type: in how many parts it lies along each axis
    runs: Sequence[tuple[int, int]]  # of leaves: position in `types`, count


class Index(NamedTuple):
    """Everything a checkpoint holds, without its bulk bytes."""

    format: str
    structure: Structure  # one leaf slot for each of `leaves`, in order
    leaves: tuple[Leaf, ...]
    sources: tuple[Source, ...]
    naming: Naming = "exact"
    metadata: Mapping[str, str] = {}  # the user's own; never mutated
    shardings: Mapping[int, str] = {}  # by leaf, as the writer has noted them: for people
