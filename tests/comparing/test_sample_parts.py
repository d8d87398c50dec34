"""A comparison that reads a sample."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import cordwood
from cordwood.comparing.compare_checkpoints import compare_checkpoints
from cordwood.comparing.sample_parts import sample_parts
from cordwood.index import Box
from cordwood.plan.split_arrays import Part
from cordwood.storage.locations import parse_location

MIB = 1 << 20


def parts_of(leaf: int, count: int, size_bytes: int = 4 * MIB, **options: bool) -> list[Part]:
    rows = size_bytes // 4096
    return [
        Part(leaf, Box((n * rows, 0), ((n + 1) * rows, 1024)), size_bytes, **options)
        for n in range(count)
    ]


def test_parts_within_the_limit_are_all_taken() -> None:
    parts = [*parts_of(0, 2), *parts_of(1, 1)]
    assert sample_parts(parts, 12 * MIB) == (parts, set())


def test_a_large_leaf_is_sampled_in_its_middle_and_a_small_one_whole() -> None:
    small = parts_of(1, 1, MIB)
    sample, incomplete = sample_parts([*parts_of(0, 9), *small], 8 * MIB)
    assert incomplete == {0}
    assert sample[1:] == small
    assert sample[0].box == Box((4096, 0), (4224, 1024))
    assert sample[0].size_bytes == MIB // 2


def test_chunks_are_read_whole() -> None:
    parts = parts_of(0, 9, divisible=False)
    sample, incomplete = sample_parts(parts, 8 * MIB)
    assert sample == [parts[4]]
    assert incomplete == {0}


def test_a_sample_has_no_more_than_the_limit() -> None:
    parts = [part for leaf in range(100) for part in parts_of(leaf, 3)]
    sample, incomplete = sample_parts(parts, 10 * MIB)
    assert sum(part.size_bytes for part in sample) == 10 * MIB
    assert len(sample) == 20
    assert [part.number for part in sample] == sorted(part.number for part in sample)
    assert incomplete == set(range(100))


@pytest.mark.parametrize("with_digests", [True, False])
def test_leaves_that_were_sampled_have_the_statistics_of_the_sample(
    tmp_path: Path, with_digests: bool
) -> None:
    rng = np.random.default_rng(0)
    before = {name: rng.standard_normal((2048, 1024)).astype(np.float32) for name in "abcd"}
    after = {"a": before["a"] + 1, "b": -before["b"], "c": before["c"].copy(), "d": before["d"]}
    after["c"][1000, 0] += 1  # outside of the sample
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    save = cordwood.save if with_digests else (lambda path, tree: save_file(tree, path))
    save(one, before)
    save(other, after)
    comparison = compare_checkpoints(*map(parse_location, (one, other)), sample_bytes=4 * MIB)
    assert comparison.diff.read_bytes <= 4 * MIB
    a, b, c, d = comparison.pairs
    last = ("changed", "identical") if with_digests else ("unread", "unread")
    assert (a.state, b.state, c.state, d.state) == ("changed", "changed", *last)
    assert comparison.incomplete == ({0, 1, 2} if with_digests else {0, 1, 2, 3})
    assert a.difference is not None
    assert a.difference.share == 1.0
    assert a.difference.size == a.difference.read_size == MIB // 8
    assert a.difference.l2 == pytest.approx(math.sqrt(MIB / 8), rel=0.01)
    assert b.difference is not None
    assert b.difference.relative_l2 == pytest.approx(2.0)
    assert c.difference is not None
    assert c.difference.share is None, "the sample shows no difference"


def test_small_checkpoints_are_compared_completely(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"w": np.zeros(8), "x": 1})
    cordwood.save(tmp_path / "b", {"w": np.ones(8), "x": 1})
    a, b = parse_location(tmp_path / "a"), parse_location(tmp_path / "b")
    comparison = compare_checkpoints(a, b, sample_bytes=MIB)
    assert comparison.incomplete == set()
    assert comparison == compare_checkpoints(a, b)
