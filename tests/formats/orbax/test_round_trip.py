"""Orbax checkpoints opened, loaded onto meshes, verified, and never saved over."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training import train_state
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager
from orbax.checkpoint import v1

import cordwood
from cordwood.errors import (
    FormatError,
    IncompleteCheckpointError,
    MismatchError,
    NotACheckpointError,
    PrefixError,
)
from cordwood.testing import assert_trees_equal
from tests.children import run_python
from tests.golden.orbax_checkpoints import GOLDEN, LAYOUTS, tree, write
from tests.shardings import SHARDINGS

EVERY = list(LAYOUTS)


def plain(tree: Any) -> Any:
    """Return a tree as a load without `like` does: tuples as lists, nodes as dicts of fields."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)) and tree:
        return [plain(value) for value in tree]
    return tree


def save(path: Path, tree: Any, **options: Any) -> None:
    """Save as the handler of version 0 does, with its options."""
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(tree))
        checkpointer.wait_until_finished()


@pytest.mark.parametrize("layout", EVERY)
def test_golden_checkpoints_are_read_with_and_without_like(layout: str) -> None:
    expected = tree()
    result = cordwood.load(GOLDEN / layout)
    assert_trees_equal(sorted_keys(result), sorted_keys(plain(expected)), placement=False)
    assert_trees_equal(cordwood.load(GOLDEN / layout, like=expected), expected)


@pytest.mark.parametrize("layout", EVERY)
def test_what_the_real_library_writes_now(tmp_path: Path, layout: str) -> None:
    expected = tree()
    write(tmp_path / "c", layout, expected)
    assert_trees_equal(cordwood.load(tmp_path / "c", like=expected), expected)
    mapped = cordwood.load(tmp_path / "c", like=expected, mmap=True)
    assert_trees_equal(mapped, expected)
    with cordwood.open(tmp_path / "c") as checkpoint:
        assert checkpoint.format == "orbax"
        kernel = np.asarray(expected["params"]["kernel"])
        assert np.array_equal(checkpoint["params/kernel"][5:37:3, ::-2], kernel[5:37:3, ::-2])


def sorted_keys(tree: Any) -> Any:
    """jax, and so Orbax, sorts the keys of dicts."""
    if isinstance(tree, dict):
        return {key: sorted_keys(tree[key]) for key in sorted(tree)}
    return type(tree)(map(sorted_keys, tree)) if isinstance(tree, (list, tuple)) else tree


EXPECTED = {
    dtype: np.random.default_rng(0).integers(-8, 8, (24, 48, 16)).astype(jnp.dtype(dtype))
    for dtype in ("float32", "bfloat16", "int4")
}
OPTIONS: dict[str, dict[str, bool]] = {
    "zarr2, OCDBT": {"use_zarr3": False},
    "zarr3, OCDBT": {"use_zarr3": True},
    "zarr2, raw": {"use_ocdbt": False, "use_zarr3": False, "use_compression": False},
    "zarr3, raw": {"use_zarr3": True, "use_compression": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("number", [0, 6, 11, 15, 21, 25, 29], ids=lambda n: str(SHARDINGS[n]))
def test_saved_under_one_sharding_and_loaded_under_others(
    tmp_path: Path, number: int, options: dict[str, bool]
) -> None:
    save(tmp_path / "c", jax.device_put(EXPECTED, SHARDINGS[number]), **options)
    for step in (0, 1, 4, 11, 13):
        expectation = SHARDINGS[(number + step) % len(SHARDINGS)]
        result = cordwood.load(tmp_path / "c", shardings=expectation)
        for dtype, expected in EXPECTED.items():
            array = result[dtype]
            assert array.sharding == expectation
            assert array.dtype == expected.dtype
            for shard in array.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def test_rules_place_arrays_of_orbax_on_a_mesh(tmp_path: Path) -> None:
    tree = {"layer": {"bias": jnp.ones(8), "kernel": jnp.arange(64.0).reshape(8, 8)}, "step": 3}
    v1.save(tmp_path / "c", tree)
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    rules = [("kernel", jax.P("x", "y")), (".*", jax.P())]
    result = cordwood.load(tmp_path / "c", mesh=mesh, rules=rules)
    assert result["layer"]["kernel"].sharding == jax.NamedSharding(mesh, jax.P("x", "y"))
    assert result["layer"]["bias"].sharding.is_fully_replicated
    assert_trees_equal(result, tree, placement=False)


class Pair(NamedTuple):
    first: Any
    second: Any


class Module(eqx.Module):
    weight: jax.Array
    layers: list[Any]
    size: int = eqx.field(static=True, default=3)


def train() -> Any:
    transform = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    params = {"w": jnp.arange(12.0).reshape(3, 4)}
    return train_state.TrainState.create(apply_fn=None, params=params, tx=transform)


NODES: dict[str, Callable[[], Any]] = {
    "named tuples": lambda: {"a": Pair(jnp.ones(2), Pair(np.arange(3), ())), "b": (1, [2.5])},
    "integer keys": lambda: {3: jnp.ones(2), 10: {0: jnp.zeros(1)}},
    "a train state": train,
    "a module": lambda: Module(jnp.ones(3), [jnp.zeros(1), (np.float32(2.5),)]),
    "an nnx state": lambda: nnx.state(nnx.Linear(3, 4, rngs=nnx.Rngs(0))),
    "a list": lambda: [jnp.ones(2), {"a": (jnp.zeros(1), None)}],
    "a leaf": lambda: jnp.arange(6).reshape(2, 3),
    "names with slashes": lambda: {"a/b": jnp.ones(2), "a": {"x/y.z": np.ones(1)}, "é": 1},
}


@pytest.mark.parametrize("make", NODES.values(), ids=NODES.keys())
@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_any_type_comes_back_by_like(
    tmp_path: Path, make: Callable[[], Any], use_ocdbt: bool
) -> None:
    tree = make()
    save(tmp_path / "c", tree, use_ocdbt=use_ocdbt)
    assert_trees_equal(cordwood.load(tmp_path / "c", like=tree), tree)


def test_rich_types_tell_tuples(tmp_path: Path) -> None:
    from orbax.checkpoint._src.metadata.pytree_metadata_options import PyTreeMetadataOptions

    tree = {"a": (jnp.ones(1), [2]), "b": Pair(1, optax.EmptyState()), "c": [()]}
    save(
        tmp_path / "c", tree, pytree_metadata_options=PyTreeMetadataOptions(support_rich_types=True)
    )
    result = cordwood.load(tmp_path / "c")
    assert_trees_equal(result["a"], tree["a"])
    assert result["b"] == {"first": 1, "second": {}}
    assert result["c"] == [()]
    assert_trees_equal(cordwood.load(tmp_path / "c", like=tree), tree)


def test_like_that_does_not_fit(tmp_path: Path) -> None:
    tree = {"a": {"weight": jnp.ones((4, 8))}, "l": (jnp.ones(1), {}), "step": 7}
    save(tmp_path / "c", tree)
    like = {"a": {"wieght": jnp.ones((4, 8))}, "l": [jnp.ones(2), {"x": 1}], "step": jnp.int32(0)}
    with pytest.raises(MismatchError) as caught:
        cordwood.load(tmp_path / "c", like=like)
    for line in (
        "a/wieght: not in the checkpoint; did you mean a/weight?",
        "a/weight: in the checkpoint (float32[4,8]), not in `like`",
        "l/0: expected float32[2], found float32[1]",
        "l/1/x: not in the checkpoint",
        "l/1: expected container, found an empty container",
        "step: expected int32[], found int (cast=True converts it)",
    ):
        assert line in str(caught.value)
    fewer = cordwood.load(tmp_path / "c", like={"step": jnp.int32(0)}, strict=False, cast=True)
    assert_trees_equal(fewer, {"step": jnp.int32(7)}, placement=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps of several items each."""
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in (9, 10):
            manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave({"w": jnp.full(3, float(step))}),
                    ema=ocp.args.PyTreeSave({"v": jnp.zeros(2)}),
                    config=ocp.args.JsonSave({"lr": 0.1}),
                ),
            )
    return tmp_path / "run"


def test_the_items_of_a_step_are_trees_by_prefix(run: Path) -> None:
    path = run / "10"
    assert cordwood.load(path, prefix="state")["w"].tolist() == [10, 10, 10]
    assert list(cordwood.load(path, prefix="ema")) == ["v"]
    assert list(cordwood.open(path / "ema")) == ["v"]
    with pytest.raises(PrefixError, match=r"Available prefixes: \['ema', 'state'\]"):
        cordwood.load(path)
    with pytest.raises(
        PrefixError, match=r"the item 'config' is JSON, not a tree. Trees: \['ema', 's"
    ):
        cordwood.open(path, prefix="config")
    with pytest.raises(PrefixError, match="Prefix 'model' not found"):
        cordwood.load(path, prefix="model")
    with pytest.raises(PrefixError, match=r"Prefix 'model' not found. It is one tree, without"):
        cordwood.load(path / "ema", prefix="model")
    result = cordwood.verify(path)
    assert (result.format, result.leaves) == ("orbax", 2)


def test_the_only_tree_needs_no_prefix(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave({"w": jnp.ones(3)}))
    assert cordwood.load(tmp_path / "run" / "3")["w"].tolist() == [1, 1, 1]


def test_a_run_of_orbax_is_no_checkpoint(run: Path) -> None:
    message = r"run is a directory of 2 steps \(9, 10\), not a checkpoint: .* newest is .*/run/10;"
    for call in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(IncompleteCheckpointError, match=message):
            call(run)
    assert cordwood.detect(run).steps == ("9", "10")


def test_steps_with_a_prefix_are_listed(tmp_path: Path) -> None:
    """`step_prefix` of Orbax's managers; the arrays in them are not taken for the run's."""
    options = ocp.CheckpointManagerOptions(step_prefix="model")
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handler, options=options) as manager:
        for step in (9, 10):
            manager.save(step, args=ocp.args.PyTreeSave({"w": jnp.ones(3)}))
    result = cordwood.detect(tmp_path / "run")
    assert (result.format, result.steps) == ("steps", ("model_9", "model_10"))
    assert cordwood.detect(tmp_path / "run" / "model_9").format == "orbax"
    assert cordwood.load(tmp_path / "run" / "model_9")["w"].tolist() == [1, 1, 1]


def test_saves_that_did_not_finish(run: Path) -> None:
    (run / "10").rename(run / "10.orbax-checkpoint-tmp")
    with pytest.raises(IncompleteCheckpointError, match="Orbax did not finish this save; load an"):
        cordwood.load(run / "10.orbax-checkpoint-tmp")
    with pytest.raises(IncompleteCheckpointError, match=r"save, and left 10.orbax-checkpoint-tmp"):
        cordwood.load(run / "10")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        cordwood.load(run / "1")
    with pytest.raises(IncompleteCheckpointError, match=r"a directory of 1 step \(9\)"):
        cordwood.load(run)
    shutil.rmtree(run / "9")
    with pytest.raises(IncompleteCheckpointError, match="no finished save of Orbax, only"):
        cordwood.load(run)


def test_a_checkpoint_without_a_tree(run: Path) -> None:
    for item in ("state", "ema"):
        shutil.rmtree(run / "10" / item)
    with pytest.raises(FormatError, match="expected _METADATA, or items that have one, found conf"):
        cordwood.load(run / "10")


@pytest.mark.parametrize("layout", EVERY)
def test_nothing_is_saved_over(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "c"
    shutil.copytree(GOLDEN / layout, path)
    before = sorted(path.rglob("*"))
    for options in ({}, {"format": "packs"}, {"format": "zarr"}, {"prefix": "state"}):
        with pytest.raises(NotACheckpointError, match=r"/c holds what Orbax has written, which"):
            cordwood.save(path, {"a": 1}, **options)  # type: ignore[arg-type]
    for prefix, write_index in ((None, True), ("state", True), (None, False)):
        with pytest.raises(NotACheckpointError, match=r"/c holds what Orbax has written, which"):
            cordwood.tree_serialize_leaves(path, {"a": 1}, prefix=prefix, write_index=write_index)
    assert cordwood.gc(path) == []
    assert sorted(path.rglob("*")) == before


def test_nothing_is_saved_over_a_run_of_orbax(run: Path) -> None:
    for path in (run, run / "10", run / "10" / "state"):
        with pytest.raises(NotACheckpointError, match="holds what Orbax has written"):
            cordwood.save(path, {"a": 1})
        with pytest.raises(NotACheckpointError, match="holds what Orbax has written"):
            cordwood.save_async(path, {"a": 1}, format="zarr").wait()
        with pytest.raises(NotACheckpointError, match="holds what Orbax has written"):
            cordwood.tree_serialize_leaves(path, {"a": np.ones(1)}, GlobalAsyncCheckpointManager())
        assert not list(run.parent.rglob("*cordwood*"))
    cordwood.save(run / "cordwood", {"a": 1})  # beside the steps
    assert cordwood.load(run / "cordwood") == {"a": 1}


def test_links_are_no_steps(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "1").symlink_to("nowhere")
    (tmp_path / "ckpt" / "2").symlink_to(tmp_path)
    cordwood.tree_serialize_leaves(tmp_path / "ckpt", {"a": np.ones(1)})
    assert cordwood.load(tmp_path / "ckpt")["a"].tolist() == [1]


def test_items_that_are_links_are_not_followed(run: Path) -> None:
    """Files that a checkpoint names are inside it."""
    path = run / "10"
    (path / "ema").rename(run.parent / "elsewhere")
    (path / "ema").symlink_to(run.parent / "elsewhere")
    with pytest.raises(
        PrefixError, match=r"Prefix 'ema' not found.*ema: symbolic links are not fo"
    ):
        cordwood.load(path, prefix="ema")
    assert list(cordwood.load(path)) == ["w"]
    assert cordwood.verify(path).leaves == 1
    (path / "state").rename(run.parent / "state")
    (path / "state").symlink_to(run.parent / "state")
    with pytest.raises(FormatError, match=r"ema, state: symbolic links are not followed; copy"):
        cordwood.load(path)
    assert list(cordwood.load(path / "state")) == ["w"]  # as the caller says


def test_names_that_no_path_can_have(tmp_path: Path) -> None:
    save(tmp_path / "c", {"a": jnp.ones(2)}, use_ocdbt=False)
    for name, message in (("x" * 300, "too long for a file name"), ("x/" * 2500, "at most 4000")):
        members = json.loads((tmp_path / "c" / "_METADATA").read_text())
        (entry,) = members["tree_metadata"].values()
        entry["key_metadata"][0]["key"] = f"{name}y"
        (tmp_path / "c" / "_METADATA").write_text(json.dumps(members))
        with pytest.raises(FormatError, match=message):
            cordwood.load(tmp_path / "c")


def test_chunks_smaller_than_shards(tmp_path: Path) -> None:
    whole = jax.device_put(np.arange(8192.0, dtype=np.float32).reshape(128, 64), SHARDINGS[15])
    tree = {"w": whole, "n": np.arange(63).reshape(7, 9)}
    for options in OPTIONS.values():
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        small = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=512), tree)
        with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(tree, save_args=small))
            checkpointer.wait_until_finished()
        with cordwood.open(path) as checkpoint:
            (leaf,) = [leaf for leaf in checkpoint.index.leaves if leaf.key_path == ("w",)]
            assert len(leaf.storage.pieces) >= 64  # type: ignore[union-attr]
        assert_trees_equal(cordwood.load(path, like=tree), tree)


def test_as_orbax_restores_it(tmp_path: Path) -> None:
    """Leaf by leaf what the real library gives back."""
    tree = {"a": jnp.arange(6.0), "n": np.arange(3), "i": 3, "f": 0.25, "t": True, "s": "x"}
    save(tmp_path / "c", tree)
    with warnings.catch_warnings(action="ignore"):
        theirs = ocp.PyTreeCheckpointer().restore(tmp_path / "c")
    ours = cordwood.load(tmp_path / "c")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert np.array_equal(ours[name], value)
        assert_trees_equal(ours[name], tree[name], placement=False)


def test_a_closed_checkpoint_reads_no_more(tmp_path: Path) -> None:
    checkpoint = cordwood.open(GOLDEN / "v0-zarr2-files")
    checkpoint.close()
    with pytest.raises(ValueError, match="is closed; open it again"):
        checkpoint["params/kernel"].load()


def test_neither_jax_nor_orbax_is_needed() -> None:
    code = """
        import cordwood, sys
        tree = cordwood.load(sys.argv[1], to="numpy")
        assert tree["params"]["kernel"].shape == (64, 48)
        assert tree["keys"].dtype == "uint32"
        print({"jax", "orbax", "tensorstore"} & set(sys.modules))
    """
    for layout in EVERY:
        assert run_python(code, str(GOLDEN / layout)) == "set()\n"


@pytest.mark.parametrize("use_ocdbt", [False, True])
@pytest.mark.parametrize("tree", [{"a": {}, "b": {"c": []}, "d": ()}, {"a": {}, "s": "text"}])
def test_trees_without_arrays_are_read(tmp_path: Path, tree: Any, use_ocdbt: bool) -> None:
    """For which Orbax makes no database."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt)) as checkpointer:
        checkpointer.save(tmp_path / "c", tree)
    assert cordwood.load(tmp_path / "c") == plain(tree)
    assert cordwood.verify(tmp_path / "c").leaves == int("s" in tree)
