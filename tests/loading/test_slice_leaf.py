"""Any index of any stored array, against numpy; and how little is read for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

import cordwood
from cordwood import Checkpoint
from cordwood.formats.format_protocol import Opened
from cordwood.index import LEAF, Box, Codec, Encoded, Index, Leaf, Piece, Pieces, Source
from cordwood.io.memory_file import MemoryFile
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.slice_plan import plan_slice
from cordwood.sharding.boxes import grid_cells, shape_of, slices

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def in_memory(array: np.ndarray[Any, Any], how: str) -> Checkpoint:
    """Return a checkpoint of one array, cut in the middle of each axis."""
    cuts = tuple([tuple(sorted({0, size // 2})) for size in array.shape])
    data = bytearray()
    pieces = []
    chunk_shape = tuple([max(1, size - size // 2) for size in array.shape])
    for box in grid_cells(array.shape, cuts) if array.size else []:
        part = array[slices(box)]
        if how == "encoded":
            chunk = np.zeros(chunk_shape, array.dtype)
            chunk[slices(Box((0,) * array.ndim, shape_of(box)))] = part
            raw = chunk.astype(">i4").tobytes("F")
        else:
            raw = part.astype(">i4" if how == "swapped" else "<i4").tobytes()
        pieces.append(Piece(box, 0, len(data), len(raw)))
        data += raw
    storage: Pieces | Encoded = Pieces(tuple(pieces), "swapped" if how == "swapped" else "raw")
    if how == "encoded":
        storage = Encoded(tuple(pieces), chunk_shape, Codec(None, "F", swapped=True))
    leaf = Leaf((), "numpy", array.shape, "int32", storage)
    index = Index("memory", (LEAF,), (leaf,), (Source("memory", len(data)),))
    return Checkpoint(LeafReader("memory", Opened("memory", index, (MemoryFile(data),))))


@given(st.data(), SHAPES, st.sampled_from(["raw", "swapped", "encoded"]), st.sampled_from([1, 50]))
def test_basic_indices_give_what_numpy_gives(
    data: st.DataObject, shape: tuple[int, ...], how: str, skip: int
) -> None:
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    key = data.draw(basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    with pytest.MonkeyPatch.context() as patch, in_memory(array, how) as checkpoint:
        patch.setattr("cordwood.loading.slice_plan._SKIP_BYTES", skip)
        result = checkpoint[""][key]
    expected = array[key]
    np.testing.assert_array_equal(result, expected)
    assert type(result) is type(expected)
    if isinstance(result, np.ndarray):
        assert result.shape == expected.shape
        assert result.flags.writeable
        assert result.flags.c_contiguous


@pytest.mark.parametrize(
    "key",
    [
        [0, 2], np.array([[0], [3]]), np.array([True, False, True, False]), np.array(2), True,
        np.bool_(False), (slice(1, 3), [0, 2]), ([1, 2], slice(None), 1), (1, [0, 2]),
        (..., [0, 1]), (np.ones((4, 6), bool), 0), (None, [0, 1], None, 1),
        ([0, 1], slice(None), [2, 0]), (slice(None, None, -2), True),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("how", ["raw", "encoded"])
def test_advanced_indices_give_what_numpy_gives(key: Any, how: str) -> None:
    array = np.arange(4 * 6 * 3, dtype=np.int32).reshape(4, 6, 3)
    with in_memory(array, how) as checkpoint:
        result = checkpoint[""][key]
    np.testing.assert_array_equal(result, array[key])
    assert result.shape == array[key].shape
    assert type(result) is type(array[key])


@pytest.mark.parametrize(
    "key", [4, -5, (0, 6), (0, 0, 0, 0), "x", 1.0, [4], (..., ...), np.ones(3, bool)], ids=str
)
def test_invalid_indices_raise_the_errors_of_numpy(key: Any) -> None:
    array = np.zeros((4, 6, 3), np.int32)
    with in_memory(array, "raw") as checkpoint:
        with pytest.raises(IndexError) as expected:
            array[key]
        with pytest.raises(IndexError) as error:
            checkpoint[""][key]
    assert str(error.value) == str(expected.value)


@given(st.data(), SHAPES)
@example(None, (3, 4))
def test_no_more_than_the_enclosing_box_is_read(
    data: st.DataObject | None, shape: tuple[int, ...]
) -> None:
    """But for steps: of a box without them, just what is wanted."""
    key: Any = (slice(1, 3), -1)
    if data is not None:
        key = data.draw(basic_indices(shape, allow_newaxis=False).filter(_has_no_steps))
    selection = plan_slice(shape, key, item_bytes=4)
    array = np.arange(math.prod(shape)).reshape(shape)
    (box,) = selection.boxes
    assert math.prod(shape_of(box)) == np.size(array[key])


def _has_no_steps(key: Any) -> bool:
    keys = key if isinstance(key, tuple) else (key,)
    return all(not isinstance(k, slice) or k.step in (None, 1, -1) for k in keys)


def test_long_steps_are_not_read_over() -> None:
    result = plan_slice((1000, 1 << 20), (slice(990, None, -100), slice(0, 8)), item_bytes=4)
    assert result.axis == 0
    assert len(result.boxes) == 10
    assert result.boxes[0] == Box((90, 0), (91, 8))
    twice = plan_slice((1000, 1000, 1 << 20), (slice(None, None, 100),) * 2, item_bytes=4)
    assert twice.boxes[1] == Box((100, 0, 0), (101, 901, 1 << 20))
    assert len(plan_slice((10, 10), slice(None, None, 2), item_bytes=4).boxes) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack"])
def test_small_elements_and_empty_arrays(tmp_path: Path, suffix: str) -> None:
    import ml_dtypes

    array = np.arange(-8, 8).reshape(4, 4).astype(ml_dtypes.int4)
    cordwood.save(tmp_path / f"x{suffix}", {"a": array, "empty": np.zeros((0, 3))})
    with cordwood.open(tmp_path / f"x{suffix}") as checkpoint:
        np.testing.assert_array_equal(checkpoint["a"][1:, 2], array[1:, 2])
        assert checkpoint["empty"][:, 1].shape == (0,)
        assert checkpoint["empty"][...].shape == (0, 3)
        with pytest.raises(IndexError):
            checkpoint["empty"][0]


def test_packed_elements_of_another_writer(tmp_path: Path) -> None:
    """Two a byte: all of the leaf is read, and then indexed."""
    header = b'{"a":{"dtype":"F4","shape":[4,4],"data_offsets":[0,8]}}'
    raw = bytes(range(0x10, 0x90, 0x10))
    path = tmp_path / "f4.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw)
    whole = cordwood.load(path)["a"]
    with cordwood.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint["a"][1:3, 2], whole[1:3, 2])
        np.testing.assert_array_equal(checkpoint["a"][::-2], whole[::-2])
