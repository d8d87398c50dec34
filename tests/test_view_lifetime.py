"""Views into a caller's bytes keep them alive: no resize or unmapping while an array uses them."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

import cordwood


def test_a_bytearray_cannot_be_resized_under_its_views() -> None:
    data = bytearray(cordwood.to_bytes({"a": np.arange(1000.0)}))
    array = cordwood.msgpack_restore(data)["a"]
    with pytest.raises(BufferError):
        data.clear()
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, np.arange(1000.0))


def test_a_mapping_cannot_be_closed_under_its_views(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    cordwood.save_to_file({"a": np.arange(1000.0)}, path)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = cordwood.from_bytes(None, memoryview(mapping))["a"]
    with pytest.raises(BufferError):
        mapping.close()
    np.testing.assert_array_equal(array, np.arange(1000.0))
