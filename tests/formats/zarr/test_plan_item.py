"""The files of a save: trees of any leaves and keys, shards, compression, the files' bytes."""

from __future__ import annotations

import json
import os
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from eformer.serialization.serialization import tree_deserialize_leaves

from cordwood.dtypes import DTYPES, to_numpy
from cordwood.errors import CorruptionError, UnsupportedLeafError
from cordwood.formats.zarr import plan_item
from cordwood.index import Encoded, Pieces
from cordwood.tree.leaves import without_padding
from tests.formats.zarr.zarr_trees import index_at, read_tree, save_tree, stored_index
from tests.random_trees import assert_same

Pair = namedtuple("Pair", "x y")


def mesh_of(*shape: int) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, tuple("xyz"[: len(shape)]))


@pytest.mark.parametrize("compression", [None, "zstd", "blosc", "archive"])
def test_leaves_of_every_kind(tmp_path: Path, compression: str | None) -> None:
    tree: dict[str, Any] = {
        "w": jnp.arange(12.0).reshape(3, 4),
        "h": {"b": np.arange(3, dtype=np.int64), "a": np.float16(0.5)},
        "l": [True, 7, 2**70, 1.5, float("inf"), 1 - 2j, "é", b"\0", None],
        "t": (Pair(1, {}), [], ()),
        "o": OrderedDict([("z", jnp.int4(3)), ("a", np.zeros((0, 3)))]),
        "long": "x" * 10_000,
        "weak": jnp.asarray(2.0),
        "key": jax.random.key(3),
    }
    save_tree(tmp_path / "c", tree, compression=compression, metadata={"step": "7"})
    index = index_at(tmp_path / "c")
    kinds = {"/".join(map(str, leaf.key_path)): leaf.kind for leaf in index.leaves}
    assert kinds["h/b"] == "numpy"
    assert kinds["h/a"] == "numpy_scalar"
    assert kinds["w"] == "jax"
    assert kinds["key"] == "prng_key"
    assert kinds["l/2"] == "int"
    assert {leaf.key_path: leaf.weak_type for leaf in index.leaves}[("weak",)]
    assert index.naming == "exact"
    assert index.metadata == {"step": "7"}
    expected = dict(tree, t=({"x": 1, "y": {}}, [], ()), o=dict(tree["o"]))
    expected["key"] = jax.random.key_data(tree["key"])
    assert_same(read_tree(tmp_path / "c"), _numpy(expected))
    # eFormer's readers find arrays alone.
    assert [entry["path"] for entry in stored_index(tmp_path / "c")["arrays"]] == [
        *["h/a", "h/b", "key", "o/z", "o/a", "w", "weak"],
    ]


def _numpy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _numpy(value) for key, value in tree.items()}
    return np.asarray(tree) if isinstance(tree, jax.Array) else tree


@pytest.mark.parametrize("dtype", [*sorted(DTYPES), "datetime64[s]", "timedelta64[ns]"])
@pytest.mark.parametrize("compression", [None, "zstd", "blosc", "archive"])
def test_every_dtype_comes_back_and_tensorstore_opens_it(
    tmp_path: Path, dtype: str, compression: str | None
) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (5, 3)).astype(np.int64)
    array = without_padding(bits.astype(to_numpy(dtype)))
    tree = {"a": array, "e": array[:0], "s": array[0, 0]}
    save_tree(tmp_path / "c", tree, compression=compression)
    result = read_tree(tmp_path / "c")
    scalar = result.pop("s")
    assert type(scalar) is type(tree["s"])
    assert scalar == tree.pop("s")  # (the padding of a long double's bytes is not its own)
    assert_same(result, tree)
    for entry in stored_index(tmp_path / "c")["arrays"]:
        store = tensorstore.open(
            {"driver": "zarr", "kvstore": f"file://{tmp_path}/c/{entry['path']}/"}, open=True
        ).result()
        assert list(store.shape) == entry["shape"]
        assert store.dtype.name == entry["dtype"]
        store.read().result()


KEYS: list[Any] = [
    {"a.b": 1, "a": {"b": 2}},
    {"a/b": 1, "a": {"b": 2}},
    {"a": 1, "a.0": 2},
    {"": 1, "a": {"": 2}},
    {"..": 1, "../../evil": 2, "/abs/evil": 3, ".": 4, "a/../..": 5},
    OrderedDict([(1, 1), ("1", 2), (None, 3), (b"1", 4), ((1, "a"), 5)]),
    {"Kernel": 1, "kernel": 2},
    {"é": 1, "e\u0301": 2},
    {"x" * 300: 1, "é" * 200: 2},
    {"\ud800": 1, "a\0b": 2, "a\\b": 3, "new\nline": 4, " ": 5},
    {"tensorstore_index.json": 1, ".zarray": 2, "0": {"0": 3}, "0.0": 4},
    [1, [2, [3]]],
    7,
    {},
    [],
    None,
    {"layers": [{"w": 1}] * 3},
]


def of_arrays(tree: Any) -> Any:
    """Return the tree with arrays in place of its numbers."""
    if isinstance(tree, dict):
        return {key: of_arrays(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [of_arrays(value) for value in tree]
    return tree if tree is None else np.full((2, 2), tree, np.float32)


@pytest.mark.parametrize("tree", KEYS, ids=lambda tree: repr(tree)[:40])
@pytest.mark.parametrize("prefix", ["", "m", "../esc", "a.b/c"])
def test_keys_of_any_content(tmp_path: Path, tree: Any, prefix: str) -> None:
    """B20, B21: nothing collides, and nothing leaves the directory."""
    path = tmp_path / "in" / "c"
    arrays = of_arrays(tree)
    save_tree(path, arrays, prefix=prefix)
    assert_same(read_tree(path, prefix), arrays)
    assert os.listdir(tmp_path) == ["in"]
    assert os.listdir(tmp_path / "in") == ["c"]


def test_eformers_paths_where_they_will_do(tmp_path: Path) -> None:
    leaf = np.ones((2, 2), np.float32)
    save_tree(tmp_path / "c", {"a": [leaf, {"b c": leaf}], "d.e": leaf}, prefix="x.y")
    assert sorted(str(p.relative_to(tmp_path / "c")) for p in tmp_path.rglob(".zarray")) == [
        "x/y/a/0/.zarray",
        "x/y/a/1/b c/.zarray",
        "x/y/d/e/.zarray",
    ]
    assert (tmp_path / "c/x/y/a/0/0.0").read_bytes() == leaf.tobytes()
    assert json.loads((tmp_path / "c/x/y/a/0/.zarray").read_text()) == {
        "chunks": [2, 2],
        "compressor": None,
        "cordwood": 1,
        "dimension_separator": ".",
        "dtype": "<f4",
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": [2, 2],
        "zarr_format": 2,
    }


def test_a_small_array_is_one_chunk(tmp_path: Path) -> None:
    whole = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    spread = jax.NamedSharding(mesh_of(4, 2), jax.P("x", "y"))
    save_tree(tmp_path / "c", {"w": jax.device_put(whole, spread)})
    assert sorted(os.listdir(tmp_path / "c/w")) == [".zarray", "0.0"]
    assert np.array_equal(read_tree(tmp_path / "c")["w"], whole)


@pytest.mark.parametrize(
    ("axes", "spec", "files"),
    [
        ((8,), ("x",), 8),
        ((8,), (None, "x"), 8),
        ((4, 2), ("x", "y"), 8),
        ((4, 2), ("y", "x"), 8),
        ((4, 2), (("x", "y"),), 8),
        ((4, 2), (None, "y"), 2),
        ((4, 2), (), 1),
        ((2, 2, 2), ("x", ("y", "z")), 8),
        ((2, 2, 2), ("z",), 2),
    ],
)
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.usefixtures("cut_small_arrays")
def test_a_chunk_is_a_shard(
    tmp_path: Path, axes: tuple[int, ...], spec: Any, files: int, compression: str | None
) -> None:
    whole = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    sharding = jax.NamedSharding(mesh_of(*axes), jax.P(*spec))
    array = jax.device_put(whole, sharding)
    save_tree(tmp_path / "c", {"w": array}, compression=compression)
    assert np.array_equal(read_tree(tmp_path / "c")["w"], whole)
    metadata = json.loads((tmp_path / "c/w/.zarray").read_text())
    assert tuple(metadata["chunks"]) == sharding.shard_shape(whole.shape)
    assert len(os.listdir(tmp_path / "c/w")) == files + 1
    loaded = tree_deserialize_leaves(tmp_path / "c", mesh_of(8))
    assert np.array_equal(loaded["w"], whole)
    assert array._npy_value is None  # nothing is left on it


def test_large_chunks_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B37."""
    monkeypatch.setattr(plan_item, "MAX_CHUNK_BYTES", {None: 1000, "zstd": 300})
    whole = np.arange(97 * 10, dtype=np.int32).reshape(97, 10)
    spread = jax.device_put(whole[:96], jax.NamedSharding(mesh_of(8), jax.P("x")))
    save_tree(tmp_path / "raw", {"w": whole, "s": spread})
    save_tree(tmp_path / "zstd", {"w": whole, "s": spread}, compression="zstd")
    for name, count in (("raw", 4), ("zstd", 14)):
        assert_same(read_tree(tmp_path / name), {"w": whole, "s": whole[:96]})
        assert len(list((tmp_path / name / "w").iterdir())) - 1 == count
        loaded = tree_deserialize_leaves(tmp_path / name, mesh_of(8))
        assert np.array_equal(loaded["w"], whole)
        assert np.array_equal(loaded["s"], whole[:96])
    leaves = {leaf.key_path: leaf for leaf in index_at(tmp_path / "raw").leaves}
    assert isinstance(leaves[("w",)].storage, Pieces)
    sizes = {(p.stat().st_size) for p in (tmp_path / "raw/w").glob("*.0")}
    assert sizes == {25 * 40}  # the last one padded with zeros
    (storage,) = {leaf.storage for leaf in index_at(tmp_path / "zstd").leaves[:1]}
    assert isinstance(storage, Encoded)


@pytest.mark.parametrize("compression", [None, "zstd", "blosc", "archive"])
def test_the_same_tree_makes_the_same_bytes(tmp_path: Path, compression: str | None) -> None:
    tree = {"w": np.arange(6.0), "a": [jnp.ones(3), "x"], "é": np.longdouble(1)}
    for name in "ab":
        save_tree(tmp_path / name, tree, compression=compression)
    files = sorted(p.relative_to(tmp_path / "a") for p in tmp_path.glob("a/**/*") if p.is_file())
    assert len(files) == 7
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (jax.ShapeDtypeStruct((2,), jnp.float32), "a ShapeDtypeStruct has no value to store"),
        (np.array(["a"]), "cannot be stored; store a str"),
        (object(), "cannot be stored; register it"),
        (jnp.tanh, "a function or class"),
        (np.zeros((1,) * 32), "32 dimensions; this layout takes fewer than 32"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path: Path, leaf: Any, message: str
) -> None:
    """B29."""
    with pytest.raises(UnsupportedLeafError, match=f"^a/b: .*{message}"):
        save_tree(tmp_path / "c", {"a": {"b": leaf}, "z": np.ones(3)})
    assert os.listdir(tmp_path) == []


def test_options_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="compression='gzip': expected None or one of 'zstd'"):
        save_tree("unused", {}, compression="gzip")
    with pytest.raises(TypeError, match="metadata: expected str keys and values"):
        save_tree("unused", {}, metadata={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="holds a lone surrogate"):
        save_tree("unused", {}, metadata={"a": "\ud800"})


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_a_damaged_zarray_is_noticed(tmp_path: Path) -> None:
    save_tree(tmp_path / "c", {"w": np.ones(3)})
    flip(tmp_path / "c/w/.zarray", 20)
    with pytest.raises(CorruptionError, match=r"c/w: \.zarray does not match its digest: it is"):
        index_at(tmp_path / "c")


def test_chunks_that_were_swapped_are_noticed(tmp_path: Path) -> None:
    save_tree(tmp_path / "c", {"a": np.ones(3), "b": np.zeros(3)})
    (tmp_path / "c/a").rename(tmp_path / "spare")
    (tmp_path / "c/b").rename(tmp_path / "c/a")
    (tmp_path / "spare").rename(tmp_path / "c/b")
    with pytest.raises(AssertionError):  # its blocks do not match
        read_tree(tmp_path / "c")


@pytest.mark.parametrize("gone", ["cordwood", "items"])
def test_the_index_without_cordwoods_part_is_no_foreign_one(tmp_path: Path, gone: str) -> None:
    for prefix in ("", "m"):
        save_tree(tmp_path / "c", {"w": np.ones(3)}, prefix=prefix)
    index = stored_index(tmp_path / "c")
    if gone == "cordwood":
        del index["cordwood"]
    else:  # as eFormer would leave it, had it saved `m` into a directory of cordwood's
        from cordwood.formats.zarr.tensorstore_index import drop_item, encode_index, parse_index

        index = json.loads(encode_index(drop_item(parse_index(json.dumps(index).encode()), "m")))
    (tmp_path / "c/tensorstore_index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptionError, match="c/m/w: cordwood wrote this array, and its part of"):
        index_at(tmp_path / "c", "m")


def test_digests_of_another_count(tmp_path: Path) -> None:
    """A hostile index whose own digest is right."""
    from cordwood.formats.zarr.tensorstore_index import IndexFile, encode_index, parse_index

    save_tree(tmp_path / "c", {"w": np.ones(3)}, compression="zstd")
    place = tmp_path / "c/tensorstore_index.json"
    index = parse_index(place.read_bytes())
    item = index.items[""]
    head, digests = item["digests"].rsplit(":", 1)
    changes: dict[str, dict[str, Any]] = {
        "has 48 bytes of digests, expected 32": {"digests": f"{head}:{digests[:-1]}{'A' * 21}"},
        "the index has no digests for it": {"digests": f"{head}:{digests[:22]}=="},
        "expected 5 bytes, found": {"sizes": [5]},
        "expected 0 bytes, found": {"sizes": []},
        "positive integers": {"sizes": [0]},
        "order: expected each leaf": {"order": [1]},
        "order: expected a list": {"order": ["a"]},
        "digests: expected xxh3-128:BYTES:BASE64, found md5": {"digests": "md5:1:"},
        r"digests: expected xxh3-128:BYTES:BASE64 \(": {"digests": f"{head}:*"},
        "no whole number": {"digests": f"{head}:AAAA"},
        "expected xxh3-128:BYTES:BASE64, found xxh3-128:0:": {"digests": f"xxh3-128:0:{digests}"},
        "expected structure to be a string": {"structure": []},
        "cordwood.structure is not JSON": {"structure": ""},
        "metadata: expected strings": {"metadata": {"a": 1}},
        "expected an object of": {"more": 1},
    }
    for message, change in changes.items():
        place.write_bytes(encode_index(IndexFile(index.members, {"": {**item, **change}})))
        with pytest.raises(ValueError, match=message):
            index_at(tmp_path / "c")
