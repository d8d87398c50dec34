"""save of a tree in memory as a directory of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.errors import NotACheckpointError, UnsupportedFormatError, UnsupportedLeafError

TREE: dict[str, Any] = {
    "layers": [{"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"w": np.ones(3, np.float32)}],
    "head": jnp.ones((4, 2), jnp.bfloat16),
}
NAMES = {"layers.0.w", "layers.1.w", "head"}


def test_a_save_for_the_hub_writes_one_file(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "hub", TREE, format="hugging_face")
    assert [each.name for each in (tmp_path / "hub").iterdir()] == ["model.safetensors"]
    loaded = safetensors.numpy.load_file(tmp_path / "hub" / "model.safetensors")
    assert set(loaded) == NAMES
    np.testing.assert_array_equal(loaded["layers.0.w"], TREE["layers"][0]["w"])
    assert cordwood.verify(tmp_path / "hub").leaves == 3
    assert set(cordwood.load(tmp_path / "hub")) == NAMES


def test_several_files_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "hub"
    cordwood.save(path, TREE, format="hugging_face", max_shard_bytes=24, metadata={"of": "me"})
    names = sorted(each.name for each in path.iterdir())
    assert names[0] == "model-00001-of-00003.safetensors"
    assert names[-1] == "model.safetensors.index.json"
    assert cordwood.open(path).metadata == {"format": "pt", "of": "me"}
    cordwood.save_async(tmp_path / "later", TREE, format="hugging_face").wait()
    assert cordwood.diff(path, tmp_path / "later").equal


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"w": np.ones(2), "step": 7}, "step: no array, and such a directory holds arrays alone"),
        ({"w": np.ones(2), "a": "x", "b": None}, "a: no array"),
        ({"key": jax.random.key(0)}, r"key: a PRNG key: store jax\.random\.key_data"),
        ({"a.b": np.ones(2), "a": {"b": np.ones(2)}}, "its name is that of another leaf"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, tree: Any, message: str) -> None:
    with pytest.raises(UnsupportedLeafError, match=message):
        cordwood.save(tmp_path / "hub", tree, format="hugging_face")
    assert list(tmp_path.iterdir()) == []


def test_a_save_for_the_hub_replaces_nothing(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "hub", TREE, format="hugging_face")
    with pytest.raises(NotACheckpointError, match="is not replaced or added to"):
        cordwood.save(tmp_path / "hub", TREE, format="hugging_face")


def test_a_store_and_a_prefix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="is local; upload it from there"):
        cordwood.save("memory://hub/model", TREE, format="hugging_face")
    with pytest.raises(ValueError, match="has no prefix"):
        cordwood.save(tmp_path / "hub", TREE, format="hugging_face", prefix="ema")
