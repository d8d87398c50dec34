"""The quick reading of headers against the careful one, and both against the reference."""

from __future__ import annotations

import json

import safetensors
from hypothesis import given
from hypothesis import strategies as st

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.formats.safetensors.fast_header import read_fast_header
from cordwood.formats.safetensors.read_index import read_index
from cordwood.formats.safetensors.tensors import Tensors, tensor_table
from cordwood.io.memory_file import MemoryFile
from tests.formats.safetensors.assemble import with_header

DATA = bytes(24)
BASE = (
    '{"__metadata__":{"format":"pt"},"a.b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
    '"é":{"dtype":"U8","shape":[],"data_offsets":[8,9]},'
    '"none":{"dtype":"I64","shape":[3,0],"data_offsets":[9,9]},'
    '"c":{"dtype":"F4","shape":[30],"data_offsets":[9,24]}}   '
)


def careful(text: str) -> Tensors | None:
    try:
        entries = parse_json(text, "the header")
        entries.pop("__metadata__", None)
        return tensor_table(entries, with_header(text), size_bytes=len(with_header(text, DATA)))
    except FormatError:
        return None


def quick(text: str) -> Tensors | None:
    raw = with_header(text)
    result = read_fast_header(text, len(raw), len(raw) + len(DATA))
    return None if result is None else result[1]


def test_the_quick_reading_takes_what_it_is_for() -> None:
    tensors = quick(BASE)
    assert tensors is not None
    assert tensors == careful(BASE)
    assert tensors.names == ["a.b", "é", "none", "c"]
    plain = BASE.replace('"__metadata__":{"format":"pt"},', "")
    assert quick(plain) == careful(plain) is not None
    assert quick(BASE.replace('"é"', '"\\u00e9"')) is None
    assert quick(BASE.replace(":[2,1]", ": [2,1]")) is None


_EDITS = st.lists(
    st.tuples(
        st.integers(0, len(BASE) - 1),
        st.integers(0, 2),
        st.sampled_from([*'",:{}[]0123456789\\ -.e', "a.b", "é", "F4", "U8", "\n", "true", "null"]),
    ),
    max_size=3,
)


@given(_EDITS)
def test_the_quick_reading_never_takes_what_the_careful_one_refuses(
    edits: list[tuple[int, int, str]],
) -> None:
    text = BASE
    for position, removed, added in edits:
        text = text[:position] + added + text[position + removed :]
    result = quick(text)
    if result is not None:
        assert result == careful(text)


@given(_EDITS)
def test_what_we_read_the_reference_reads_alike(edits: list[tuple[int, int, str]]) -> None:
    text = BASE
    for position, removed, added in edits:
        text = text[:position] + added + text[position + removed :]
    raw = with_header(text, DATA)
    try:
        index = read_index(MemoryFile(raw))
    except FormatError:
        return
    expected = {name: info["shape"] for name, info in safetensors.deserialize(raw)}
    assert {str(leaf.key_path[0]): list(leaf.shape) for leaf in index.leaves} == expected


def test_names_that_need_escapes_are_read_carefully() -> None:
    header = {'a"\\\n': {"dtype": "U8", "shape": [24], "data_offsets": [0, 24]}}
    text = json.dumps(header, separators=(",", ":"))
    assert quick(text) is None
    tensors = careful(text)
    assert tensors is not None
    assert tensors.names == ['a"\\\n']
