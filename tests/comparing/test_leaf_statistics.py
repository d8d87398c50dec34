"""Statistics of a leaf: the numbers of numpy, whatever the dtype, format and parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood.comparing import leaf_statistics as module
from cordwood.comparing.heat_map import HeatMapSums
from cordwood.comparing.leaf_statistics import LeafStatistics, leaf_statistics
from cordwood.index import Box
from cordwood.plan.split_arrays import split_array
from cordwood.sharding.boxes import slices

RANDOM = np.random.default_rng(0)


def statistics_of(path: Path, key_path: str, **options: Any) -> LeafStatistics:
    with cordwood.open(path) as checkpoint:
        return leaf_statistics(checkpoint, key_path, with_heat_map=True, **options)


def saved(folder: Path, array: Any, **options: Any) -> Path:
    cordwood.save(folder / "c", {"x": array}, **options)
    return folder / "c"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("part_bytes", [64, 4 << 20])
def test_the_numbers_are_those_of_numpy(
    tmp_path: Path, dtype: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(module, "_KEPT_BYTES", part_bytes)
    array = (RANDOM.random((5, 7, 30)) * 9).astype(dtype)
    got = statistics_of(saved(tmp_path, array), "x", bins=10)
    exact = array.astype(np.float64)
    assert (got.size, got.nan, got.inf, got.zero) == (1050, 0, 0, int((exact == 0).sum()))
    assert (got.min, got.max) == (exact.min(), exact.max())
    assert (got.mean, got.std) == pytest.approx((exact.mean(), exact.std()))
    assert got.l2 == pytest.approx(np.linalg.norm(exact))
    assert sum(got.histogram) == 1050
    assert got.complete
    np.testing.assert_array_equal(got.first, array.reshape(-1)[:8])


@pytest.mark.parametrize("layout", [{}, {"format": "zarr"}])
@pytest.mark.parametrize("shape", [(70, 130), (3, 4, 5, 6), (1000,), (1000, 1)])
def test_the_heat_map_is_the_mean_of_each_tile(
    tmp_path: Path, shape: tuple[int, ...], layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 500)
    array = RANDOM.standard_normal(shape)
    array.reshape(-1)[3] = np.nan
    heat = statistics_of(saved(tmp_path, array, **layout), "x").heat
    assert heat is not None
    matrix = np.abs(array.reshape(-1, shape[-1]))
    (rows, columns), (height, width) = (heat.rows, heat.columns), heat.tile
    assert (rows, columns) == (-(-matrix.shape[0] // height), -(-matrix.shape[1] // width))
    assert max(rows, columns) <= 64
    tiles = [
        matrix[i * height : (i + 1) * height, j * width : (j + 1) * width]
        for i in range(rows)
        for j in range(columns)
    ]
    for value, nan, tile in zip(heat.values, heat.nan, tiles, strict=True):
        assert nan == np.isnan(tile).sum()
        assert value == pytest.approx(np.nanmean(tile) if nan < tile.size else np.nan, nan_ok=True)


def test_the_boxes_of_a_heat_map_may_come_in_any_order() -> None:
    array = RANDOM.standard_normal((6, 9, 80))
    whole = HeatMapSums(array.shape)
    whole.add(Box((0, 0, 0), array.shape), array.reshape(-1))
    parts = HeatMapSums(array.shape)
    for box in reversed(list(split_array(array.shape, item_bytes=1, limit_bytes=50))):
        parts.add(box, array[slices(box)].reshape(-1))
    assert parts.finish().values == pytest.approx(whole.finish().values)


def test_tiles_without_finite_elements(tmp_path: Path) -> None:
    array = np.array([[np.nan, np.inf, 1.0]], np.float32)
    heat = statistics_of(saved(tmp_path, array), "x").heat
    assert heat is not None
    assert [str(value) for value in heat.values] == ["nan", "inf", "1.0"]
    assert heat.nan == (1, 0, 0)


def test_a_sample_says_that_it_is_one(tmp_path: Path) -> None:
    array = RANDOM.standard_normal((4000, 2000)).astype(np.float32)
    got = statistics_of(saved(tmp_path, array), "x", sampled=True)
    assert not got.complete
    assert got.size * 4 <= 4 << 20
    assert got.std == pytest.approx(1, rel=0.02)
    assert got.l2 == pytest.approx(np.linalg.norm(array), rel=0.02), "an estimate for the whole"
    assert got.heat is not None
    assert 0 < got.heat.values.count(None) < len(got.heat.values)


def test_a_sample_of_a_large_leaf_reads_a_few_blocks(tmp_path: Path) -> None:
    path = saved(tmp_path, np.ones((64, 1 << 18), np.float32))
    reports: list[Any] = []
    statistics_of(path, "x", sampled=True, progress=reports.append)
    assert reports[-1].done_bytes <= 32 << 20, "16 blocks, rounded out to blocks of digests"


def test_a_sample_of_packed_elements_reads_a_few_blocks(tmp_path: Path) -> None:
    """Two elements in a byte, as other tools write them into safetensors files."""
    header = b'{"x":{"dtype":"F4","shape":[4000,4000],"data_offsets":[0,8000000]}}     '
    data = np.full(8_000_000, 0x21, np.uint8).tobytes()
    path = tmp_path / "c.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    sample, whole = [statistics_of(path, "x", sampled=sampled) for sampled in (True, False)]
    assert (whole.min, whole.max, whole.size, whole.complete) == (0.5, 1, 16_000_000, True)
    assert (sample.min, sample.max, sample.complete) == (0.5, 1, False)
    assert sample.size <= 5 << 20
    assert whole.first == sample.first == (0.5, 1, 0.5, 1, 0.5, 1, 0.5, 1)


@pytest.mark.parametrize("layout", [{}, {"format": "zarr"}])
def test_the_first_elements_are_those_in_c_order(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts, or chunks, that are narrower than a row do not change them."""
    monkeypatch.setattr(module, "_PART_ELEMENTS", 3)
    array = np.arange(24.0).reshape(4, 6)
    assert statistics_of(saved(tmp_path, array, **layout), "x").first == (*range(8),)
    np.save(tmp_path / "c.npy", np.asfortranarray(array))
    assert statistics_of(tmp_path / "c.npy", "").first == (*range(8),)


def test_bfloat16_and_complex_leaves_have_statistics(tmp_path: Path) -> None:
    got = statistics_of(saved(tmp_path, np.array([1, -3]).astype(ml_dtypes.bfloat16)), "x")
    assert (got.min, got.max) == (-3, 1)
    assert got.l2 == pytest.approx(10**0.5)
    got = statistics_of(saved(tmp_path, np.array([3 + 4j, 0])), "x")
    assert (got.min, got.max, got.zero) == (0, 5, 1)


def test_large_numbers_do_not_overflow(tmp_path: Path) -> None:
    got = statistics_of(saved(tmp_path, np.array([1e200, -1e200, 0.0])), "x")
    assert got.l2 == pytest.approx(2**0.5 * 1e200)


def test_what_is_no_array_of_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no array of numbers"):
        statistics_of(saved(tmp_path, "text"), "x")
