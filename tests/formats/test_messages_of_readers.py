"""Readers by themselves: what they say of content that `load` calls by its kind before them.

A member of another file, or a step that a manager reads, is not looked at for its kind.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from cordwood.errors import FormatError, TruncatedError
from cordwood.formats.flax_msgpack import read_index as flax_msgpack
from cordwood.formats.numpy_files import read_npy, read_npz
from cordwood.formats.safetensors import read_index as safetensors
from cordwood.index import Index
from cordwood.io.memory_file import MemoryFile


def archive_without_directory() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.arange(4))
    data = stream.getvalue()
    return data[: data.index(b"PK\1\2")]


@pytest.mark.parametrize(
    ("read", "data", "error", "message"),
    [
        (
            safetensors.read_index,
            b"",
            TruncatedError,
            "expected 8 bytes of header length at byte 0, found 0",
        ),
        (safetensors.read_index, b"PK\3\4" + bytes(100), FormatError, "expected '{' at byte 8"),
        (read_npy.read_index, b"", FormatError, "expected b'\\x93NUMPY', found b''"),
        (read_npy.read_index, b"PK\3\4" + bytes(40), FormatError, "this is not a .npy array"),
        (read_npz.read_index, b"", FormatError, "this is not a zip archive"),
        (
            read_npz.read_index,
            archive_without_directory(),
            TruncatedError,
            "a zip archive without its directory, which comes last",
        ),
        (flax_msgpack.read_index, b"", TruncatedError, "a value needs 1 more byte, found 0"),
    ],
)
def test_the_reader_says_what_it_expected(
    read: Callable[[MemoryFile], Index], data: bytes, error: type[FormatError], message: str
) -> None:
    with pytest.raises(error) as e:
        read(MemoryFile(data, "file"))
    assert message in str(e.value)
    assert str(e.value).startswith("file: ")
