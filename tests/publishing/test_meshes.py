"""A follower with another mesh than the publisher, on the devices of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood as cw
from cordwood.testing import assert_trees_equal
from tests.shardings import SHARDINGS, sharding


def values(version: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((24, 48, 16)).astype(jnp.bfloat16)
    for number in range(version):
        array.reshape(-1).view(np.uint16)[number::37] += 1
    return array


MESHES = {
    "8 to 4": (sharding(P("x"), 8), sharding(P(None, "x"), 4)),
    "4 to 2x2": (sharding(P(None, "x"), 4), sharding(P("x", "y"), 2, 2)),
    "2x2 to 8": (sharding(P("x", "y"), 2, 2), sharding(P(None, None, "x"), 8)),
    "2x4 to 1": (sharding(P(("x", "y")), 2, 4), sharding(P(), 1)),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_follower_has_any_mesh(tmp_path: Path, name: str) -> None:
    source, target = MESHES[name]
    publisher = cw.WeightPublisher(tmp_path)
    like = {"w": jax.ShapeDtypeStruct((24, 48, 16), jnp.bfloat16, sharding=target)}
    follower = cw.WeightFollower(tmp_path, like=like)
    for version in (1, 2, 3):
        publisher.publish(version, {"w": jax.device_put(values(version), source)}).wait()
        made = follower.update()
        assert made["w"].sharding == target
        np.testing.assert_array_equal(np.asarray(made["w"]), values(version))
    with cw.open(tmp_path / "3") as delta:
        assert delta["digests"].shape[0] == len(source.device_set)  # a tile for each shard


def test_one_publisher_and_followers_of_thirty_shardings(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    followers = [
        cw.WeightFollower(
            tmp_path,
            like={"w": jax.ShapeDtypeStruct((24, 48, 16), jnp.bfloat16, sharding=each)},
        )
        for each in SHARDINGS
    ]
    for version in (1, 2):
        tree = {"w": jax.device_put(values(version), sharding(P("x", "y"), 4, 2))}
        publisher.publish(version, tree).wait()
        for each, follower in zip(SHARDINGS, followers, strict=True):
            made = follower.update()["w"]
            assert made.sharding == each
            np.testing.assert_array_equal(np.asarray(made), values(version))


def test_a_trainer_that_changes_its_mesh_publishes_the_tree(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path, to="numpy")
    for version, (source, _) in enumerate(MESHES.values(), start=1):
        publisher.publish(version, {"w": jax.device_put(values(version), source)}).wait()
        np.testing.assert_array_equal(follower.update()["w"], values(version))


def test_lora_leaves_alone_over_a_frozen_base(tmp_path: Path) -> None:
    """The base is published once, and the adapters in each version cost next to nothing."""
    publisher = cw.WeightPublisher(tmp_path)
    base = {"w": jax.device_put(values(0), sharding(P("x"), 8))}
    like = {"a": jax.ShapeDtypeStruct((64, 4), jnp.float32)}
    follower = cw.WeightFollower(tmp_path, like={"lora": like}, select="lora/**")
    for version in (1, 2, 3):
        tree: dict[str, Any] = {
            "base": base,
            "lora": {"a": jnp.full((64, 4), version, jnp.float32)},
        }
        publisher.publish(version, tree).wait()
        assert_trees_equal(follower.update(), {"lora": tree["lora"]})
    size = sum(path.stat().st_size for path in (tmp_path / "3").iterdir())
    assert size < 20_000 < values(0).nbytes
