"""The metadata of arrays: the `.zarray` of zarr version 2, the `zarr.json` of version 3; and grids.

Dtypes that zarr lacks are stored as others of the same size. Version 3:
https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, and its codec `sharding_indexed`.

One file, because both versions, and the chunks that they describe, are one value for readers.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.index import MAX_ARRAY_BYTES, Box, Codec
from cordwood.sharding.boxes import Cuts, element_count, is_contiguous, shape_of

_NUMPY = {
    "b1": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}
# TensorStore's names for what numpy has no code for.
EXTENSIONS = (
    "bfloat16",
    "int2",
    "int4",
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
_CODES = {
    **{name: ("|" if code.endswith("1") else "<") + code for code, name in _NUMPY.items()},
    **{name: name for name in EXTENSIONS},
}
_EXPECTED = ", ".join([*_NUMPY, *EXTENSIONS])


class Stored(NamedTuple):
    """The stored form of the elements of a dtype."""

    dtype: str  # a name of cordwood.dtypes that zarr has
    extra: tuple[int, ...]  # axes added after the leaf's own
    disguised: bool  # zarr lacks the leaf's dtype


@functools.cache
def stored_as(dtype: str) -> Stored:
    """Return the stored form of a dtype. Raises ValueError for one not in cordwood.dtypes."""
    if dtype in _CODES:
        return Stored(dtype, (), False)
    size = dtypes.itemsize(dtype)
    if size == 1:
        return Stored("uint8", (), True)
    if size == 8:  # times
        return Stored("int64", (), True)
    return Stored("uint8", (size,), True)


def zarr_dtype(dtype: str) -> str:
    """Return zarr's code of a `Stored.dtype`: '<f4' of float32."""
    return _CODES[dtype]


def parse_zarr_dtype(code: object) -> tuple[str, bool]:
    """Return the name of a dtype, and whether it is big-endian. Raises UnreadableElementsError."""
    if code in EXTENSIONS:
        return str(code), False
    if type(code) is str and code[:1] in ("<", ">", "|") and code[1:] in _NUMPY:
        name = _NUMPY[code[1:]]
        if code[0] != "|" or dtypes.itemsize(name) == 1:
            return name, code[0] == ">" and dtypes.itemsize(name) > 1
    raise UnreadableElementsError(
        f"dtype: {code!r:.80} is unknown; expected one of {_EXPECTED} (numpy's with '<', '>' or "
        "'|' before it)"
    )


METADATA_NAME = ".zarray"
MARK = "cordwood"  # a member of every .zarray that cordwood's index covers
MAX_METADATA_BYTES = 1 << 20
MAX_DIMS = 32  # TensorStore's limit

# What `compression=` means. blosc: the quickest that still helps.
COMPRESSORS: Mapping[str, Mapping[str, Any]] = {
    "zstd": {"id": "zstd", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
_COMPRESSOR_IDS = ("blosc", "bz2", "gzip", "lz4", "zlib", "zstd")


class Shard(NamedTuple):
    """The content of one key: several chunks, and an index of where they are."""

    shape: tuple[int, ...]
    index_first: bool
    index_checked: bool  # the index ends in its crc32c


class UnreadableElementsError(FormatError):
    """Well-formed metadata of an array whose elements are of a kind that is not read here."""


class ArrayMetadata(NamedTuple):
    """The content of a `.zarray`, or of the `zarr.json` of an array."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]  # the shape of a chunk; of shards, of those within
    dtype: str  # a name of cordwood.dtypes
    big_endian: bool
    order: Literal["C", "F"]
    compressor: str | None  # its id
    separator: str  # in the keys of chunks
    marked: bool = False  # written by cordwood, as a part of what its index covers
    zero_fill: bool = False  # what is not stored is zero
    key_prefix: str = ""  # of the keys of chunks: "c", or "" in version 2
    shard: Shard | None = None
    fill_value: Any = None  # as in JSON; None: every chunk is stored


def encode_metadata(
    shape: Sequence[int],
    chunks: Sequence[int],
    dtype: str,
    compression: str | None,
    *,
    marked: bool,
) -> bytes:
    """Return the bytes of a `.zarray`: raw, or compressed with one of COMPRESSORS."""
    members = {
        "chunks": list(chunks),
        "compressor": None if compression is None else dict(COMPRESSORS[compression]),
        "dimension_separator": ".",
        "dtype": zarr_dtype(dtype),
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }
    if marked:
        members[MARK] = 1
    return json.dumps(members, separators=(",", ":"), sort_keys=True).encode()


def marked_metadata(data: bytes) -> bytes:
    """Return a `.zarray` of another writer with cordwood's mark."""
    members = parse_json(data.decode(), METADATA_NAME)
    return json.dumps({**members, MARK: 1}, separators=(",", ":"), sort_keys=True).encode()


def parse_metadata(data: bytes) -> ArrayMetadata:
    """Read and check a `.zarray`.

    Raises, without naming the file:
        FormatError: it is none.
        UnreadableElementsError: its elements are of a kind that is not read here.
    """
    members = _members(data, METADATA_NAME, 2)
    shape = _parse_extents(members, "shape", least=0)
    chunks = _parse_extents(members, "chunks", least=1)
    if len(shape) != len(chunks):
        raise FormatError(f"shape has {len(shape)} axes, chunks {len(chunks)}")
    dtype, big_endian = parse_zarr_dtype(members.get("dtype"))
    _require_addressable(dtype, shape=shape, chunks=chunks)
    order = members.get("order")
    separator = members.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise FormatError(
            f"expected order C or F and dimension_separator '.' or '/', found {order!r:.40} and "
            f"{separator!r:.40}"
        )
    if members.get("filters") not in (None, []):
        raise UnreadableElementsError(f"filters: expected none, found {members['filters']!r:.80}")
    compressor = members.get("compressor")
    if compressor is not None:
        if type(compressor) is not dict or compressor.get("id") not in _COMPRESSOR_IDS:
            raise UnreadableElementsError(
                f"compressor: expected null or one of {', '.join(_COMPRESSOR_IDS)}, found "
                f"{compressor!r:.80}"
            )
        compressor = compressor["id"]
    return ArrayMetadata(
        shape,
        chunks,
        dtype,
        big_endian,
        "F" if order == "F" and len(shape) > 1 else "C",
        compressor,
        separator,
        MARK in members,
        is_zero(members.get("fill_value")),  # if it is null, TensorStore stores every chunk
        fill_value=members.get("fill_value"),
    )


def is_zero(fill_value: Any) -> bool:
    """Return whether all bits of a fill value are zero: those of -0.0 are not.

    >>> [is_zero(value) for value in (0, 0.0, False, [0.0, 0], -0.0, None, 1, "NaN")]
    [True, True, True, True, False, False, False, False]
    """
    parts = fill_value if type(fill_value) is list and len(fill_value) == 2 else [fill_value]
    return all(
        isinstance(part, int | float) and part == 0 and math.copysign(1, part) > 0 for part in parts
    )


def _members(data: bytes, name: str, version: int) -> dict[str, Any]:
    members = parse_json(data, name)
    if type(members) is not dict or members.get("zarr_format") != version:
        raise FormatError(
            f"expected a JSON object with zarr_format {version}, found {members!r:.80}"
        )
    return members


def _require_addressable(dtype: str, **each: Sequence[int]) -> None:
    for name, extents in each.items():
        if math.prod(filter(None, extents)) * dtypes.itemsize(dtype) > MAX_ARRAY_BYTES:
            raise LimitError(f"{name}: {list(extents)} takes more than {MAX_ARRAY_BYTES} bytes")


def _parse_extents(members: Mapping[str, Any], name: str, *, least: int) -> tuple[int, ...]:
    """Return a member of array metadata that is a list of integers, each at least `least`."""
    extents = members.get(name)
    if type(extents) is not list or not all(type(n) is int and n >= least for n in extents):
        raise FormatError(f"{name}: expected integers of {least} or more, found {extents!r:.80}")
    if len(extents) > MAX_DIMS:
        raise LimitError(f"{name}: {len(extents)} axes; expected at most {MAX_DIMS} (MAX_DIMS)")
    return tuple(extents)


def codec_of(metadata: ArrayMetadata) -> Codec:
    """Return the codec of the chunks."""
    return Codec(metadata.compressor, metadata.order, metadata.big_endian)


METADATA3_NAME = "zarr.json"
_COMPRESSORS = ("blosc", "gzip", "zstd")
# "attributes" and "dimension_names" say nothing of where elements lie.
_MEMBERS = frozenset(
    {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
        *("fill_value", "codecs", "attributes", "storage_transformers", "dimension_names"),
    }
)
_DTYPES = frozenset(dtypes.DTYPES) - {"float128", "complex256"}


def parse_metadata3(data: bytes) -> ArrayMetadata:
    """Read and check a `zarr.json`, without naming the file in errors.

    Raises:
        FormatError: it is none, or not of an array.
        UnreadableElementsError: its elements are of a kind that is not read here.
        UnsupportedFormatError: its codecs or its keys are of a kind that is not read here.
    """
    members = _members(data, METADATA3_NAME, 3)
    if members.get("node_type") != "array":
        raise FormatError(f"node_type: expected 'array', found {members.get('node_type')!r:.80}")
    _require_understood(members)
    dtype = members.get("data_type")
    if type(dtype) is not str or dtype not in _DTYPES:
        raise UnreadableElementsError(
            f"data_type: {dtype!r:.80} is unknown; expected a number's or 'bool'"
        )
    shape = _parse_extents(members, "shape", least=0)
    grid = _configuration(members, "chunk_grid", "regular")
    chunks = _parse_extents(grid, "chunk_shape", least=1)
    codecs = _codecs(members)
    shard = None
    if codecs and codecs[0][0] == "sharding_indexed":
        if len(codecs) > 1:
            raise _unsupported(codecs[1][0])
        inner = codecs[0][1]
        shard = _shard(chunks, inner)
        chunks = _parse_extents(inner, "chunk_shape", least=1)
        if len(chunks) != len(shard.shape) or any(
            whole % part for whole, part in zip(shard.shape, chunks, strict=True)
        ):
            raise FormatError(f"chunks of {list(chunks)} do not fill {list(shard.shape)}")
        codecs = _codecs(inner)
    if len(shape) != len(chunks):
        raise FormatError(f"shape has {len(shape)} axes, chunk_shape {len(chunks)}")
    _require_addressable(dtype, shape=shape, chunk_shape=shard.shape if shard else chunks)
    big_endian, compressor = _element_codecs(codecs, dtype)
    prefix, separator = _keys(members)
    return ArrayMetadata(
        shape,
        chunks,
        dtype,
        big_endian,
        "C",
        compressor,
        separator,
        zero_fill=is_zero(members.get("fill_value")),
        key_prefix=prefix,
        shard=shard,
        fill_value=members.get("fill_value"),
    )


def _require_understood(members: Mapping[str, Any]) -> None:
    """Raise for a member that this reader does not know, unless the writer allows to ignore it."""
    transformers = members.get("storage_transformers", [])
    if transformers != []:
        raise UnsupportedFormatError(
            f"storage_transformers: expected none, found {transformers!r:.80}"
        )
    for name, value in members.items():
        may_ignore = type(value) is dict and value.get("must_understand") is False
        if name not in _MEMBERS and not may_ignore:
            raise UnsupportedFormatError(
                f"{name:.80}: a member that is not known here, and whose must_understand is not "
                f"false: {value!r:.80}"
            )


def _configuration(members: Mapping[str, Any], name: str, kind: str) -> Mapping[str, Any]:
    member = members.get(name)
    if type(member) is not dict or member.get("name") != kind:
        raise UnsupportedFormatError(f"{name}: expected {kind!r}, found {member!r:.80}")
    configuration = member.get("configuration", {})
    if type(configuration) is not dict:
        raise FormatError(f"{name}: expected an object, found {configuration!r:.80}")
    return configuration


def _codecs(members: Mapping[str, Any], name: str = "codecs") -> list[tuple[str, dict[str, Any]]]:
    """Return the names of codecs and their configurations."""
    codec_list = members.get(name)
    codecs = []
    for codec in codec_list if type(codec_list) is list else [None]:
        if type(codec) is not dict or type(codec.get("name")) is not str:
            raise FormatError(f"{name}: expected a list of named codecs, found {codec_list!r:.80}")
        configuration = codec.get("configuration", {})
        if type(configuration) is not dict:
            raise FormatError(f"{name}: expected objects, found {configuration!r:.80}")
        codecs.append((codec["name"], configuration))
    return codecs


def _shard(shape: tuple[int, ...], inner: Mapping[str, Any]) -> Shard:
    index = _codecs(inner, "index_codecs")
    names = [name for name, _ in index]
    if names[:1] != ["bytes"] or names[1:] not in ([], ["crc32c"]):
        raise UnsupportedFormatError(f"index_codecs: expected bytes and crc32c, found {names}")
    if index[0][1].get("endian") != "little":
        raise UnsupportedFormatError(f"index_codecs: expected little-endian, found {index[0][1]}")
    location = inner.get("index_location", "end")
    if location not in ("start", "end"):
        raise FormatError(f"index_location: expected start or end, found {location!r:.40}")
    return Shard(shape, location == "start", len(names) == 2)


def _element_codecs(
    codecs: list[tuple[str, dict[str, Any]]], dtype: str
) -> tuple[bool, str | None]:
    """Return whether elements are big-endian, and the compressor of the chunks."""
    if not codecs or codecs[0][0] != "bytes":
        raise _unsupported(codecs[0][0] if codecs else "none at all")
    endian = codecs[0][1].get("endian", "little")
    if endian not in ("little", "big"):
        raise FormatError(f"endian: expected little or big, found {endian!r:.40}")
    names = [name for name, _ in codecs[1:]]
    if names and (len(names) > 1 or names[0] not in _COMPRESSORS):
        raise _unsupported(", ".join(names))
    return endian == "big" and dtypes.itemsize(dtype) > 1, names[0] if names else None


def _unsupported(value: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"codecs: expected bytes, and one of {', '.join(_COMPRESSORS)} or none, perhaps within "
        f"sharding_indexed; found {value:.80}"
    )


def _keys(members: Mapping[str, Any]) -> tuple[str, str]:
    keys = members.get("chunk_key_encoding")
    kind = keys.get("name") if type(keys) is dict else None
    if kind not in ("default", "v2"):
        raise UnsupportedFormatError(f"chunk_key_encoding: expected 'default', found {keys!r:.80}")
    separator = _configuration(members, "chunk_key_encoding", kind).get(
        "separator", "/" if kind == "default" else "."
    )
    if separator not in ("/", "."):
        raise FormatError(f"separator: expected '/' or '.', found {separator!r:.40}")
    return "c" if kind == "default" else "", separator


# The chunks of an array: a regular grid, padded at the far edges

_FINER = 4  # at most so many times more chunks than needed, so that they end where shards do


def chunk_shape(
    shape: Sequence[int], cuts: Cuts, *, itemsize: int, max_bytes: int
) -> tuple[int, ...]:
    """Return the shape of the chunks of an array whose shards begin at the cuts.

    A chunk is a shard, or a part of a shard of more than `max_bytes`: such a shard is split
    along its first axis into equal parts, and along the next axis if one row is still too large.
    No chunk has elements of two shards.

    >>> chunk_shape((8, 6), ((0, 4), (0,)), itemsize=4, max_bytes=100)
    (4, 6)
    >>> chunk_shape((8, 6), ((0, 4), (0,)), itemsize=4, max_bytes=50)
    (2, 6)
    >>> chunk_shape((7, 6), ((0,), (0,)), itemsize=4, max_bytes=100)
    (4, 6)
    """
    extents = [_period(size, starts) for size, starts in zip(shape, cuts, strict=True)]
    for axis, starts in enumerate(cuts):
        inner = itemsize * math.prod(extents[axis + 1 :])
        rows = extents[axis]
        if rows * inner <= max_bytes:
            break
        most = max(1, max_bytes // inner)
        parts = -(-rows // most)
        extents[axis] = -(-rows // parts) if len(starts) == 1 else _divisor(rows, most)
    return tuple(extents)


def _period(size: int, starts: Sequence[int]) -> int:
    """Return the largest extent whose multiples include all cuts; at least 1."""
    if len(starts) == 1:
        return max(1, size)
    step = starts[1]
    if list(starts) == list(range(0, size, step)):
        return step
    return math.gcd(*starts)


def _divisor(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` up to `most`; a larger one if that is much smaller."""
    below = max(n for n in _divisors(rows) if n <= most)
    if below * _FINER >= most:
        return below
    return min(n for n in _divisors(rows) if n > most)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return [*small, *[number // n for n in small]]


def chunk_count(shape: Sequence[int], extents: Sequence[int]) -> int:
    """Return the number of chunks of an array; 0 if it has no elements."""
    return math.prod([-(-size // extent) for size, extent in zip(shape, extents, strict=True)])


def chunks(
    shape: Sequence[int], extents: Sequence[int], separator: str
) -> Iterator[tuple[str, Box]]:
    """Return the name of each chunk and the part of the array that it holds, in C order.

    >>> list(chunks((3,), (2,), "."))
    [('0', Box(start=(0,), stop=(2,))), ('1', Box(start=(2,), stop=(3,)))]
    """
    counts = [-(-size // extent) for size, extent in zip(shape, extents, strict=True)]
    for number in range(math.prod(counts)):  # not itertools.product: there may be 2**60
        index: list[int] = []
        for size in reversed(counts):
            number, i = divmod(number, size)
            index.insert(0, i)
        start = tuple([i * extent for i, extent in zip(index, extents, strict=True)])
        ends = zip(start, extents, shape, strict=True)
        box = Box(start, tuple([min(a + extent, size) for a, extent, size in ends]))
        yield separator.join(map(str, index)) or "0", box


def leading_bytes(box: Box, extents: Sequence[int], itemsize: int) -> int | None:
    """Return the size in bytes of a box, if its elements are the first ones of its chunk.

    None if there is padding between the elements: if the chunk is padded along any axis but the
    first one along which it holds more than one index.
    """
    return element_count(box) * itemsize if is_contiguous(shape_of(box), extents) else None
