"""The resource `norms`: the L2 norm of each leaf, read in pieces and once for equal digests."""

from __future__ import annotations

import math
import uuid
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.results import Progress
from cordwood.viewer.resources import Resources
from cordwood.viewer.run_view import LeafNorms, NormCache, Read, leaf_norms, norm_of
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.viewer.gpt2_run import NAN_BLOCK, Faults, save_run


def norms_of(path: Path, read: Read = "all", **options: Any) -> dict[str, float | None]:
    return by_path(path, compute(path, read, **options))


def compute(path: Path, read: Read = "all", **options: Any) -> LeafNorms:
    options.setdefault("cache", NormCache())
    with cordwood.open(path) as checkpoint:
        return leaf_norms(checkpoint, read, **options)


def by_path(path: Path, norms: LeafNorms) -> dict[str, float | None]:
    with cordwood.open(path) as checkpoint:
        return dict(zip(checkpoint, norms.norms, strict=True))


def test_norms_are_those_of_numpy(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tree = {
        "float32": random.standard_normal((700, 2000), np.float32),
        "float64": random.standard_normal(1000) * 1e200,
        "bfloat16": random.standard_normal(1000).astype(ml_dtypes.bfloat16),
        "int": np.arange(-5, 9),
        "complex": np.array([3 + 4j, 1j]),
        "empty": np.zeros((0, 3)),
        "scalar": np.float32(-3),
        "python": 2.5,
    }
    path = tmp_path / "tree"
    cordwood.save(path, {**tree, "huge": 10**400})
    norms = norms_of(path)
    assert norms["huge"] == math.inf
    for name, value in tree.items():
        scale = 1e200 if name == "float64" else 1
        array = np.asarray(value)
        wide = array.astype(np.complex128 if name == "complex" else np.float64)
        expected = float(np.linalg.norm((wide / scale).reshape(-1)) * scale)
        assert norms[name] == pytest.approx(expected, rel=1e-12)


def test_leaves_that_are_no_numbers_have_no_norm(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    cordwood.save(path, {"mask": np.ones(3, bool), "name": "adam", "flag": True, "w": np.ones(4)})
    assert norms_of(path) == {"mask": None, "name": None, "flag": None, "w": 2.0}


def test_nan_and_infinity_stay_what_they_are() -> None:
    assert math.isnan(norm_of(np.array([1.0, np.nan, np.inf])))
    assert norm_of(np.array([1.0, -np.inf])) == math.inf
    assert norm_of(np.array([1e-200, 0.0])) == 1e-200
    assert norm_of(np.zeros(4)) == 0.0


def test_a_leaf_with_equal_digests_is_not_read_again(tmp_path: Path) -> None:
    save_run(tmp_path, count=2, every=10)
    cache = NormCache()
    first = compute(tmp_path / "10", cache=cache)
    second = compute(tmp_path / "20", cache=cache)
    again = compute(tmp_path / "20", cache=cache)
    assert first.cached == 0
    assert second.read_bytes < first.read_bytes / 2
    assert again.read_bytes == 0
    assert again.norms == second.norms
    assert by_path(tmp_path / "10", first)["params/wte/embedding"] == pytest.approx(
        by_path(tmp_path / "20", second)["params/wte/embedding"]
    )


def test_a_sample_reads_a_part_and_estimates(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    random = np.random.default_rng(0)
    large = random.standard_normal((4, 1 << 20), np.float32)
    cordwood.save(path, {"large": large, "small": np.ones(16, np.float32)})
    cache = NormCache()
    norms = compute(path, "sample", cache=cache)
    assert norms.read_bytes < large.nbytes / 4
    assert norms.sampled == [True, False]
    assert not norms.complete
    assert norms.norms[0] == pytest.approx(float(np.linalg.norm(large)), rel=0.02)
    assert norms.norms[1] == 4.0
    again = compute(path, "sample", cache=cache)
    assert again == norms._replace(read_bytes=0, cached=2)  # still an estimate
    assert compute(path, "all", cache=cache).complete


def test_a_sample_is_bounded_and_takes_the_same_leaves_of_each_step(tmp_path: Path) -> None:
    tree = {f"w{i}": np.full((256, 256), i, np.float32) for i in range(8)}
    for step in ("1", "2"):
        cordwood.save(tmp_path / step, tree)
    one, two = (compute(tmp_path / s, "sample", max_sample_bytes=600_000) for s in ("1", "2"))
    assert one.read_bytes <= 600_000
    assert not one.complete
    chosen = [norm is not None for norm in one.norms]
    assert chosen == [norm is not None for norm in two.norms]
    assert sum(chosen) == 2


def test_progress_is_reported_and_its_exception_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    cordwood.save(path, {f"w{i}": np.ones(1 << 20, np.float32) for i in range(8)})
    seen: list[Progress] = []
    read = compute(path, report=seen.append).read_bytes
    assert (seen[0].done_bytes, seen[0].total_bytes) == (0, read)
    assert seen[-1].done_bytes == read

    def cancel(_: Progress) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        compute(path, report=cancel)


def test_a_damaged_leaf_is_named_and_the_others_have_norms(tmp_path: Path) -> None:
    save_run(tmp_path, count=2, every=10, faults=Faults(damaged_data=20), seed=7)
    sources = open_sources(str(tmp_path), None, OpenArguments())
    answer = Resources(sources).answer("norms/20/all")
    sources.close()
    assert not answer["complete"]
    assert answer["problems"]
    assert "do not match the digest" in answer["problems"][0]["message"]
    norms = dict(zip(answer["path"], answer["l2"], strict=True))
    assert all(norms[problem["path"]] is None for problem in answer["problems"])
    assert norms["params/wte/embedding"] > 0


def test_nans_are_in_the_answer_as_strings(tmp_path: Path) -> None:
    save_run(tmp_path, count=2, every=10, faults=Faults(nan_from=20))
    sources = open_sources(str(tmp_path), None, OpenArguments())
    text = Resources(sources).answer_json("norms/20/sample")
    sources.close()
    assert text.count(b'"NaN"') == 16  # the arrays of one block
    assert NAN_BLOCK.encode() in text


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack", ".msgpack.zst"])
def test_norms_of_other_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tree{suffix}"
    cordwood.save(path, {"w": np.full((3, 3), 2.0)})
    assert norms_of(path) == {"w": 6.0}


def test_norms_of_a_step_in_an_object_store() -> None:
    url = f"memory://norms-{uuid.uuid4().hex}/run"
    with CheckpointManager(url) as manager:
        manager.save(1, {"w": np.full((3, 3), 2.0)})
    sources = open_sources(url, None, OpenArguments())
    answer = Resources(sources).answer("norms/1/sample")
    sources.close()
    assert (answer["path"], answer["l2"], answer["complete"]) == (["w"], [6.0], True)
