"""Reading of a leaf part by part: the elements are those of a load, in little memory."""

from __future__ import annotations

import bz2
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zstandard

import cordwood
from cordwood.errors import CorruptionError
from cordwood.loading.read_in_parts import read_in_parts
from cordwood.plan.split_arrays import all_boxes, chunks_of
from cordwood.sharding.boxes import slices

RANDOM = np.random.default_rng(0)


def parts_of(path: Path, name: str, *, part_elements: int = 50) -> np.ndarray[Any, Any]:
    """Return a leaf that was put together from its parts; each chunk is streamed."""
    with cordwood.open(path) as checkpoint:
        leaf = checkpoint._find_leaf(name)
        (leaf,) = checkpoint._reader.with_pieces([leaf])
        stored = cordwood.dtypes.to_numpy(leaf.dtype)
        result = np.empty(leaf.shape, stored)
        seen = np.zeros(leaf.shape, np.int8)
        boxes = list(
            all_boxes(leaf.shape, item_bytes=1, limit_bytes=100, chunk_shape=chunks_of(leaf))
        )
        parts = read_in_parts(
            checkpoint._reader, leaf, boxes, part_elements=part_elements, streamed_chunk_bytes=0
        )
        for box, array in parts:
            assert array.size <= part_elements
            result[slices(box)] = array
            seen[slices(box)] += 1
        assert (seen == 1).all()
    return result


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", "|u1", "<c16"])
@pytest.mark.parametrize("shape", [(7, 5, 9), (300,), (1, 1), ()])
def test_members_of_npz_files(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, order: Any
) -> None:
    array = np.asarray(RANDOM.integers(0, 99, shape)).astype(dtype, order=order)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", x=array)
        np.testing.assert_array_equal(parts_of(tmp_path / "x.npz", "x"), array)


ENCODERS: dict[str, tuple[Any, Callable[[bytes], bytes]]] = {
    "plain": (None, bytes),
    "zlib": ({"id": "zlib", "level": 1}, zlib.compress),
    "gzip": ({"id": "gzip", "level": 1}, gzip.compress),
    "bz2": ({"id": "bz2", "level": 1}, bz2.compress),
    "zstd": (
        {"id": "zstd", "level": 1},
        zstandard.ZstdCompressor(write_checksum=True).compress,
    ),
    "zstd of unknown size": (
        {"id": "zstd", "level": 1},
        zstandard.ZstdCompressor(write_content_size=False).compress,
    ),
}


def zarr_array(path: Path, array: np.ndarray[Any, Any], codec: str, order: str = "C") -> Path:
    """Write one chunk that is wider than the array; return the file of the chunk."""
    compressor, encode = ENCODERS[codec]
    chunk = np.zeros((array.shape[0] + 3, *array.shape[1:]), array.dtype)
    chunk[: len(array)] = array
    path.mkdir()
    metadata = {
        "zarr_format": 2,
        "shape": array.shape,
        "chunks": chunk.shape,
        "dtype": array.dtype.str,
        "compressor": compressor,
        "fill_value": 0,
        "order": order,
        "filters": None,
    }
    (path / ".zarray").write_text(json.dumps(metadata))
    file = path / ".".join(["0"] * array.ndim)
    file.write_bytes(encode(chunk.tobytes(order=order)))  # type: ignore[arg-type]
    return file


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("codec", ENCODERS)
def test_chunks_of_zarr_arrays(tmp_path: Path, codec: str, order: str) -> None:
    array = RANDOM.integers(0, 99, (30, 40, 50)).astype("<i4")
    zarr_array(tmp_path / "x", array, codec, order)
    np.testing.assert_array_equal(parts_of(tmp_path / "x", "", part_elements=3000), array)


@pytest.mark.parametrize("compression", ["zstd", "blosc"])
def test_chunks_that_cordwood_wrote(tmp_path: Path, compression: Any) -> None:
    array = RANDOM.standard_normal((50, 60)).astype(ml_dtypes.bfloat16)
    cordwood.save(tmp_path / "x", {"a": array}, format="zarr", compression=compression)
    np.testing.assert_array_equal(parts_of(tmp_path / "x", "a"), array)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-9],
    "half of it": lambda data: data[: len(data) // 2],
    "followed by more": lambda data: data + b"more",
    "changed": lambda data: data[:99] + bytes([data[99] ^ 0x55]) + data[100:],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("codec", ["zlib", "gzip", "bz2", "zstd"])
def test_a_damaged_chunk_is_an_error_as_for_a_load(tmp_path: Path, codec: str, damage: str) -> None:
    file = zarr_array(tmp_path / "x", RANDOM.integers(0, 99, (30, 40, 50)), codec)
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.raises(CorruptionError):
        parts_of(tmp_path / "x", "")
    with cordwood.open(tmp_path / "x") as checkpoint, pytest.raises(CorruptionError):
        checkpoint[""].load(to="numpy")


def test_a_member_that_does_not_match_its_crc_32_is_an_error(tmp_path: Path) -> None:
    array = RANDOM.integers(0, 99, 5000)
    np.savez_compressed(tmp_path / "x.npz", x=array)
    data = (tmp_path / "x.npz").read_bytes()
    crc = data.rindex(b"PK\x01\x02") + 16
    first = data.index(b"PK\x03\x04") + 14
    for at in (first, crc):
        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(CorruptionError, match="CRC-32"):
        parts_of(tmp_path / "x.npz", "x")


@pytest.mark.parametrize(("code", "per_group"), [("F4", 2), ("F6_E2M3", 4)])
@pytest.mark.parametrize("part_elements", [5, 7, 1000])
def test_packed_elements_are_read_in_parts(
    tmp_path: Path, code: str, per_group: int, part_elements: int
) -> None:
    shape = (12, 10)
    bits = {"F4": 4, "F6_E2M3": 6}[code]
    data = RANDOM.integers(0, 256, 120 * bits // 8, np.uint8).tobytes()
    header = json.dumps({"x": {"dtype": code, "shape": shape, "data_offsets": [0, len(data)]}})
    encoded = header.ljust(-(-len(header) // 8) * 8).encode()
    path = tmp_path / "c.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    expected = cordwood.load(path)["x"]
    got = parts_of(path, "x", part_elements=part_elements)
    assert 120 % per_group == 0
    np.testing.assert_array_equal(got.view(np.uint8), np.asarray(expected).view(np.uint8))
