"""One leaf of two checkpoints: statistics, histogram of the change, and strip."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood.comparing.array_change import changes_of
from cordwood.comparing.compare_leaves import LeafComparison, compare_leaves
from cordwood.results import Progress
from tests.memory import traced_memory

MIB = 1 << 20


@contextmanager
def pair(tmp_path: Path, a: Any, b: Any, kind: str = "a.safetensors") -> Iterator[Any]:
    layout, _, compression = kind.partition("-")
    options: Any = {"format": layout, "compression": compression or None}
    paths = [tmp_path / f"{side}-{kind}" for side in "ab"]
    for path, array in zip(paths, (a, b), strict=True):
        cordwood.save(path, {"w": array}, **({} if "." in kind else options))
    with cordwood.open(paths[0]) as one, cordwood.open(paths[1]) as two:
        yield one, two


def compared(tmp_path: Path, a: Any, b: Any, **options: Any) -> LeafComparison:
    with pair(tmp_path, a, b) as (one, two):
        return compare_leaves(one, 0, two, 0, **options)


def arrays(shape: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    a = random.standard_normal(shape).astype(dtype)
    return a, (a + random.standard_normal(shape) * np.linspace(0, 1, a.size).reshape(shape)).astype(
        dtype
    )


@pytest.mark.parametrize("kind", ["a.safetensors", "a.msgpack", "packs", "zarr-zstd"])
def test_all_elements_enter_histogram_and_strip(tmp_path: Path, kind: str) -> None:
    a, b = arrays((1300, 1001))
    with pair(tmp_path, a, b, kind) as (one, two):
        result = compare_leaves(one, 0, two, 0, bins=40, segments=13)
    change = b.astype(float) - a
    assert result.complete
    assert result.read_bytes == a.nbytes
    assert result.histogram is not None
    counts, edges = np.histogram(change, bins=40)
    assert (result.histogram.low, result.histogram.high) == (edges[0], edges[-1])
    assert result.histogram.counts == tuple(counts.tolist())
    means = np.abs(change).reshape(13, -1).mean(axis=1)
    assert result.strip == pytest.approx(means.tolist(), rel=1e-9)
    (leaf,) = cordwood.diff({"w": a}, {"w": b}).leaves
    assert result.difference.relative_l2 == pytest.approx(leaf.relative_l2, rel=1e-12)
    assert result.difference._replace(l2=0, relative_l2=0, cosine=0) == leaf._replace(
        l2=0, relative_l2=0, cosine=0
    )


def test_equal_leaves_have_no_difference(tmp_path: Path) -> None:
    a, _ = arrays((20, 5))
    result = compared(tmp_path, a, a)
    assert (result.difference.what, result.difference.differing) == ("value", 0)
    assert (result.difference.relative_l2, result.difference.cosine) == (0.0, 1.0)
    assert result.histogram == (0.0, 0.0, (100, *[0] * 63))
    assert set(result.strip) == {0.0}
    assert len(result.strip) == 100  # no more segments than elements


def test_elements_that_are_not_finite(tmp_path: Path) -> None:
    a, b = np.zeros(8), np.array([1, math.nan, -math.inf, 2, 3, math.nan, math.nan, -1])
    result = compared(tmp_path, a, b, bins=4, segments=4)
    assert result.histogram == (-1.0, 3.0, (1, 0, 1, 2))
    assert result.strip == (1.0, 2.0, 3.0, 1.0)
    assert (result.difference.new_nan, result.difference.new_inf) == (3, 1)
    nothing = compared(tmp_path, a, np.full(8, math.nan), segments=2)
    assert (nothing.histogram, nothing.strip) == (None, (None, None))


@pytest.mark.parametrize(
    ("a", "b", "ends", "mean"),
    [
        (np.zeros((), np.float32), np.float32(2), (2.0, 2.0), 2.0),
        (np.array([1 + 1j]), np.array([4 + 5j]), (5.0, 5.0), 5.0),
        (np.array([0, 2**63], np.uint64), np.array([2**64 - 1, 0], np.uint64), None, None),
        (np.array([1.7e308]), np.array([-1.7e308]), (-1.7976931348623157e308,) * 2, None),
        (np.array([True, False]), np.array([False, False]), (-1.0, 0.0), 1.0),
        (np.array([3], ml_dtypes.int4), np.array([-2], ml_dtypes.int4), (-5.0, -5.0), 5.0),
    ],
)
def test_extreme_values_have_finite_histograms_and_strips(
    tmp_path: Path, a: Any, b: Any, ends: Any, mean: float | None
) -> None:
    result = compared(tmp_path, a, b, bins=2)
    histogram = result.histogram
    assert histogram is not None
    assert sum(histogram.counts) == np.size(a)
    assert (histogram.low, histogram.high) == (ends or (-(2.0**63), 2.0**64))
    assert all(value is not None and math.isfinite(value) for value in result.strip)
    if mean is not None:
        assert result.strip[0] == mean


def test_empty_arrays_have_no_histogram(tmp_path: Path) -> None:
    result = compared(tmp_path, np.ones((0, 3)), np.ones((0, 3)))
    assert (result.histogram, result.strip, result.complete) == (None, (), True)
    assert result.difference.size == 0


@pytest.mark.parametrize("kind", ["a.safetensors", "zarr"])
def test_a_sample_estimates_the_whole(tmp_path: Path, kind: str) -> None:
    a, b = arrays((32, 1 << 18))  # 32 MiB
    with pair(tmp_path, a, b, kind) as (one, two):
        sample = compare_leaves(one, 0, two, 0, sample=True)
        whole = compare_leaves(one, 0, two, 0)
    assert not sample.complete
    assert sample.difference.size * 4 == sample.read_bytes <= 4 * MIB
    assert sample.histogram is not None
    assert sum(sample.histogram.counts) == sample.difference.size
    assert sample.difference.relative_l2 == pytest.approx(whole.difference.relative_l2, rel=0.2)
    assert len(sample.strip) == 256
    read = [i for i, value in enumerate(sample.strip) if value is not None]
    assert 0 < len(read) <= 128
    for i in read:
        assert sample.strip[i] == pytest.approx(whole.strip[i], rel=0.2, abs=0.01)
    small = compared(tmp_path, *arrays((9, 9)), sample=True)
    assert small.complete


def test_arrays_of_different_dtypes_are_compared(tmp_path: Path) -> None:
    a, b = arrays((50,))
    result = compared(tmp_path, a, b.astype(ml_dtypes.bfloat16))
    assert result.difference.what == "dtype"
    change = b.astype(ml_dtypes.bfloat16).astype(float) - a
    assert result.difference.l2 == pytest.approx(np.linalg.norm(change))


def test_leaves_without_numbers_are_refused(tmp_path: Path) -> None:
    ones = np.ones(3)
    with pytest.raises(TypeError, match=r"^w is float64\[3\] in a and float64\[4\] in b: expected"):
        compared(tmp_path, ones, np.ones(4))
    for other in (7, jax.random.key(0), np.ones(3, "M8[D]")):
        with pytest.raises(TypeError, match="expected an array of numbers"):
            compared(tmp_path, other, ones)


def test_progress_counts_both_reads(tmp_path: Path) -> None:
    a, b = arrays((8, 1 << 18))
    messages: list[Progress] = []
    compared(tmp_path, a, b, progress=messages.append)
    assert messages[0] == Progress(0, 4 * a.nbytes)
    assert messages[-1].done_bytes == messages[-1].total_bytes == 4 * a.nbytes

    def stop(progress: Progress) -> None:
        if progress.done_bytes > a.nbytes:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        compared(tmp_path, a, b, progress=stop)


def test_changes_are_nan_where_one_is_not_finite() -> None:
    change = changes_of(np.array([1, math.inf, math.nan, 2]), np.array([2, 1, 1, -math.inf]))
    assert change[0] == 1
    assert np.isnan(change[1:]).all()


@pytest.mark.parametrize("sample", [True, False])
def test_small_elements_do_not_need_more_memory(tmp_path: Path, sample: bool) -> None:
    size = 4 * MIB if sample else 24 * MIB
    a = np.arange(size, dtype=np.int64).astype(np.uint8)
    with pair(tmp_path, a, a ^ 1) as (one, two), traced_memory() as traced:
        result = compare_leaves(one, 0, two, 0, sample=sample)
    assert result.complete
    assert result.difference.differing == size
    assert traced.peak_bytes < (120 if sample else 200) * MIB  # 64 of them hold what was read
