"""Files of cordwood's that another tool wrote anew, or that were damaged, are refused."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy

from cordwood.errors import (
    CorruptionError,
    UnsupportedFormatError,
)
from cordwood.formats.safetensors.read_index import read_index
from cordwood.io.memory_file import MemoryFile
from tests.formats.safetensors.assemble import file_bytes, header_of, with_header
from tests.formats.safetensors.read_in_memory import read_bytes


def test_a_file_saved_again_by_another_tool_with_our_metadata_is_noticed() -> None:
    raw = file_bytes({"a": np.ones(3, np.int8), "b": np.ones(5, np.float32)})
    metadata = header_of(raw)["__metadata__"]
    arrays = safetensors.numpy.load(raw)
    again = safetensors.numpy.save(arrays, metadata)
    with pytest.raises(CorruptionError, match="another tool changed the file after cordwood"):
        read_index(MemoryFile(again))
    plain, index = read_bytes(safetensors.numpy.save(arrays))
    assert set(plain) == {"a", "b"}
    assert index.naming == "dotted"


@pytest.mark.parametrize(
    "key", ["cordwood.header_digest", "cordwood.version", "cordwood.digests", "cordwood.structure"]
)
@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_losing_one_marker_does_not_make_a_foreign_file(key: str, how: str) -> None:
    raw = file_bytes({"a": np.ones(3, np.int8)})
    header = header_of(raw)
    value = header["__metadata__"].pop(key)
    if how == "renamed":
        header["__metadata__"]["x" + key] = value
    with pytest.raises(CorruptionError, match=f"its metadata is incomplete: no {key}"):
        read_index(MemoryFile(with_header(header, raw[4096:])))


def test_a_newer_version_is_refused_with_that_message() -> None:
    raw = file_bytes({"a": np.ones(3, np.int8)})
    newer = raw.replace(b'"cordwood.version":"1"', b'"cordwood.version":"2"')
    with pytest.raises(UnsupportedFormatError, match=r"is 2, a newer version.*upgrade cordwood"):
        read_index(MemoryFile(newer))


def test_every_flipped_bit_is_noticed() -> None:
    tree = {"a": np.arange(20, dtype=np.int16), "b": {"c": [1, "é"], "d": np.ones(3)}}
    raw = bytearray(file_bytes(tree, {"format": "pt"}))
    last = raw.rindex(b"}", 0, 4096)
    # Every bit up to and past the end of the JSON text, a sample of the padding, all the data.
    positions = [*range(last + 10), *range(last + 10, 4096, 97), 4095, *range(4096, len(raw))]
    for position in positions:
        for bit in range(8):
            raw[position] ^= 1 << bit
            try:
                read_bytes(bytes(raw))
            except ValueError:  # all of cordwood's errors about bytes are
                pass
            else:
                pytest.fail(f"bit {bit} of byte {position} was not noticed")
            raw[position] ^= 1 << bit
    read_bytes(bytes(raw))


def test_every_truncation_is_noticed() -> None:
    raw = file_bytes({"a": np.arange(20, dtype=np.int16)})
    for length in range(len(raw)):
        with pytest.raises(ValueError, match="byte"):
            read_index(MemoryFile(raw[:length]))
    with pytest.raises(ValueError, match="1 bytes after the last tensor"):
        read_index(MemoryFile(raw + b"\0"))
