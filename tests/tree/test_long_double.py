"""Long doubles: the bytes in their padding are never written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.dtypes import DTYPES, to_numpy
from cordwood.tree.leaves import without_padding

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant != 63, reason="long doubles have no padding here"
)


def dirty(dtype: Any, shape: tuple[int, ...] = (5,)) -> np.ndarray:
    """Ones, and in their padding what memory may hold."""
    array = np.ones(shape, dtype)
    array.reshape(-1).view(np.uint8).reshape(-1, 16)[:, 10:] = 0xAA
    return array


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_the_padding_is_zero_in_every_format(tmp_path: Path, dtype: Any) -> None:
    array = dirty(dtype)
    tree = {"a": array, "scalar": array[0], "strided": array[::2], "swapped": array.astype(
        array.dtype.newbyteorder(">"))}  # fmt: skip
    before = array.tobytes()
    for suffix in (".safetensors", ".msgpack"):
        path = tmp_path / f"x{suffix}"
        cordwood.save(path, tree)
        assert b"\xaa" * 6 not in path.read_bytes()
        got = cordwood.load(path)
        for name in tree:
            np.testing.assert_array_equal(got[name], tree[name])
    cordwood.save_to_file(tree, tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == cordwood.to_bytes(tree)
    assert b"\xaa" * 6 not in cordwood.to_bytes(tree)
    assert array.tobytes() == before


def test_the_bytes_are_flaxs_where_the_padding_is_zero_already() -> None:
    import flax.serialization

    tree = {"a": without_padding(dirty(np.longdouble))}
    assert cordwood.to_bytes(tree) == flax.serialization.to_bytes(tree)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"float128", "complex256"}))
def test_other_arrays_are_as_they_were(tmp_path: Path, dtype: str) -> None:
    """No padding is cleared; float8_e4m3fnuz has the type character of a complex long double."""
    array = np.ones(32, to_numpy(dtype))
    assert without_padding(array) is array
    for suffix in (".safetensors", ".msgpack"):
        cordwood.save(tmp_path / f"x{suffix}", {"a": array})
        assert cordwood.load(tmp_path / f"x{suffix}")["a"].tobytes() == array.tobytes()


def test_empty_long_doubles() -> None:
    assert without_padding(dirty(np.longdouble, ())).shape == ()
    assert without_padding(dirty(np.longdouble, (0, 3))).shape == (0, 3)
