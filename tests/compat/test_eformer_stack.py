"""eFormer's managers on cordwood's two functions, put in place of its own."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from eformer.serialization import (
    AsyncCheckpointManager,
    Checkpointer,
    CheckpointInterval,
    async_manager,
    serialization,
)

import cordwood
from cordwood.testing import assert_trees_equal
from tests.formats.zarr.zarr_trees import stored_index

P = jax.P


@pytest.fixture(autouse=True)
def _on_cordwood(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (async_manager, serialization):
        monkeypatch.setattr(module, "tree_serialize_leaves", cordwood.tree_serialize_leaves)
        monkeypatch.setattr(module, "tree_deserialize_leaves", cordwood.tree_deserialize_leaves)


def mesh_of(*shape: int) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, ("x", "y")[: len(shape)])


class State(NamedTuple):
    params: Any
    opt: Any
    step: Any
    name: Any
    nothing: Any


def state() -> State:
    sharding = jax.NamedSharding(mesh_of(4, 2), P("x", "y"))
    params = {
        "dense": {"kernel": jax.device_put(jnp.arange(64.0).reshape(8, 8), sharding)},
        "layers": [jnp.ones(8, jnp.bfloat16), (jnp.arange(4).astype(jnp.int4),)],
        "empty": jnp.zeros((0, 2)),
    }
    return State(params, optax.adam(1e-3).init(params), 7, "run", None)


def same(result: Any, expected: Any) -> None:
    """Equal but for shardings."""
    assert str(jax.tree.structure(result)) == str(jax.tree.structure(expected))
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        if isinstance(other, jax.Array):
            assert one.dtype == other.dtype
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        else:
            assert one == other


def test_save_pytree_and_load_pytree(tmp_path: Path) -> None:
    manager = AsyncCheckpointManager(use_tensorstore=True)
    tree = state()
    for prefix in ("model", "ema"):
        manager.save_pytree(tree, tmp_path / "c", prefix=prefix, extras={"step": 7})
    index = stored_index(tmp_path / "c")
    assert sorted(index["cordwood"]["items"]) == ["ema", "model"]
    for prefix in ("model", "ema"):
        result, extras = manager.load_pytree(tmp_path / "c", mesh_of(8), prefix=prefix)
        assert extras == {"step": 7}
        same(result, tree)
        result, _ = manager.load_pytree(
            tmp_path / "c", mesh_of(8), prefix=prefix, template=tree, chunk_size=3
        )
        same(result, tree)
    cordwood.verify(tmp_path / "c")
    like = cordwood.load(tmp_path / "c", like=tree, prefix="model")
    assert_trees_equal(like, tree)


def test_saving_again_replaces_it(tmp_path: Path) -> None:
    """B24: another shape, which eFormer's own functions cannot."""
    manager = AsyncCheckpointManager(use_tensorstore=True)
    manager.save_pytree({"w": jnp.ones(3)}, tmp_path / "c", prefix="m")
    manager.save_pytree({"w": jnp.zeros((2, 2)), "v": jnp.ones(1)}, tmp_path / "c", prefix="m")
    result, _ = manager.load_pytree(tmp_path / "c", mesh_of(8), prefix="m")
    same(result, {"v": jnp.ones(1), "w": jnp.zeros((2, 2))})
    assert (tmp_path / "c" / "m_structure.json").exists() or list((tmp_path / "c").glob("*.json"))


def test_save_tree_and_load(tmp_path: Path) -> None:
    manager = AsyncCheckpointManager(use_tensorstore=True)
    tree = {"a": {"w": jnp.arange(16.0).reshape(8, 2)}, "b": jnp.ones(8)}
    manager.save_tree(tree, tmp_path / "c", mesh=mesh_of(8))
    rules = ((".*w", P("x")), (".*", P()))
    result, _ = manager.load(tmp_path / "c", mesh_of(4, 2), partition_rules=rules)
    same(result, tree)
    assert result["a"]["w"].sharding.spec == P("x")
    result, _ = manager.load(tmp_path / "c", mesh_of(8), callback=lambda array, _: array + 1)
    assert result["b"].tolist() == [2.0] * 8


def test_the_checkpointer_of_eformer_saves_and_loads(tmp_path: Path) -> None:
    current = datetime.datetime(2026, 1, 1)
    checkpointer = Checkpointer(
        str(tmp_path),
        None,
        [CheckpointInterval(every=2, until=None)],
        manager=AsyncCheckpointManager(use_tensorstore=True),
        dt_now_injection=lambda: current,
    )
    tree = state()
    for step in (2, 4):
        checkpointer.save_pytree(tree._replace(step=step), prefix="state", step=step)
        checkpointer.save_pytree(tree.params, prefix="params", step=step)
    checkpointer.wait_until_finished()
    result, metadata = checkpointer.load_pytree(mesh_of(8), prefix="state", load_treedef=True)
    assert metadata["step"] == 4
    same(result, tree._replace(step=4))
    result, _ = checkpointer.load_pytree(
        mesh_of(8), prefix="params", path=str(tmp_path / "run-2"), discover_latest=False
    )
    assert np.array_equal(result["dense"]["kernel"], tree.params["dense"]["kernel"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run-2", "run-4"]
    checkpointer.save_checkpoint(
        tree.params, "run-6", step=6, prefix="model", structured=True, extras={"loss": 0.5}
    )
    checkpointer.wait_until_finished()
    result, metadata = checkpointer.load_checkpoint(
        mesh_of(8), path=str(tmp_path), prefix="model", structured=True
    )
    same(result, tree.params)
    assert cordwood.verify(tmp_path / "run-6").unverified_bytes == 0


def test_the_index_tells_eformer_of_all_arrays(tmp_path: Path) -> None:
    """B43: of prefixed checkpoints, eFormer's own function knows nothing."""
    from eformer.serialization.sharding_utils import create_sharding_tree_from_index

    cordwood.tree_serialize_leaves(tmp_path / "c", {"a": {"w": jnp.ones(8)}}, prefix="m")
    tree = create_sharding_tree_from_index(str(tmp_path / "c"), mesh_of(8), prefix="m")
    assert jax.tree.leaves(tree)
