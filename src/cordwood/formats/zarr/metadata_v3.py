"""The `zarr.json` of an array of zarr version 3.

https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, and its codec `sharding_indexed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cordwood import dtypes
from cordwood.errors import FormatError, UnsupportedFormatError
from cordwood.formats.zarr.array_metadata import (
    ArrayMetadata,
    Shard,
    UnreadableElementsError,
    is_zero,
    parse_extents,
    parse_members,
    require_addressable,
)

METADATA3_NAME = "zarr.json"
_COMPRESSORS = ("blosc", "gzip", "zstd")
# "attributes" and "dimension_names" say nothing of where elements are.
_MEMBERS = frozenset(
    {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
        *("fill_value", "codecs", "attributes", "storage_transformers", "dimension_names"),
    }
)
_NamedCodec: TypeAlias = tuple[str, Mapping[str, object]]  # with its configuration
_DTYPES = frozenset(dtypes.DTYPES) - {"float128", "complex256"}


def parse_metadata3(data: bytes) -> ArrayMetadata:
    """Read and check a `zarr.json`, without naming the file in errors.

    Raises:
        FormatError: it is none, or not of an array.
        UnreadableElementsError: its elements are of a kind that is not read here.
        UnsupportedFormatError: its codecs or its keys are of a kind that is not read here.
    """
    members = parse_members(data, METADATA3_NAME, 3)
    if members.get("node_type") != "array":
        raise FormatError(f"node_type: expected 'array', found {members.get('node_type')!r:.80}")
    _require_understood(members)
    dtype = members.get("data_type")
    if type(dtype) is not str or dtype not in _DTYPES:
        raise UnreadableElementsError(
            f"data_type: {dtype!r:.80} is unknown; expected a number's or 'bool'"
        )
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
    require_addressable(dtype, shape=shape, chunk_shape=shard.shape if shard else chunks)
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


def _require_understood(members: Mapping[str, object]) -> None:
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


def _configuration(members: Mapping[str, object], name: str, kind: str) -> Mapping[str, object]:
    member = members.get(name)
    if type(member) is not dict or member.get("name") != kind:
        raise UnsupportedFormatError(f"{name}: expected {kind!r}, found {member!r:.80}")
    configuration = member.get("configuration", {})
    if type(configuration) is not dict:
        raise FormatError(f"{name}: expected an object, found {configuration!r:.80}")
    return configuration


def _codecs(members: Mapping[str, object], name: str = "codecs") -> Sequence[_NamedCodec]:
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


def _shard(shape: tuple[int, ...], inner: Mapping[str, object]) -> Shard:
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


def _element_codecs(codecs: Sequence[_NamedCodec], dtype: str) -> tuple[bool, str | None]:
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


def _keys(members: Mapping[str, object]) -> tuple[str, str]:
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
