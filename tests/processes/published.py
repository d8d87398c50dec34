"""Publications and updates by all processes of a group, by public names only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.testing import assert_trees_equal

# How each array is spread over all devices; sizes divide by 4 and 6.
SPECS: dict[str, P] = {"rows": P("x"), "columns": P(None, "x"), "replicated": P()}

_publishers: dict[str, cordwood.WeightPublisher] = {}
_followers: dict[str, cordwood.WeightFollower] = {}


def tree_of(version: int) -> dict[str, Any]:
    """Return a version as numpy arrays and Python values; a few elements change in each."""
    rng = np.random.default_rng(0)
    tree: dict[str, Any] = {
        "rows": rng.standard_normal((12 * 4096, 24), np.float32),  # 4.5 MiB: several tiles
        "columns": rng.standard_normal((48, 96)).astype(jnp.bfloat16),
        "replicated": rng.standard_normal((700,), np.float32),
    }
    for number in range(version):
        for name in SPECS:
            tree[name].reshape(-1)[number::101] *= 2
    return {**tree, "local": {"numpy": np.arange(5) + version, "version": version}}


def sharding(name: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), ("x",)), SPECS[name])


def publish(path: str, version: int) -> None:
    publisher = _publishers.get(path)
    if publisher is None:
        publisher = _publishers[path] = cordwood.WeightPublisher(path, full_every=4)
    tree = tree_of(version)
    for name in SPECS:
        value = tree[name]
        tree[name] = jax.make_array_from_callback(value.shape, sharding(name), value.__getitem__)
    pending = publisher.publish(version, tree)
    for name in SPECS:
        tree[name].delete()
    pending.wait()


def follow(path: str, version: int) -> int:
    """Update a follower, compare what it returns, and return how many tiles it holds."""
    follower = _followers.get(path)
    expected = tree_of(version)
    if follower is None:
        like = dict(expected)
        for name in SPECS:
            value = expected[name]
            like[name] = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding(name))
        follower = _followers[path] = cordwood.WeightFollower(path, like=like)
    assert follower.wait_for(version, timeout_seconds=60) == version
    tree = follower.update()
    assert follower.version == version
    assert_trees_equal(tree["local"], expected["local"])
    for name in SPECS:
        assert tree[name].sharding == sharding(name)
        for shard in tree[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[name][shard.index])
    assert follower._held is not None
    return len(follower._held._tiles)
