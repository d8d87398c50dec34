"""The `zarr.json` of an array: zarr version 3's metadata, as JSON.

https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, and its codec `sharding_indexed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.zarr.metadata_v2 import ArrayMetadata, parse_extents
from cordwood.index import MAX_ARRAY_BYTES

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


class Shard(NamedTuple):
    """The content of one key: several chunks, and an index of where they are."""

    shape: tuple[int, ...]
    index_first: bool
    index_checked: bool  # the index ends in its crc32c


class Array3(NamedTuple):
    """The content of a `zarr.json`."""

    array: ArrayMetadata  # its chunks are those within the shards, its separator that of the keys
    shard: Shard | None
    key_prefix: str  # of the keys of chunks: "c", or "" as in version 2
    zero_fill: bool  # what is not stored is zero


def parse_metadata3(data: bytes) -> Array3:
    """Read and check a `zarr.json`, without naming the file in errors.

    Raises:
        FormatError: it is none, or not of an array.
        UnsupportedFormatError: its codecs or its keys are of a kind that is not read here.
    """
    try:
        members = parse_json(data.decode(), METADATA3_NAME)
    except UnicodeDecodeError as e:
        raise FormatError(f"{METADATA3_NAME} is not UTF-8 at byte {e.start}") from e
    if type(members) is not dict or members.get("zarr_format") != 3:
        raise FormatError(f"expected a JSON object with zarr_format 3, found {members!r:.80}")
    if members.get("node_type") != "array":
        raise FormatError(f"node_type: expected 'array', found {members.get('node_type')!r:.80}")
    _require_understood(members)
    dtype = members.get("data_type")
    if type(dtype) is not str or dtype not in _DTYPES:
        raise FormatError(f"data_type: {dtype!r:.80} is unknown; expected a number's or 'bool'")
    shape = parse_extents(members, "shape", least=0)
    grid = _configuration(members, "chunk_grid", "regular")
    chunks = parse_extents(grid, "chunk_shape", least=1)
    codecs = _codecs(members)
    shard = None
    if codecs and codecs[0][0] == "sharding_indexed":
        if len(codecs) > 1:
            raise _unsupported(codecs[1][0])
        inner = codecs[0][1]
        shard = _shard(chunks, inner)
        chunks = parse_extents(inner, "chunk_shape", least=1)
        if len(chunks) != len(shard.shape) or any(
            whole % part for whole, part in zip(shard.shape, chunks, strict=True)
        ):
            raise FormatError(f"chunks of {list(chunks)} do not fill {list(shard.shape)}")
        codecs = _codecs(inner)
    if len(shape) != len(chunks):
        raise FormatError(f"shape has {len(shape)} axes, chunk_shape {len(chunks)}")
    for name, extents in (("shape", shape), ("chunk_shape", shard.shape if shard else chunks)):
        if math.prod(filter(None, extents)) * dtypes.itemsize(dtype) > MAX_ARRAY_BYTES:
            raise LimitError(f"{name}: {list(extents)} takes more than {MAX_ARRAY_BYTES} bytes")
    big_endian, compressor = _element_codecs(codecs, dtype)
    prefix, separator = _keys(members)
    array = ArrayMetadata(
        shape, chunks, dtype, big_endian, "C", compressor, separator, marked=False
    )
    return Array3(array, shard, prefix, is_zero(members.get("fill_value")))


def is_zero(fill_value: Any) -> bool:
    """Return whether all bits of a fill value are zero: those of -0.0 are not.

    >>> [is_zero(value) for value in (0, 0.0, False, [0.0, 0], -0.0, None, 1, "NaN")]
    [True, True, True, True, False, False, False, False]
    """
    parts = fill_value if type(fill_value) is list and len(fill_value) == 2 else [fill_value]
    return all(
        isinstance(part, int | float) and part == 0 and math.copysign(1, part) > 0 for part in parts
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
