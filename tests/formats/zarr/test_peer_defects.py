"""B20 to B37 of eFormer's TensorStore layer: eFormer has them, cordwood does not.

Each test first shows the defect in the peer, so that it is known when one of them is mended.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eformer.serialization import serialization as eformer

from cordwood import load, tree_deserialize_leaves, tree_serialize_leaves
from cordwood.compat.eformer.serialization import leaf_key_paths
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    MismatchError,
    TruncatedError,
    UnsupportedLeafError,
)
from cordwood.testing import assert_trees_equal
from tests.formats.zarr.zarr_trees import read_tree, stored_index
from tests.threads import in_threads

P = jax.P


def mesh_of(*shape: int) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, ("x", "y")[: len(shape)])


ONE = mesh_of(8)

# Where a save of eFormer's fails, jax leaves coroutines behind that complain when collected.
they_fail = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@contextmanager
def failure_of_theirs(*errors: type[Exception], match: str | None = None) -> Iterator[None]:
    with pytest.raises(errors, match=match):
        yield
    gc.collect()


def names_in(path: Path) -> list[str]:
    """All files at any depth."""
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    ("key", "prefix"), [("../../evil", None), ("{outside}/abs", None), ("w", "../../esc")]
)
def test_b20_no_key_or_prefix_leads_out_of_the_directory(
    tmp_path: Path, key: str, prefix: str | None
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = {key.format(outside=outside): jnp.ones(3)}
    theirs = tmp_path / "deep" / "theirs"
    if key.startswith("{"):  # what begins with dots, eFormer puts into the root of the disk
        eformer.tree_serialize_leaves(theirs, tree, prefix=prefix)
        assert (outside / "abs" / ".zarray").exists()
    ours = tmp_path / "deep" / "ours"
    before = names_in(outside)
    tree_serialize_leaves(ours, tree, prefix=prefix)
    assert names_in(outside) == before
    assert set(os.listdir(tmp_path / "deep")) <= {"ours", "theirs"}
    assert_trees_equal(tree_deserialize_leaves(ours, None, prefix=prefix, like=tree), tree)


@pytest.mark.parametrize("path", ["../secret", "{outside}/secret", "a/../../secret"])
def test_b20_no_path_in_an_index_leads_out_of_the_directory(tmp_path: Path, path: str) -> None:
    eformer.tree_serialize_leaves(tmp_path, {"secret": jnp.arange(3)})
    (tmp_path / "c" / "a").mkdir(parents=True)
    index = {"format": "tensorstore", "arrays": [{"path": path.format(outside=tmp_path)}]}
    (tmp_path / "c" / "tensorstore_index.json").write_text(json.dumps(index))
    assert np.array_equal(
        jax.tree.leaves(eformer.tree_deserialize_leaves(tmp_path / "c", ONE))[0], np.arange(3)
    )
    with pytest.raises(FormatError, match="leaves the checkpoint, or is no plain path"):
        tree_deserialize_leaves(tmp_path / "c", ONE)


@pytest.mark.parametrize(
    "tree",
    [
        {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}},
        {"a/b": jnp.ones(2), "a": {"b": jnp.zeros(2)}},
        OrderedDict([(1, jnp.ones(2)), ("1", jnp.zeros(2))]),
    ],
    ids=["a.b", "a/b", "1"],
)
def test_b21_leaves_do_not_collide(tmp_path: Path, tree: Any) -> None:
    eformer.tree_serialize_leaves(tmp_path / "theirs", tree)
    assert len([name for name in names_in(tmp_path / "theirs") if name.endswith(".zarray")]) == 1
    with pytest.raises(FormatError, match="two leaves were saved to one place, and one of them"):
        load(tmp_path / "theirs")
    tree_serialize_leaves(tmp_path / "ours", tree)
    assert_trees_equal(tree_deserialize_leaves(tmp_path / "ours", None, like=tree), tree)


@they_fail
def test_b21_nor_does_a_directory_with_a_chunk(tmp_path: Path) -> None:
    tree = {"a": jnp.ones(2), "a.0": jnp.zeros(2)}
    with failure_of_theirs(ValueError, match="a/0"):
        eformer.tree_serialize_leaves(tmp_path / "theirs", tree)
    tree_serialize_leaves(tmp_path / "ours", tree)
    assert_trees_equal(tree_deserialize_leaves(tmp_path / "ours", None, like=tree), tree)


@pytest.mark.parametrize("writer", ["eformer", "cordwood"])
@pytest.mark.usefixtures("cut_small_arrays")
def test_b22_a_missing_chunk_is_no_zeros(tmp_path: Path, writer: str) -> None:
    sharding = jax.NamedSharding(mesh_of(4, 2), P("x", "y"))
    tree = {"w": jax.device_put(jnp.ones((8, 8)), sharding), "b": jnp.ones(3)}
    save = {"eformer": eformer.tree_serialize_leaves, "cordwood": tree_serialize_leaves}[writer]
    save(tmp_path, tree)
    for name in ("w/1.1", "b/0"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        assert not all(
            np.all(x) for x in jax.tree.leaves(eformer.tree_deserialize_leaves(tmp_path, ONE))
        )
        with pytest.raises(CorruptionError, match=f"{name[0]}: {name[2:]} is missing: the check"):
            tree_deserialize_leaves(tmp_path, ONE)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "b/0").write_bytes(data[:-1])
    with pytest.raises((TruncatedError, CorruptionError)):
        tree_deserialize_leaves(tmp_path, ONE)


@pytest.mark.parametrize("compression", [None, "zstd", "blosc", "archive"])
def test_b23_every_flipped_bit_of_a_chunk_is_noticed(tmp_path: Path, compression: Any) -> None:
    import tensorstore

    import cordwood

    tree = {"w": np.linspace(0, 1, 7, dtype=np.float32)}
    cordwood.save(tmp_path / "c", tree, format="zarr", compression=compression)
    chunk = tmp_path / "c" / "w" / "0"
    data = chunk.read_bytes()
    unnoticed = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        chunk.write_bytes(bytes(flipped))
        with pytest.raises(CorruptionError, match=r"w/0: bytes 0 to"):
            tree_deserialize_leaves(tmp_path / "c", None)
        spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/c/w/"}  # what eFormer reads with
        try:
            theirs = tensorstore.open(spec, open=True).result().read().result()
            unnoticed += not np.array_equal(theirs, tree["w"])
        except ValueError:
            pass
    if compression == "zstd":  # the frames that cordwood writes have checksums, for all readers
        assert unnoticed == 0
    else:
        assert unnoticed > 0


@they_fail
@pytest.mark.parametrize("new", [jnp.zeros(5), jnp.ones(2, jnp.int32)], ids=["shape", "dtype"])
def test_b24_another_shape_or_dtype_replaces_the_old_one_whole(tmp_path: Path, new: Any) -> None:
    old = {"w": jnp.ones(2)}
    eformer.tree_serialize_leaves(tmp_path / "theirs", old)
    with failure_of_theirs(ValueError, match="FAILED_PRECONDITION"):
        eformer.tree_serialize_leaves(tmp_path / "theirs", {"w": new})
    try:
        loaded = eformer.tree_deserialize_leaves(tmp_path / "theirs", ONE)["w"]
        assert not np.array_equal(loaded, old["w"])
    except ValueError:
        gc.collect()  # neither the old nor the new one
    tree_serialize_leaves(tmp_path / "ours", old)
    tree_serialize_leaves(tmp_path / "ours", {"w": new})
    assert_trees_equal(
        tree_deserialize_leaves(tmp_path / "ours", None, like={"w": new}), {"w": new}
    )


class Waiting:
    """A manager whose data comes later, or never."""

    def serialize_with_paths(
        self, arrays: Any, paths: Any, *, on_commit_callback: Callable[[], None]
    ) -> None:
        pass

    def deserialize_with_paths(self, shardings: Any, paths: Any) -> Any:
        raise NotImplementedError

    def wait_until_finished(self) -> None:
        pass


def test_b25_no_index_before_the_data_and_nothing_stale_after_it(tmp_path: Path) -> None:
    manager: Any = Waiting()
    eformer.tree_serialize_leaves(tmp_path / "theirs", {"w": jnp.ones(2)}, manager)
    assert names_in(tmp_path / "theirs") == ["tensorstore_index.json"]
    tree_serialize_leaves(tmp_path / "ours", {"w": jnp.ones(2)}, manager)
    assert not (tmp_path / "ours").exists()
    for name, save in (
        ("theirs", eformer.tree_serialize_leaves),
        ("ours", tree_serialize_leaves),
    ):
        save(tmp_path / name, {"w": jnp.ones(2), "gone": jnp.ones(1)})
        save(tmp_path / name, {"w": jnp.ones(2)})
        assert (tmp_path / name / "gone").exists() == (name == "theirs")


def test_b26_savers_of_several_prefixes_lose_nothing(tmp_path: Path) -> None:
    """Ever so many at once: eFormer's index is read, changed and written by each."""
    start = threading.Barrier(8)

    def save(number: int) -> None:
        start.wait()
        tree_serialize_leaves(tmp_path / "c", {"w": jnp.full(4, number)}, prefix=f"p{number}")

    in_threads(save, together=start)
    for number in range(8):
        assert read_tree(tmp_path / "c", f"p{number}")["w"].tolist() == [number] * 4


def wide(path: Path) -> None:
    """Write an array as a process with 64-bit types saves it."""
    import tensorstore

    metadata = {"compressor": {"id": "zstd"}, "shape": [1], "chunks": [1]}
    spec = {"driver": "zarr", "kvstore": f"file://{path}/n/", "metadata": metadata}
    store = tensorstore.open(spec, dtype="int64", create=True).result()
    store.write(np.array([2**40 + 1])).result()
    index = {"format": "tensorstore", "arrays": [{"path": "n", "shape": [1], "dtype": "int64"}]}
    (path / "tensorstore_index.json").write_text(json.dumps(index))


def test_b27_no_dtype_is_narrowed(tmp_path: Path) -> None:
    wide(tmp_path)
    assert eformer.tree_deserialize_leaves(tmp_path, ONE)["n"].tolist() == [1]
    with pytest.raises(MismatchError, match=r"64-bit leaves .*load with to=\"numpy\", or call jax"):
        tree_deserialize_leaves(tmp_path, ONE)
    assert load(tmp_path, to="numpy")["n"].tolist() == [2**40 + 1]
    loaded = tree_deserialize_leaves(tmp_path, ONE, like={"n": np.zeros(1, np.int64)})
    assert loaded["n"].tolist() == [2**40 + 1]


class State(NamedTuple):
    params: Any
    step: Any


def test_b28_structure_and_values_come_back(tmp_path: Path) -> None:
    tree = State({"l": [jnp.ones(1), (jnp.zeros(1), None)], "e": {}}, [7, 0.5, "run", b"\0", True])
    eformer.tree_serialize_leaves(tmp_path / "theirs", tree)
    theirs = eformer.tree_deserialize_leaves(tmp_path / "theirs", ONE)
    assert jax.tree.map(np.shape, theirs) == {"params": {"l": {"0": (1,), "1": {"0": (1,)}}}}
    tree_serialize_leaves(tmp_path / "ours", tree)
    assert_trees_equal(tree_deserialize_leaves(tmp_path / "ours", None, like=tree), tree)
    loaded = load(tmp_path / "ours")  # a named tuple as a dict of its fields
    assert loaded["step"] == [7, 0.5, "run", b"\0", True]
    assert loaded["params"]["l"][1][1] is None
    assert loaded["params"]["e"] == {}


@they_fail
@pytest.mark.parametrize(
    "leaf", [np.ones(3), np.float32(2), np.int64(2**40), jax.random.key(1)], ids=str
)
def test_b29_numpy_and_keys_are_saved_and_what_cannot_be_is_refused_first(
    tmp_path: Path, leaf: Any
) -> None:
    tree = {"a": jnp.ones(1), "b": leaf}
    with failure_of_theirs(AttributeError, TypeError):
        eformer.tree_serialize_leaves(tmp_path / "theirs", tree)
    tree_serialize_leaves(tmp_path / "ours", tree)
    assert_trees_equal(tree_deserialize_leaves(tmp_path / "ours", None, like=tree), tree)
    with pytest.raises(UnsupportedLeafError, match=r"^b: a ShapeDtypeStruct has no value"):
        tree_serialize_leaves(
            tmp_path / "none", {"a": jnp.ones(1), "b": jax.ShapeDtypeStruct((1,), jnp.float32)}
        )
    assert not (tmp_path / "none").exists()


def test_b30_a_missing_index_is_an_error(tmp_path: Path) -> None:
    assert eformer.tree_deserialize_leaves(tmp_path, ONE) is None
    with pytest.raises(IncompleteCheckpointError, match=r"has no tensorstore_index\.json: no save"):
        tree_deserialize_leaves(tmp_path, ONE)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        tree_deserialize_leaves(tmp_path / "none", ONE)


@they_fail
def test_b31_without_a_mesh_leaves_go_to_the_default_device(tmp_path: Path) -> None:
    eformer.tree_serialize_leaves(tmp_path, {"w": jnp.ones(3)})
    with failure_of_theirs(TypeError, AttributeError, ValueError):
        eformer.tree_deserialize_leaves(tmp_path, None)
    loaded = tree_deserialize_leaves(tmp_path, None)["w"]
    assert loaded.devices() == {jax.devices()[0]}
    assert not loaded.committed


def test_b32_nested_shardings_count(tmp_path: Path) -> None:
    eformer.tree_serialize_leaves(tmp_path, {"a": {"w": jnp.ones(8)}})
    nested: Any = {"a": {"w": jax.NamedSharding(ONE, P("x"))}}
    theirs = eformer.tree_deserialize_leaves(tmp_path, ONE, shardings=nested)["a"]["w"]
    assert theirs.sharding.spec == P()
    for shardings in (nested, {"a": {"w": P("x")}}, {"a.w": P("x")}):
        result = tree_deserialize_leaves(tmp_path, ONE, shardings=shardings)["a"]["w"]
        assert result.sharding.spec == P("x")


@pytest.mark.parametrize("member", ["shape", "dtype"])
def test_b33_the_index_and_the_arrays_must_agree(tmp_path: Path, member: str) -> None:
    eformer.tree_serialize_leaves(tmp_path, {"w": jnp.ones((2, 3))})
    index = stored_index(tmp_path)
    index["arrays"][0][member] = {"shape": [3, 2], "dtype": "float16"}[member]
    (tmp_path / "tensorstore_index.json").write_text(json.dumps(index))
    assert eformer.tree_deserialize_leaves(tmp_path, ONE)["w"].shape == (2, 3)
    with pytest.raises(FormatError, match=r"w: tensorstore_index.json says .*, .zarray float32"):
        tree_deserialize_leaves(tmp_path, ONE)


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A node that jax knows no keys of."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _aux: None, children: tuple[Any, ...]) -> Opaque:
        return cls(*children)


def test_b34_nodes_without_keys_are_numbered(tmp_path: Path) -> None:
    tree = {"a": Opaque(jnp.ones(1), jnp.zeros(2))}
    eformer.tree_serialize_leaves(tmp_path / "theirs", tree)
    assert (tmp_path / "theirs" / "a" / "<flat index 0>").exists()
    tree_serialize_leaves(tmp_path / "ours", tree)
    assert sorted(os.listdir(tmp_path / "ours" / "a")) == ["0", "1"]
    assert leaf_key_paths(tree)["a"].children == ("a.0", "a.1")
    loaded = tree_deserialize_leaves(tmp_path / "ours", None, like=tree)["a"]
    assert [x.shape for x in loaded.children] == [(1,), (2,)]


def test_b35_urls_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    eformer.tree_serialize_leaves(f"file://{tmp_path}/theirs", {"w": jnp.ones(1)})
    assert os.listdir(tmp_path) == ["file:"]
    tree_serialize_leaves(f"file://{tmp_path}/ours", {"w": jnp.ones(1)})
    assert "ours" in os.listdir(tmp_path)
    assert tree_deserialize_leaves(f"file://{tmp_path}/ours", None)["w"] == 1
    assert tree_deserialize_leaves(tmp_path / "ours", None)["w"] == 1


def test_b36_a_prefix_with_a_slash_is_stripped(tmp_path: Path) -> None:
    for name, save in (
        ("theirs", eformer.tree_serialize_leaves),
        ("ours", tree_serialize_leaves),
    ):
        save(tmp_path / name, {"w": jnp.ones(1)}, prefix="a/b")
        peer = eformer.tree_deserialize_leaves(tmp_path / name, ONE, prefix="a/b")
        assert peer.keys() == {"a"}
        assert tree_deserialize_leaves(tmp_path / name, ONE, prefix="a/b").keys() == {"w"}
        rules = (("^w$", P()),)
        assert tree_deserialize_leaves(
            tmp_path / name, ONE, prefix="a/b", partition_rules=rules
        ).keys() == {"w"}


def test_b37_no_chunk_is_too_large_and_a_part_is_read_without_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cordwood
    from cordwood.formats.zarr import plan_item

    tree = {"w": jnp.arange(4096.0).reshape(64, 64)}
    eformer.tree_serialize_leaves(tmp_path / "theirs", tree)
    assert names_in(tmp_path / "theirs" / "w") == [".zarray", "0.0"]
    monkeypatch.setattr(plan_item, "MAX_CHUNK_BYTES", {None: 4096, "zstd": 1024})
    cordwood.save(tmp_path / "ours", tree, format="zarr", compression="zstd")
    assert len(names_in(tmp_path / "ours" / "w")) == 1 + 16
    tree_serialize_leaves(tmp_path / "raw", tree)
    assert len(names_in(tmp_path / "raw" / "w")) == 1 + 4
    for name in ("ours", "raw"):
        same = eformer.tree_deserialize_leaves(tmp_path / name, ONE)["w"]
        assert np.array_equal(same, tree["w"])
        last = max((tmp_path / name / "w").glob("*.0"), key=lambda p: int(p.name.split(".")[0]))
        data = last.read_bytes()
        last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with cordwood.open(tmp_path / name) as checkpoint:
            assert np.array_equal(checkpoint["w"][:2], tree["w"][:2])  # not touched
            with pytest.raises(CorruptionError):
                checkpoint["w"][-1]
