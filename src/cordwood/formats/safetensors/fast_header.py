"""A quick reading of headers written without spaces, as the reference and cordwood do.

One regular expression takes the place of a JSON parser, an eighth of the time for 20,000
tensors. It gives up on anything unusual: the careful reading then decides what is wrong.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, NamedTuple

from cordwood.encoding.strict_json import parse_value
from cordwood.encoding.tensor_names import METADATA_KEY
from cordwood.errors import FormatError
from cordwood.formats.safetensors.tensor_table import Tensors, TensorType, tensor_type

_ENTRY = re.compile(
    r',"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+","shape":\[[0-9,]*)\],'
    r'"data_offsets":\[([0-9]+),([0-9]+)\]\}'
)
_GROUPS = 4
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_TYPE = re.compile(rf'([A-Z0-9_]{{1,16}})","shape":\[((?:{_NUMBER}(?:,{_NUMBER}){{0,63}})?)')
_METADATA_FIRST = f'{{"{METADATA_KEY}":'


class FastHeader(NamedTuple):
    """A header, its tensors checked."""

    metadata: Any  # unchecked
    tensors: Tensors


def read_fast_header(text: str, start: int, size_bytes: int) -> FastHeader | None:
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
    return None if tensors is None else FastHeader(metadata, tensors)


def _tensors(entries: str, stop: int, start: int, data_bytes: int) -> Tensors | None:
    if entries[:stop] in ("", ","):
        return Tensors([], [], []) if data_bytes == 0 else None
    parts = _ENTRY.split(entries[:stop])  # what is between the entries, and the groups of each
    if any(parts[:: _GROUPS + 1]):
        return None
    names, types, begins, ends = (parts[i :: _GROUPS + 1] for i in range(1, _GROUPS + 1))
    known = {text: _extent(text) for text in set(types)}
    extents = [known[text] for text in types]
    offsets = list(accumulate([extent.length for extent in extents], initial=0))
    # Compared as text, so that no number has zeros in front.
    if list(map(str, offsets[1:])) != ends or begins != ["0", *ends[:-1]]:
        return None
    if offsets.pop() != data_bytes or len({METADATA_KEY, *names}) != len(names) + 1:
        return None
    return Tensors(names, extents, [start + offset for offset in offsets])


def _extent(text: str) -> TensorType:
    found = _TYPE.fullmatch(text)
    if found is None:
        raise FormatError(f"no dtype and shape: {text!r:.80}")
    code, shape = found.groups()
    return tensor_type(code, tuple([int(number) for number in shape.split(",") if number]))
