"""Directory trees of zarr arrays without an index, as Levanter writes them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numcodecs
import numpy as np
import pytest
import tensorstore
from jax.experimental.array_serialization import serialization

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    LimitError,
    MismatchError,
    NotACheckpointError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.orbax import orbax_directory

TREE: dict[str, Any] = {
    "model": {
        "embed": jnp.arange(48.0).reshape(8, 6),
        "layers": {"0": jnp.arange(4, dtype=jnp.bfloat16), "1": jnp.ones((2, 0))},
    },
    "step": jnp.int32(7),
}


def write(path: Path, array: Any, driver: str = "zarr", **metadata: Any) -> None:
    spec = {"driver": driver, "kvstore": f"file://{path}/", "metadata": metadata}
    store = tensorstore.open(
        spec, dtype=array.dtype.name, shape=array.shape, create=True, delete_existing=True
    ).result()
    store.write(np.asarray(array)).result()


def write_tree(path: Path, compressor: Any) -> Path:
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(TREE):
        name = "/".join(key.key for key in key_path)
        write(path / name, leaf, compressor=compressor)
    (path / "metadata.json").write_text('{"step": 7}')
    return path


@pytest.mark.parametrize("compressor", [None, {"id": "gzip"}, {"id": "zstd"}, {"id": "blosc"}])
def test_nested_dicts_by_the_directories(tmp_path: Path, compressor: Any) -> None:
    path = write_tree(tmp_path / "step-7", compressor)
    assert cordwood.detect(path).format == "zarr-tree"
    loaded = cordwood.load(path)
    assert list(loaded) == ["model", "step"]
    jax.tree.map(np.testing.assert_array_equal, loaded, TREE)
    like = cordwood.load(path, like=TREE)
    assert like["model"]["layers"]["0"].dtype == jnp.bfloat16
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = cordwood.load(path, mesh=mesh, rules=[("embed", jax.P("x")), ("", jax.P())])
    assert placed["model"]["embed"].sharding.spec == jax.P("x")
    with cordwood.open(path) as checkpoint:
        np.testing.assert_array_equal(
            checkpoint["model/embed"][2:4, 1], TREE["model"]["embed"][2:4, 1]
        )
    checked = cordwood.verify(path)
    assert (checked.leaves, checked.verified_bytes) == (4, 0)
    assert checked.unverified_bytes > 0


@pytest.mark.parametrize("name", ["blosc", "bz2", "gzip", "lz4", "zlib", "zstd"])
def test_chunks_that_numcodecs_compressed(tmp_path: Path, name: str) -> None:
    """Its codec of that name, with its defaults; the last chunk is padded."""
    codec = numcodecs.get_codec({"id": name})
    array = np.arange(1500, dtype="<f4")
    metadata = {
        "zarr_format": 2,
        "shape": [1500],
        "chunks": [1000],
        "dtype": "<f4",
        "compressor": codec.get_config(),
        "fill_value": 0,
        "filters": None,
        "order": "C",
    }
    (tmp_path / ".zarray").write_text(json.dumps(metadata))
    for i, part in enumerate([array[:1000], np.resize(array[1000:], 1000)]):
        (tmp_path / str(i)).write_bytes(codec.encode(part))
    np.testing.assert_array_equal(cordwood.load(tmp_path), array)


def test_arrays_that_jax_serialises_are_read(tmp_path: Path) -> None:
    """Levanter saves so: sharded arrays, one directory each, a chunk for each shard."""
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    spread = jax.device_put(TREE["model"]["embed"], jax.NamedSharding(mesh, jax.P("x", "y")))
    spec = serialization.get_tensorstore_spec(str(tmp_path / "model/embed"))
    assert spec["driver"] == "zarr"
    write_array: Any = serialization.async_serialize  # type: ignore[attr-defined]
    asyncio.run(write_array(spread, spec))
    loaded = cordwood.load(tmp_path)
    np.testing.assert_array_equal(loaded["model"]["embed"], TREE["model"]["embed"])


def test_a_single_array_is_a_leaf(tmp_path: Path) -> None:
    write(tmp_path / "w", jnp.ones(3))
    np.testing.assert_array_equal(cordwood.load(tmp_path / "w"), np.ones(3))


def test_a_list_is_not_taken_for_steps(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"list/{i}/w", jnp.full(2, float(i)))
        write(tmp_path / f"steps/{i + 1}00/w", jnp.ones(2))
        write(tmp_path / f"named/step-{i}/w", jnp.ones(2))
    assert list(cordwood.load(tmp_path / "list")) == ["0", "1", "2"]
    for name, newest in (("steps", "300"), ("named", "step-2")):
        assert cordwood.detect(tmp_path / name).format == "steps"
        with pytest.raises(
            IncompleteCheckpointError, match=f"the newest is .*/{newest}; `cordwood steps"
        ):
            cordwood.load(tmp_path / name)
    assert list(cordwood.load(tmp_path / "steps/300")) == ["w"]


def a_chunk_missing(path: Path) -> None:
    (path / "model/embed/0.0").unlink()


def a_chunk_cut(path: Path) -> None:
    (path / "model/embed/0.0").write_bytes(b"short")


def metadata_damaged(path: Path) -> None:
    (path / "step/.zarray").write_text("{")


def a_link(path: Path) -> None:
    (path / "more").symlink_to(path / "model")


def a_loop(path: Path) -> None:
    (path / "model/again").symlink_to(path)


def a_database(path: Path) -> None:
    (path / "db").mkdir()
    (path / "db/manifest.ocdbt").write_bytes(b"")


def very_deep(path: Path) -> None:
    (path / "/".join(["d"] * 70)).mkdir(parents=True)


def a_checkpoint_within(path: Path) -> None:
    cordwood.save(path / "run", {"a": np.ones(2)}, format="zarr")


def a_pack_within(path: Path) -> None:
    cordwood.save(path / "model" / "head", {"a": np.ones(2)})


def a_pack_beside(path: Path) -> None:
    cordwood.save(path / "model" / "head.safetensors", {"a": np.ones(2)})


def an_orbax_within(path: Path) -> None:
    (path / "model" / "layers" / "_METADATA").write_text("{}")


def shards_beside(path: Path) -> None:
    (path / "model" / "model.safetensors.index.json").write_text("{}")


BROKEN: dict[Callable[[Path], None], tuple[type[Exception], str]] = {
    a_chunk_missing: (CorruptionError, "0.0 is missing: the checkpoint is incomplete"),
    a_chunk_cut: (TruncatedError, "0.0: expected 192 bytes, found 5"),
    metadata_damaged: (FormatError, "step"),
    a_link: (CorruptionError, "more is, or lies behind, a symbolic link"),
    a_loop: (CorruptionError, "model/again is, or lies behind, a symbolic link"),
    a_database: (UnsupportedFormatError, "manifest.ocdbt says that this is OCDBT"),
    a_checkpoint_within: (
        FormatError,
        "tree is no tree of arrays alone: tensorstore_index.json says that .*/tree/run is a check",
    ),
    a_pack_within: (FormatError, "cordwood.json says that .*/tree/model/head is a check"),
    a_pack_beside: (FormatError, "tree/model/head.safetensors would be left out; load"),
    an_orbax_within: (FormatError, "_METADATA says that .*/tree/model/layers is a"),
    shards_beside: (FormatError, "model.safetensors.index.json would be left out"),
    very_deep: (LimitError, "nested deeper than 64"),
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_tree_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = write_tree(tmp_path / "tree", None)
    damage(path)
    error, message = BROKEN[damage]
    for call in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(error, match=message) as caught:
            call(path)
        assert type(caught.value) is error
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("save", ["cordwood", "eformer"])
def test_a_parent_of_several_checkpoints(tmp_path: Path, save: str) -> None:
    for name in ("a", "b"):
        if save == "cordwood":
            cordwood.tree_serialize_leaves(tmp_path / name, {"w": np.ones(2)})
        else:
            write(tmp_path / name / "w", np.ones(2))
            text = '{"format": "tensorstore", "version": "1.0", "prefixes": {}}'
            (tmp_path / name / "tensorstore_index.json").write_text(text)
    with pytest.raises(FormatError, match=r"tensorstore_index.json says that .*/a is a che"):
        cordwood.load(tmp_path)


def test_an_array_within_an_array(tmp_path: Path) -> None:
    """Nothing is dropped; also where the outer one has directories of chunks."""
    write(tmp_path / "a", np.ones((4, 2)), chunks=[2, 2], dimension_separator="/")
    write(tmp_path / "a" / "b", np.full(3, 2.0))
    write(tmp_path / "a" / "1" / "c", np.full(3, 3.0))
    loaded = cordwood.load(tmp_path, to="numpy")
    assert sorted(loaded) == ["a", "a/1/c", "a/b"]
    assert [loaded[name].ravel()[0] for name in sorted(loaded)] == [1, 3, 2]
    assert cordwood.verify(tmp_path).leaves == 3


def test_directories_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not keep a checkpoint from being found; what is in them may be of the tree."""
    write(tmp_path / "tree" / "w", np.ones(3))
    (tmp_path / "tree" / "lost+found").mkdir()
    really = os.listdir

    def listdir(path: Any) -> list[str]:
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert cordwood.detect(tmp_path / "tree").format == "zarr-tree"


def test_a_directory_is_looked_at_for_orbax_once_for_each_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tree(tmp_path / "tree", None)
    looks = []
    inspect = orbax_directory.inspect_directory

    def look(directory: Any) -> Any:
        looks.append(directory.name)
        return inspect(directory)

    monkeypatch.setattr("cordwood.formats.orbax.orbax_directory.inspect_directory", look)
    cordwood.load(path)
    assert looks == [str(path)] * 2  # whether it is a checkpoint, and whether there are steps


def test_arrays_of_cordwoods_that_have_lost_their_index(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x", {"a": np.ones(3)}, format="zarr")
    (tmp_path / "x/tensorstore_index.json").unlink()
    with pytest.raises(CorruptionError, match="cordwood wrote this array"):
        cordwood.load(tmp_path / "x")


def test_nothing_is_saved_there(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "tree", None)
    with pytest.raises(NotACheckpointError):
        cordwood.save(path, {"a": np.ones(1)})
    with pytest.raises(ValueError, match="open the directory of that name"):
        cordwood.load(path, prefix="model")


def test_two_arrays_of_one_joined_name(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", np.full(3, 1, np.float32))
    write(tmp_path / "a.b", np.full(3, 2, np.float32))
    like = {"a": {"b": np.zeros(3, np.float32)}}
    with pytest.raises(MismatchError, match=r"are both called .* load without `like`"):
        cordwood.load(tmp_path, like=like)
    loaded = cordwood.load(tmp_path)
    assert (loaded["a"]["b"][0], loaded["a.b"][0]) == (1, 2)


def test_no_save_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    write(path / "w", np.full(3, 5, np.float32))
    for tree in ({"w": np.ones(3)}, {"other": np.ones(3)}):
        with pytest.raises(NotACheckpointError, match="which cordwood only reads"):
            cordwood.save(path, tree, format="zarr")
    assert cordwood.load(path)["w"].tolist() == [5, 5, 5]
