"""The metadata of an array, as both versions of zarr have it, and the checks that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError
from cordwood.index import MAX_ARRAY_BYTES, Codec

MAX_METADATA_BYTES = 1 << 20
MAX_DIMS = 32  # TensorStore's limit


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
    fill_value: object = None  # as in JSON; None: every chunk is stored


def is_zero(fill_value: object) -> bool:
    """Return whether all bits of a fill value are zero: those of -0.0 are not.

    >>> [is_zero(value) for value in (0, 0.0, False, [0.0, 0], -0.0, None, 1, "NaN")]
    [True, True, True, True, False, False, False, False]
    """
    parts = fill_value if type(fill_value) is list and len(fill_value) == 2 else [fill_value]
    return all(
        isinstance(part, int | float) and part == 0 and math.copysign(1, part) > 0 for part in parts
    )


def parse_members(data: bytes, name: str, version: int) -> dict[str, object]:
    """Return the members of metadata, which is a JSON object of a version of zarr."""
    members: object = parse_json(data, name)
    if type(members) is not dict or members.get("zarr_format") != version:
        raise FormatError(
            f"expected a JSON object with zarr_format {version}, found {members!r:.80}"
        )
    return members


def require_addressable(dtype: str, **each: Sequence[int]) -> None:
    """Raise LimitError if an extent, such as `shape`, takes more than MAX_ARRAY_BYTES."""
    for name, extents in each.items():
        if math.prod(filter(None, extents)) * dtypes.itemsize(dtype) > MAX_ARRAY_BYTES:
            raise LimitError(f"{name}: {list(extents)} takes more than {MAX_ARRAY_BYTES} bytes")


def parse_extents(members: Mapping[str, object], name: str, *, least: int) -> tuple[int, ...]:
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
