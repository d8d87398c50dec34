"""Loads that return what was saved: structure, kinds, dtypes, values; with and without `like`."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.core import FrozenDict
from flax.training.train_state import TrainState

import cordwood
from cordwood.testing import assert_trees_equal

Point = namedtuple("Point", "x y")


class _Fields:
    w: Any


Struct: Any = struct.dataclass(_Fields)

SUFFIXES = [".safetensors", ".msgpack", ".msgpack.gz", ".msgpack.zst"]


def rich_tree() -> dict[Any, Any]:
    return {
        "z": jnp.arange(6.0).reshape(2, 3),
        "a": [np.arange(5, dtype=np.int64), (np.float32(2), np.ones((2, 0), np.float16))],
        "scalars": (3, True, None, 1 + 2j, "h\u00e9", b"zz", 2**80, -0.0, float("nan")),
        "keys": {5: jax.random.key(3), 7: jax.random.split(jax.random.key(0, impl="rbg"), 2)},
        "point": Point(np.arange(3), {}),
        "bf16": jnp.ones((4,), jnp.bfloat16),
        "int4": jnp.array([1, -2, 7], jnp.int4),
        "weak": jnp.full((3,), 1.0),
        "committed": jax.device_put(jnp.ones(3), jax.devices()[1]),
        "empty": [(), [], {}],
        "ordered": OrderedDict(b=1, a=np.ones(1)),
        "": {"a/b": 1, "a.b": {"c": 2}, "a": {"b.c": 3}},
    }


def test_like_gives_everything_back(tmp_path: Path) -> None:
    tree = rich_tree()
    path = tmp_path / "tree.safetensors"
    cordwood.save(path, tree)
    assert_trees_equal(cordwood.load(path, like=tree), tree)


def test_a_load_without_like_returns_dicts_for_nodes(tmp_path: Path) -> None:
    tree = rich_tree()
    path = tmp_path / "tree.safetensors"
    cordwood.save(path, tree)
    want = {
        **tree,
        "point": {"x": np.arange(3), "y": {}},
        "ordered": {"b": 1, "a": np.ones(1)},
        "committed": jnp.ones(3),
    }
    got = cordwood.load(path)
    assert_trees_equal(got, want)
    assert list(got) == list(tree)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_training_states_come_back_for_concrete_and_abstract_like(
    tmp_path: Path, suffix: str
) -> None:
    model = nn.Dense(3)
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))
    tx = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    grads = jax.tree.map(jnp.ones_like, params)
    state = jax.jit(lambda s: s.apply_gradients(grads=grads))(state)
    path = tmp_path / f"state{suffix}"
    cordwood.save(path, state)
    assert_trees_equal(cordwood.load(path, like=state), state)
    abstract = jax.eval_shape(lambda: state)
    assert_trees_equal(cordwood.load(path, like=abstract), state)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0), activation=jax.nn.relu),
        lambda: nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param),
        lambda: FrozenDict({"a": {"b": jnp.ones(2)}}),
        lambda: defaultdict(list, {"a": [jnp.ones(2), np.zeros(3)]}),
        lambda: OrderedDict(b=jnp.ones(2), a=np.zeros(3)),
        lambda: jax.tree_util.Partial(max, jnp.ones(2), key=np.zeros(3)),
    ],
    ids=["equinox", "nnx.State", "FrozenDict", "defaultdict", "OrderedDict", "Partial"],
)
def test_registered_nodes_come_back(tmp_path: Path, suffix: str, make: Any) -> None:
    tree = make()
    if isinstance(tree, eqx.Module):
        tree = eqx.filter(tree, eqx.is_array)
    path = tmp_path / f"tree{suffix}"
    cordwood.save(path, tree)
    assert_trees_equal(cordwood.load(path, like=tree), tree)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_kind_of_an_array_follows_like(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tree{suffix}"
    cordwood.save(path, {"x": jnp.arange(3.0), "y": np.arange(3, dtype=np.int32)})
    got = cordwood.load(path, like={"x": np.zeros(3, np.float32), "y": jnp.zeros(3, jnp.int32)})
    assert type(got["x"]) is np.ndarray
    assert got["x"].flags.writeable
    assert isinstance(got["y"], jax.Array)
    np.testing.assert_array_equal(got["x"], [0, 1, 2])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mmap", [False, True])
def test_to_chooses_the_kind_of_all_arrays(tmp_path: Path, suffix: str, mmap: bool) -> None:
    path = tmp_path / f"tree{suffix}"
    cordwood.save(path, {"x": jnp.arange(300.0), "y": np.arange(3, dtype=np.int32)})
    as_numpy = cordwood.load(path, to="numpy", mmap=mmap)
    assert [type(leaf) for leaf in as_numpy.values()] == [np.ndarray, np.ndarray]
    as_jax = cordwood.load(path, to="jax", mmap=mmap)
    assert all(isinstance(leaf, jax.Array) for leaf in as_jax.values())
    np.testing.assert_array_equal(as_jax["x"], np.arange(300.0))
    if suffix == ".safetensors" and mmap:
        assert not as_numpy["x"].flags.writeable


def _in_frozen_dict(tree: Any) -> Any:
    inside: Any = getattr(tree, "_dict", tree)  # its own indexing copies, recursively
    return inside["k"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("wrap", "below"),
    [
        (lambda tree: FrozenDict({"k": tree}), _in_frozen_dict),
        (Struct, lambda tree: tree.w),
        (lambda tree: OrderedDict(k=tree), lambda tree: tree["k"]),
    ],
    ids=["FrozenDict", "struct", "OrderedDict"],
)
def test_deep_trees_of_other_containers(
    tmp_path: Path, wrap: Callable[[Any], Any], below: Callable[[Any], Any], suffix: str
) -> None:
    tree: Any = np.ones(1)
    for _ in range(800):
        tree = wrap(tree)
    path = tmp_path / f"deep{suffix}"
    cordwood.save(path, tree)
    got = cordwood.load(path, like=tree)
    for _ in range(800):
        assert type(got) is type(tree)
        got, tree = below(got), below(tree)
    np.testing.assert_array_equal(got, [1])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_tree_800_levels_deep_comes_back(tmp_path: Path, suffix: str) -> None:
    tree: Any = np.ones(1)
    for level in range(800):
        tree = {"a": tree} if level % 2 else [tree]
    path = tmp_path / f"deep{suffix}"
    cordwood.save(path, tree)
    got = cordwood.load(path, like=tree)
    for level in reversed(range(800)):
        got = got["a"] if level % 2 else got[0]
    np.testing.assert_array_equal(got, [1])


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack"])
def test_sharded_arrays_come_back_without_host_copies(tmp_path: Path, suffix: str) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    partly = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "y"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    tree = {str(i): jax.device_put(value, s) for i, s in enumerate([spec, partly, whole])}
    path = tmp_path / f"tree{suffix}"
    cordwood.save(path, tree)
    assert all(leaf._npy_value is None for leaf in tree.values()), "a host copy was left behind"
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    np.testing.assert_array_equal(cordwood.load(path, to="numpy")["0"], value)


def test_a_tree_that_is_one_leaf_comes_back(tmp_path: Path) -> None:
    for number, tree in enumerate([np.arange(3), 5, None, "x", jnp.ones(())]):
        path = tmp_path / f"{number}.safetensors"
        cordwood.save(path, tree)
        assert_trees_equal(cordwood.load(path), tree)
        if tree is not None:
            assert_trees_equal(cordwood.load(path, like=tree), tree)


def test_metadata_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"a": np.ones(2)}, metadata={"format": "pt", "run": "7"})
    with cordwood.open(path) as checkpoint:
        assert dict(checkpoint.metadata) == {"format": "pt", "run": "7"}


def test_the_callers_tree_is_not_changed(tmp_path: Path) -> None:
    tree = rich_tree()
    leaves = jax.tree.leaves(tree)
    cordwood.save(tmp_path / "x.safetensors", tree)
    assert all(a is b for a, b in zip(jax.tree.leaves(tree), leaves, strict=True))


def test_same_tree_same_bytes(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        tree = {"a": np.arange(10.0), "b": [1, "x"]}
        cordwood.save(tmp_path / f"1{suffix}", tree)
        cordwood.save(tmp_path / f"2{suffix}", tree)
        assert (tmp_path / f"1{suffix}").read_bytes() == (tmp_path / f"2{suffix}").read_bytes()
