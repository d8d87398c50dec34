"""The resources `diff` and `diff-leaf`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from cordwood.viewer.diff_view import diff_view
from cordwood.viewer.resources import Resources
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.viewer.gpt2_run import NAN_BLOCK, Faults, save_run


@contextmanager
def resources_of(a: Path, b: Path) -> Iterator[Resources]:
    sources = open_sources(str(a), str(b), OpenArguments())
    try:
        yield Resources(sources)
    finally:
        sources.close()


def answer(a: Path, b: Path, name: str) -> Any:
    with resources_of(a, b) as resources:
        return json.loads(resources.answer_json(name))


def row_of(result: Any, path: str) -> dict[str, Any]:
    number = result["rows"]["path"].index(path)
    return {name: column[number] for name, column in result["rows"].items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    save_run(root, count=4, faults=Faults(nan_from=300))
    return root


def test_digests_tell_what_is_frozen_and_read_nothing(run: Path) -> None:
    result = answer(run / "200", run / "300", "diff/a/b/digests")
    assert result["read_bytes"] == 0
    assert row_of(result, "params/wte/embedding")["state"] == "identical"
    assert result["counts"]["identical"] == 18
    (params,) = [matrix for matrix in result["matrices"] if matrix["group"] == "params"]
    states = cells(params, "3")
    assert states == {"equal"}
    assert "equal" not in cells(params, "4")


def test_values_show_a_frozen_block_and_one_with_nans(run: Path) -> None:
    result = answer(run / "200", run / "300", "diff/a/b/all")
    assert result["equal"] is False
    assert result["verdict"] == "535 of 553 leaves differ: 535 changed"
    (params,) = [matrix for matrix in result["matrices"] if matrix["group"] == "params"]
    assert {layer: cells(params, layer) for layer in params["layers"]} == {
        "outside layers": {"equal", "changed"},
        **{str(layer): {"changed"} for layer in range(12)},
        "3": {"equal"},
        "7": {"nan"},
    }
    row = row_of(result, f"params/{NAN_BLOCK}/mlp/c_fc/kernel")
    assert row["state"] == "changed"
    assert row["new_nan"] == 6
    assert 0 < row["relative_l2"] < 1


def test_nans_of_both_sides_are_marked_too(run: Path) -> None:
    result = answer(run / "300", run / "400", "diff/a/b/all")
    for matrix in result["matrices"]:
        broken = {layer for layer in matrix["layers"] if "nan" in cells(matrix, layer)}
        assert broken == ({"7"} if matrix["group"] == "params" else broken)
    assert row_of(result, f"params/{NAN_BLOCK}/mlp/c_fc/kernel")["new_nan"] == 0


def cells(matrix: Any, layer: str) -> set[str]:
    row, columns = matrix["layers"].index(layer), len(matrix["kinds"])
    return {state for state in matrix["states"][row * columns : (row + 1) * columns] if state}


def test_the_optimizer_is_described(run: Path) -> None:
    facts = {
        fact["name"]: fact for fact in answer(run / "100", run / "400", "diff/a/b/all")["optimizer"]
    }
    assert list(facts) == ["steps", "first moments (mu)", "second moments (nu)", "update to weight"]
    assert (facts["steps"]["a"], facts["steps"]["b"], facts["steps"]["change"]) == (1, 4, 3)
    with cordwood.open(run / "400") as checkpoint:
        moments = [
            np.asarray(checkpoint[path]).astype(np.float64) for path in checkpoint if "/mu/" in path
        ]
    squares = sum(float(np.square(array[np.isfinite(array)]).sum()) for array in moments)
    assert facts["first moments (mu)"]["b"] == pytest.approx(squares**0.5, rel=0.05)


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of bytes of each read from a file."""
    sizes: list[int] = []
    preadv = os.preadv

    def counted(fd: int, buffers: Any, offset: int) -> int:
        sizes.append(preadv(fd, buffers, offset))
        return sizes[-1]

    monkeypatch.setattr(os, "preadv", counted)
    return sizes


def test_equal_bytes_are_not_read(tmp_path: Path, read_sizes: list[int]) -> None:
    """Nine tenths of the bytes of two steps are equal by digest: only the rest is read."""
    rng = np.random.default_rng(0)
    tree = {f"layers_{i}": rng.standard_normal(1 << 18).astype(np.float32) for i in range(10)}
    with cordwood.CheckpointManager(tmp_path, background=False) as manager:
        manager.save(1, tree)
        manager.save(2, {**tree, "layers_3": tree["layers_3"] + 1})
    with resources_of(tmp_path / "1", tmp_path / "2") as resources:
        read_sizes.clear()  # opening reads the indexes
        digests = json.loads(resources.answer_json("diff/a/b/digests"))
        assert digests["read_bytes"] == 0
        assert sum(read_sizes) < 64 << 10  # headers, which hold the digests
        assert digests["counts"] == {"changed": 1, "identical": 9}
        assert digests["unread_bytes"] == 1 << 20
        result = json.loads(resources.answer_json("diff/a/b/all"))
        assert result["counts"] == {"changed": 1, "identical": 9}
        assert result["read_bytes"] == 1 << 20
        assert 2 << 20 <= sum(read_sizes) <= 4 << 20  # of both sides, rounded out to digest blocks
    assert result["differing_bytes"] == 1 << 20
    assert result["size_bytes"] == 10 << 20


def test_every_state_of_a_leaf_is_sent(tmp_path: Path) -> None:
    big = np.arange(1 << 18, dtype=np.float32)
    equal = {"kept": np.arange(8), "number": 3}
    before = {
        **equal,
        "old/name": big,
        "gone": 1,
        "shape": np.zeros(3),
        "type": np.ones(3),
        "x": 1.0,
    }
    after = {
        **equal,
        "new": big,
        "extra": np.zeros(4),
        "shape": np.zeros(4),
        "type": np.ones(3, np.float32),
        "x": 2.0,
    }
    cordwood.save(tmp_path / "a", before)
    cordwood.save(tmp_path / "b", after)
    result = answer(tmp_path / "a", tmp_path / "b", "diff/a/b/all")
    states = dict(zip(result["rows"]["path"], result["rows"]["state"], strict=True))
    assert states["kept"] in ("equal", "identical")
    assert states["number"] in ("equal", "identical")
    assert states["gone"] == "removed"
    assert states["extra"] == "added"
    assert states["shape"] == "reshaped"
    assert states["type"] == "recast"
    assert states["x"] == "changed"
    assert (row_of(result, "x")["before"], row_of(result, "x")["after"]) == ("1.0", "2.0")
    assert row_of(result, "type")["before"] == "float64[3]"
    assert row_of(result, "type")["after"] == "float32[3]"


@pytest.mark.parametrize("read", ["digests", "sample", "all"])
def test_equal_checkpoints_of_different_formats(tmp_path: Path, read: str) -> None:
    tree = {"params": {"w": np.arange(6.0), "b": np.zeros(2)}}
    cordwood.save(tmp_path / "a.safetensors", tree)
    cordwood.save(tmp_path / "b.msgpack", tree)
    result = answer(tmp_path / "a.safetensors", tmp_path / "b.msgpack", f"diff/a/b/{read}")
    assert result["leaf_count"] == 2
    if read == "digests":
        assert result["equal"] is None
        assert result["verdict"] == "no difference known; 2 leaves not compared"
    else:
        assert result["equal"] is True
        assert result["verdict"] == "equal: 2 leaves"


def test_containers_of_another_kind_are_named(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"layers": [np.zeros(2)], "empty": {}})
    cordwood.save(tmp_path / "b", {"layers": (np.zeros(2),)})
    result = answer(tmp_path / "a", tmp_path / "b", "diff/a/b/all")
    assert result["equal"] is False
    assert result["verdict"] == "equal values: 1 leaf; the structure differs in 2 containers"
    assert result["structure"] == [
        "layers: list | tuple",
        "empty: empty dict or node with fields only in a",
    ]


def test_a_tree_that_is_missing_on_one_side(tmp_path: Path) -> None:
    params = {"h_0": {"ln_1": {"scale": np.ones(4)}}}
    cordwood.save(tmp_path / "a", {"params": params, "opt_state": {"mu": params, "count": 3}})
    cordwood.save(tmp_path / "b", {"params": params})
    result = answer(tmp_path / "a", tmp_path / "b", "diff/a/b/all")
    assert result["counts"]["removed"] == 2
    assert [matrix["group"] for matrix in result["matrices"]] == ["params", "mu"]
    assert result["matrices"][1]["states"] == ["removed"]


def test_the_change_of_a_leaf(tmp_path: Path) -> None:
    array = np.linspace(-1, 1, 1000, dtype=np.float32)
    other = array.copy()
    other[:10] = np.nan
    other[500:] += 0.5
    cordwood.save(tmp_path / "a", {"w": array})
    cordwood.save(tmp_path / "b", {"w": other})
    for read in ("sample", "all"):
        result = answer(tmp_path / "a", tmp_path / "b", f"diff-leaf/a/b/0/0/{read}")
        assert result["complete"]
        assert result["path"] == "w"
        assert (result["before"], result["after"]) == ("float32[1000]", "float32[1000]")
        assert result["statistics"]["new_nan"] == 10
        assert result["statistics"]["differing"] == 510
        assert sum(result["histogram"]["counts"]) == 990
        assert len(result["strip"]) == 256
        assert result["strip"][200] == pytest.approx(0.5)


def test_a_leaf_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"w": np.zeros(3)})
    with resources_of(tmp_path / "a", tmp_path / "a") as resources:
        with pytest.raises(KeyError, match="there is no leaf number 7"):
            resources.answer("diff-leaf/a/b/0/7/all")
        with pytest.raises(KeyError, match="there is no source 'c'"):
            resources.answer("diff/a/c/digests")


def test_a_sample_of_large_leaves_gives_a_matrix(tmp_path: Path) -> None:
    before = {f"h_{i}": {"mlp": {"c_fc": {"kernel": np.ones((1024, 1024))}}} for i in range(2)}
    after = {name: jax.tree.map(lambda array: array * 1.5, block) for name, block in before.items()}
    cordwood.save(tmp_path / "a", before)
    cordwood.save(tmp_path / "b", after)
    with resources_of(tmp_path / "a", tmp_path / "b") as resources:
        result = diff_view(
            resources.sources, None, a="a", b="b", read="sample", sample_bytes=2 << 20
        )
    assert not result["complete"]
    assert result["read_bytes"] == 1 << 20
    assert result["unread_bytes"] == 16 << 20
    assert result["matrices"][0]["values"] == pytest.approx([0.5, 0.5])
    (update,) = result["optimizer"]
    assert update["change"] == pytest.approx(0.5)


def test_a_verdict_names_the_trees_that_are_not_compared(tmp_path: Path) -> None:
    for name in "ab":
        cordwood.save(tmp_path / name, {"w": np.ones(3)})
        cordwood.save(tmp_path / name, {"w": np.ones(3)}, prefix="ema")
    result = answer(tmp_path / "a", tmp_path / "b", "diff/a/b/digests")
    assert result["equal"] is None
    assert result["verdict"] == "equal: 1 leaf; not compared: the tree 'ema' (--prefix chooses)"
    chosen = open_sources(str(tmp_path / "a"), str(tmp_path / "b"), OpenArguments(prefix="ema"))
    assert diff_view(chosen, None, a="a", b="b", read="digests")["verdict"] == "equal: 1 leaf"
    chosen.close()
