"""None as a cast: it means none, as everywhere; numpy takes it for float64."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError

TREE = {"w": np.ones(3, ml_dtypes.bfloat16), "n": np.arange(3)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "tree", TREE)
    return tmp_path / "tree"


def test_cast_none_keeps_the_dtypes(path: Path) -> None:
    for like in (None, TREE):
        loaded = cordwood.load(path, like=like, cast=None)
        assert {name: leaf.dtype for name, leaf in loaded.items()} == {
            name: leaf.dtype for name, leaf in TREE.items()
        }


def test_none_is_no_dtype_of_a_pattern(path: Path) -> None:
    with pytest.raises(ValueError, match="None is no dtype"):
        cordwood.load(path, cast={"w": None})


def test_a_cast_to_64_bits_is_not_said_of_the_file(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "tree", {"w": np.ones(3, np.float32)})
    with pytest.raises(MismatchError, match=r"^cast= makes 64-bit leaves of .*tree \(1 in all\)"):
        cordwood.load(tmp_path / "tree", to="jax", cast="f64")


def test_the_tree_without_a_prefix_is_named(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "tree", TREE)
    cordwood.save(tmp_path / "tree", TREE, prefix="ema")
    with pytest.raises(cordwood.errors.PrefixError, match="leave out prefix="):
        cordwood.load(tmp_path / "tree", prefix="state")
    assert set(cordwood.load(tmp_path / "tree")) == set(TREE)


def test_a_part_of_an_unreadable_leaf_is_refused_as_the_leaf_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", o=np.array([None, "x"], object))
    with cordwood.open(tmp_path / "a.npz") as checkpoint:
        with pytest.raises(Exception, match="cannot be read") as whole:
            checkpoint["o"].load()
        with pytest.raises(type(whole.value), match="cannot be read"):
            checkpoint["o"][0:1]


@pytest.mark.parametrize("seconds", ["30", True, [30]])
def test_the_seconds_of_a_preemption_are_a_number(tmp_path: Path, seconds: object) -> None:
    with pytest.raises(TypeError, match=r"preemption_seconds=.*expected a number of seconds"):
        cordwood.CheckpointManager(tmp_path, preemption_seconds=seconds)  # type: ignore[arg-type]
