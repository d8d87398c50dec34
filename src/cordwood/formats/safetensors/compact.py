"""A quick reading of headers written without spaces, as the reference and cordwood do.

One regular expression takes the place of a JSON parser, an eighth of the time for 20,000
tensors. It gives up on anything unusual: the careful reading then decides what is wrong.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, NamedTuple

from cordwood.errors import FormatError
from cordwood.formats.safetensors.names import METADATA_KEY
from cordwood.formats.safetensors.strict_json import parse_value
from cordwood.formats.safetensors.tensors import Extent, Tensor, extent_of

__all__ = ["Compact", "read_compact"]

_NUMBER = "(0|[1-9][0-9]{0,18})"
_ENTRY = re.compile(
    r',"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]{1,16})",'
    r'"shape":\[((?:(?:0|[1-9][0-9]{0,18})(?:,(?:0|[1-9][0-9]{0,18})){0,63})?)\],'
    rf'"data_offsets":\[{_NUMBER},{_NUMBER}\]\}}'
)
_FIXED_CHARACTERS = len(',"":{"dtype":"","shape":[],"data_offsets":[,]}')
_METADATA_FIRST = f'{{"{METADATA_KEY}":'


class Compact(NamedTuple):
    """A header, its tensors checked."""

    metadata: Any  # unchecked
    tensors: dict[str, Tensor]


def read_compact(text: str, start: int, size_bytes: int) -> Compact | None:
    """Read the JSON text of a header whose file of `size_bytes` has its data from `start` on.

    Returns None where the text is not compact JSON, or something in it is wrong.
    """
    metadata: Any = None
    entries = f",{text[1:]}"
    try:
        if text.startswith(_METADATA_FIRST):
            metadata, end = parse_value(text, len(_METADATA_FIRST))
            entries = text[end:]
        stop = len(entries.rstrip(" ")) - 1
        if stop < 0 or entries[stop] != "}":
            return None
        tensors = _tensors(entries, stop, start, size_bytes - start)
    except FormatError:
        return None
    return None if tensors is None else Compact(metadata, tensors)


def _tensors(entries: str, stop: int, start: int, data_bytes: int) -> dict[str, Tensor] | None:
    found = _ENTRY.findall(entries, 0, stop)
    if not found:
        return {} if entries[:stop] in ("", ",") and data_bytes == 0 else None
    columns = list(zip(*found, strict=True))
    characters = sum([sum(map(len, column)) for column in columns])
    if characters + len(found) * _FIXED_CHARACTERS != stop:
        return None  # there is something between the matches
    names, codes, shape_texts, begin_texts, end_texts = columns
    pairs = list(zip(codes, shape_texts, strict=True))
    known = {pair: _extent(*pair) for pair in set(pairs)}
    extents = [known[pair] for pair in pairs]
    ends = list(accumulate([extent.length for extent in extents]))
    # No number has zeros in front, so those that are equal are spelt alike.
    if begin_texts[0] != "0" or begin_texts[1:] != end_texts[:-1]:
        return None
    if list(map(int, end_texts)) != ends or ends[-1] != data_bytes:
        return None
    offsets = [start, *[start + end for end in ends[:-1]]]
    tensors = dict(zip(names, zip(extents, offsets, strict=True), strict=True))
    return tensors if len(tensors) == len(names) and METADATA_KEY not in tensors else None


def _extent(code: str, shape: str) -> Extent:
    return extent_of(code, tuple([int(number) for number in shape.split(",") if number]))
