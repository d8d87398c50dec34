"""tree_serialize_leaves and tree_deserialize_leaves, beside eFormer's own and on their own."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eformer.serialization import serialization as eformer
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

import cordwood
from cordwood import tree_deserialize_leaves, tree_serialize_leaves
from cordwood.dtypes import to_numpy
from cordwood.errors import (
    CorruptionError,
    MismatchError,
    NotACheckpointError,
    UnsupportedFormatError,
    UnsupportedLeafError,
)
from tests.formats.zarr.zarr_trees import read_tree, stored_index
from tests.threads import in_threads

pytestmark = pytest.mark.usefixtures("cut_small_arrays")

P = jax.P
MESH = ((4, 2), ("x", "y"))


def mesh_of(shape: tuple[int, ...] = (8,), names: tuple[str, ...] = ("x",)) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names)


def spread(array: Any, *spec: Any) -> jax.Array:
    return jax.device_put(array, jax.NamedSharding(mesh_of(*MESH), P(*spec)))


class Moments(NamedTuple):
    mu: Any
    nu: Any


def arrays() -> Any:
    """Return a tree that eFormer can save: jax arrays only."""
    low = [np.arange(6).astype(to_numpy(name)) for name in ("int4", "float8_e4m3fn", "float8_e5m2")]
    return {
        "layers": [
            {"w": spread(np.arange(64.0, dtype=np.float32).reshape(8, 8), "x", "y")},
            {"w": spread(np.ones((8, 4), np.float16), None, "y")},
        ],
        "low": [jnp.asarray(array) for array in low],
        "opt": Moments(jnp.ones(3, jnp.bfloat16), (jnp.int32(7),)),
        "empty": jnp.zeros((0, 3), jnp.complex64),
        "flag": jnp.asarray(True),
        "a.b": {"c/d": jnp.arange(3, dtype=jnp.uint8)},
    }


def same(left: Any, right: Any) -> None:
    """Equal trees of dicts and jax arrays, to the last bit."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
        return
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    if isinstance(left, jax.Array):
        assert left.sharding == right.sharding


@pytest.mark.parametrize("prefix", [None, "model", "x.y"])
@pytest.mark.parametrize("managed", [False, True])
def test_eformer_reads_what_cordwood_writes(
    tmp_path: Path, prefix: str | None, managed: bool
) -> None:
    tree = arrays()
    for module, name in ((eformer, "theirs"), (cordwood, "ours")):
        manager = GlobalAsyncCheckpointManager() if managed else None
        module.tree_serialize_leaves(tmp_path / name, tree, manager, prefix=prefix)
        if manager is not None:
            manager.wait_until_finished()
    mesh = mesh_of()
    theirs = eformer.tree_deserialize_leaves(tmp_path / "theirs", mesh, prefix=prefix)
    same(eformer.tree_deserialize_leaves(tmp_path / "ours", mesh, prefix=prefix), theirs)
    one, other = stored_index(tmp_path / "theirs"), stored_index(tmp_path / "ours")
    assert other.get("arrays") == one.get("arrays")
    assert other["prefixes"] == one["prefixes"]


@pytest.mark.parametrize("prefix", [None, "model", "x.y"])
@pytest.mark.parametrize("managed", [False, True])
@pytest.mark.parametrize("writer", ["eformer", "cordwood"])
def test_cordwood_reads_both_as_eformer_does(
    tmp_path: Path, prefix: str | None, managed: bool, writer: str
) -> None:
    module = {"eformer": eformer, "cordwood": cordwood}[writer]
    module.tree_serialize_leaves(tmp_path / "c", arrays(), prefix=prefix)
    manager = GlobalAsyncCheckpointManager() if managed else None
    rules = ((r"layers/\d/w", P("x", "y")), (".*", P()))
    flat = {"layers.0.w": P("y", "x"), "layers.1.w": jax.sharding.SingleDeviceSharding(_device(3))}
    rest = {
        name: P()
        for name in ("a.b.c.d", "empty", "flag", "low.0", "low.1", "low.2", "opt.mu", "opt.nu.0")
    }
    mesh = mesh_of(*MESH)
    as_shardings = {
        name: jax.NamedSharding(mesh, value) if isinstance(value, P) else value
        for name, value in (flat | rest).items()
    }
    cases: list[tuple[Any, dict[str, Any]]] = [
        (mesh_of(), {}),
        (mesh, {"partition_rules": rules}),
        (mesh, {"shardings": as_shardings}),
        (None, {"shardings": as_shardings}),
        (mesh_of(), {"chunk_size": 3}),
    ]
    for on, options in cases:
        theirs = eformer.tree_deserialize_leaves(tmp_path / "c", on, prefix=prefix, **options)
        result = tree_deserialize_leaves(tmp_path / "c", on, manager, prefix=prefix, **options)
        same(result, theirs)


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 100])
def test_the_callback_sees_every_array_in_eformers_order(
    tmp_path: Path, chunk_size: int | None
) -> None:
    many = {"l": [jnp.full(2, i) for i in range(12)], "b": jnp.ones(1), "a": jnp.ones(2)}
    eformer.tree_serialize_leaves(tmp_path / "theirs", many, prefix="m")
    tree_serialize_leaves(tmp_path / "ours", many, prefix="m")
    seen: dict[str, list[str]] = {"peer": [], "theirs": [], "ours": []}

    def callback(who: str) -> Callable[[Any, str], Any]:
        def note(array: Any, name: str) -> Any:
            seen[who].append(f"{name} {array.shape}")
            return None if name == "b" else array + 1

        return note

    mesh = mesh_of()
    peer = eformer.tree_deserialize_leaves(
        tmp_path / "theirs", mesh, prefix="m", callback=callback("peer"), chunk_size=chunk_size
    )
    for name in ("theirs", "ours"):
        result = tree_deserialize_leaves(
            tmp_path / name, mesh, prefix="m", callback=callback(name), chunk_size=chunk_size
        )
        assert result.pop("b") is None
        same(result, {key: value for key, value in peer.items() if key != "b"})
    assert seen["peer"] == seen["theirs"] == seen["ours"]


def _device(number: int) -> Any:
    return jax.devices()[number]


def test_old_indexes_and_scalars(tmp_path: Path) -> None:
    """Version 1 has no prefixes; version 2.0 had Python's numbers as arrays without axes."""
    eformer.tree_serialize_leaves(tmp_path, {"step": jnp.array(7), "lr": jnp.array(0.5)})
    for version in ("1.0", "2.0"):
        index: dict[str, Any] = {"format": "tensorstore", "version": version}
        index["arrays"] = stored_index(tmp_path)["arrays"]
        if version == "2.0":
            index["prefixes"] = {}
        (tmp_path / "tensorstore_index.json").write_text(json.dumps(index))
        result = tree_deserialize_leaves(tmp_path, None)
        assert result == {"lr": 0.5, "step": 7}
        assert result["step"].shape == ()
    index.pop("prefixes")
    (tmp_path / "tensorstore_index.json").write_text(json.dumps(index))
    assert tree_deserialize_leaves(tmp_path, None, prefix="whatever") == {"lr": 0.5, "step": 7}


@pytest.mark.parametrize("compressor", [None, {"id": "gzip", "level": 3}, {"id": "zstd"}])
def test_chunks_of_any_codec_that_eformer_or_its_ancestors_wrote(
    tmp_path: Path, compressor: Any
) -> None:
    import tensorstore

    array = np.arange(48, dtype=np.float32).reshape(8, 6)
    metadata = {"compressor": compressor, "shape": [8, 6], "chunks": [4, 3]}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/w/", "metadata": metadata}
    store = tensorstore.open(spec, dtype="float32", create=True).result()
    store.write(array).result()
    index = {
        "format": "tensorstore",
        "arrays": [{"path": "w", "shape": [8, 6], "dtype": "float32"}],
    }
    (tmp_path / "tensorstore_index.json").write_text(json.dumps(index))
    result = tree_deserialize_leaves(tmp_path, mesh_of(*MESH), shardings={"w": P("x", "y")})
    assert np.array_equal(result["w"], array)


def beyond() -> Any:
    """Leaves that eFormer cannot save, or loses."""
    return {
        "jax": [spread(np.arange(8.0, dtype=np.float32), "x"), jnp.ones(2), jnp.asarray(1.5)],
        "numpy": (np.arange(3, dtype=np.int64), np.float64(0.5), np.array(3)),
        "python": {"int": 7, "float": float("nan"), "str": "é", "bytes": b"\0", "none": None},
        "empty": [{}, [], ()],
        "key": jax.random.split(jax.random.key(1), 3),
        "uint4": jnp.arange(3).astype(jnp.uint4),
        "state": Moments(jnp.ones(1), {"a.b": jnp.ones(2), "a": {"b": jnp.ones(3)}}),
        "int": {2: jnp.ones(1), 10: jnp.zeros(1)},
    }


@pytest.mark.parametrize("managed", [False, True])
def test_like_gives_the_tree_back(tmp_path: Path, managed: bool) -> None:
    """B28, B29, B32."""
    from cordwood.testing import assert_trees_equal

    tree = beyond()
    manager = GlobalAsyncCheckpointManager() if managed else None
    tree_serialize_leaves(tmp_path / "c", tree, manager)
    if manager is not None:
        manager.wait_until_finished()
    result = tree_deserialize_leaves(tmp_path / "c", None, manager, like=tree)
    assert_trees_equal(result, tree)
    abstract = dict(tree, jax=[jax.ShapeDtypeStruct((8,), jnp.float32), *tree["jax"][1:]])
    placed = tree_deserialize_leaves(
        tmp_path / "c", mesh_of(), manager, like=abstract, shardings={"jax": {"0": P("x")}}
    )
    assert placed["jax"][0].sharding == jax.NamedSharding(mesh_of(), P("x"))
    assert placed["state"].nu["a.b"].shape == (2,)


@pytest.mark.parametrize("managed", [False, True])
def test_without_like_all_leaves_come_as_they_were(tmp_path: Path, managed: bool) -> None:
    manager = GlobalAsyncCheckpointManager() if managed else None
    tree_serialize_leaves(tmp_path / "c", beyond(), manager)
    if manager is not None:
        manager.wait_until_finished()
    result = tree_deserialize_leaves(tmp_path / "c", mesh_of(), manager)
    assert list(result["jax"]) == ["0", "1", "2"]
    assert isinstance(result["jax"]["0"], jax.Array)
    assert result["jax"]["2"].weak_type
    assert isinstance(result["numpy"]["0"], np.ndarray)
    assert result["numpy"]["0"].dtype == np.int64
    assert type(result["numpy"]["1"]) is np.float64
    assert result["python"]["int"] == 7
    assert result["python"]["bytes"] == b"\0"
    assert "none" not in result["python"]
    assert "empty" not in result
    assert result["uint4"].dtype == jnp.uint4
    assert jnp.issubdtype(result["key"].dtype, jax.dtypes.prng_key)
    nu = result["state"]["nu"]  # the second of two that eFormer would put at a/b keeps its own key
    assert {key: np.shape(value) for key, value in nu.items() if key != "a"} == {"a.b": (2,)}
    assert nu["a"]["b"].shape == (3,)


def test_two_leaves_of_one_name_are_no_dict_of_strings(tmp_path: Path) -> None:
    tree = {"b": {"x": np.ones(1)}, "a": np.ones(2)}
    tree_serialize_leaves(tmp_path / "c", {**tree, "a.0": np.ones(3)})
    result = tree_deserialize_leaves(tmp_path / "c", None)
    assert {name: result[name].shape for name in ("a", "a.0")} == {"a": (2,), "a.0": (3,)}


def test_a_tree_that_is_one_leaf_is_saved_as_eformer_does(tmp_path: Path) -> None:
    for name, module in (("theirs", eformer), ("ours", cordwood)):
        for prefix in (None, "m"):
            module.tree_serialize_leaves(tmp_path / name, jnp.ones(2), prefix=prefix)
            result = tree_deserialize_leaves(tmp_path / name, None, prefix=prefix)
            expected = {"m": jnp.ones(2)} if prefix else {"": {"": jnp.ones(2)}}
            assert jax.tree.map(np.asarray, result).keys() == expected.keys()
            assert np.array_equal(jax.tree.leaves(result)[0], np.ones(2))
            like = tree_deserialize_leaves(tmp_path / name, None, prefix=prefix, like=jnp.ones(2))
            assert np.array_equal(like, np.ones(2))


@pytest.mark.parametrize("nested", [False, True])
def test_shardings_of_any_form(tmp_path: Path, nested: bool) -> None:
    """B32: nested trees, partition specs, layouts in memory."""
    from jax.experimental.layout import Format, Layout

    tree = {"a": {"w": jnp.ones((8, 4))}, "l": [jnp.ones(8), jnp.zeros(8)]}
    tree_serialize_leaves(tmp_path / "c", tree)
    mesh = mesh_of(*MESH)
    column = Format(Layout((1, 0)), jax.NamedSharding(mesh, P("x")))
    expected: Any = {"a.w": column, "l.0": P("y"), "l.1": jax.NamedSharding(mesh, P("x"))}
    if nested:
        expected = {"a": {"w": column}, "l": [P("y"), jax.NamedSharding(mesh, P("x"))]}
    result = tree_deserialize_leaves(tmp_path / "c", mesh, shardings=expected)
    assert result["a"]["w"].format.layout.major_to_minor == (1, 0)
    assert result["a"]["w"].sharding == column.sharding
    assert result["l"]["0"].sharding == jax.NamedSharding(mesh, P("y"))
    assert result["l"]["1"].sharding == jax.NamedSharding(mesh, P("x"))


def test_refusals_of_a_load(tmp_path: Path) -> None:
    tree_serialize_leaves(tmp_path / "c", {"a": {"b": jnp.ones((6, 2))}}, prefix="m")
    path, mesh = tmp_path / "c", mesh_of(*MESH)
    load = tree_deserialize_leaves
    with pytest.raises(ValueError, match=r"^Prefix 'zz' not found. Available: \['m'\]"):
        load(path, mesh, prefix="zz")
    with pytest.raises(ValueError, match=r"^No prefix specified. Available prefixes: \['m'\]"):
        load(path, mesh)
    message = "No sharding specified for 'a.b' on multi-axis mesh. Provide 'shardings' or"
    with pytest.raises(ValueError, match=message):
        load(path, mesh, prefix="m")
    with pytest.raises(ValueError, match="Partition rule not found for param: a/b"):
        load(path, mesh, prefix="m", partition_rules=(("^m/a", P()),))
    with pytest.raises(ValueError, match="partition_rules give partition specs, which need a mesh"):
        load(path, None, prefix="m", partition_rules=((".*", P()),))
    with pytest.raises(ValueError, match=r"a.b: P\('x',\) is a partition spec, which needs a mesh"):
        load(path, None, prefix="m", shardings={"a.b": P("x")})
    with pytest.raises(TypeError, match=r"shardings: a\.b: expected a jax Sharding, PartitionSpec"):
        load(path, mesh, prefix="m", shardings={"a": {"b": lambda x: x}})
    with pytest.raises(MismatchError, match=r"a.b: shape \[6, 2\] cannot be partitioned by"):
        load(path, mesh, prefix="m", shardings={"a.b": P("x")})
    with pytest.raises(ValueError, match=r"there are two entries for 'a\.b'"):
        load(path, mesh, prefix="m", shardings={"a.b": P(), "a": {"b": P("x")}})
    with pytest.raises(MismatchError, match=r"a/b: expected float32\[6,3\], found float32\[6,2\]"):
        load(path, None, prefix="m", like={"a": {"b": jnp.ones((6, 3))}})


def test_rules_are_trimmed_to_the_axes_there_are(tmp_path: Path) -> None:
    tree_serialize_leaves(
        tmp_path / "c", {"w": jnp.ones((8, 2)), "b": jnp.ones(8), "s": jnp.ones(())}
    )
    mesh = mesh_of(*MESH)
    result = tree_deserialize_leaves(tmp_path / "c", mesh, partition_rules=((".*", P("x", "y")),))
    assert result["w"].sharding.spec == P("x", "y")
    assert result["b"].sharding.spec == P("x")
    assert result["s"].sharding.spec == P()


def test_a_directory_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    """B30."""
    with pytest.raises(FileNotFoundError, match="there is no checkpoint") as caught:
        tree_deserialize_leaves(tmp_path / "none", None)
    assert caught.value.filename == str(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no tensorstore_index.json: no save to it"):
        tree_deserialize_leaves(tmp_path / "empty", None)
    (tmp_path / "empty" / "cordwood.json").touch()
    with pytest.raises(FileNotFoundError, match=r"a cordwood.json: load it with cordwood.load"):
        tree_deserialize_leaves(tmp_path / "empty", None)


def test_wide_arrays_are_not_narrowed(tmp_path: Path) -> None:
    """B27."""
    import tensorstore

    value = np.int64(2**40 + 1)
    metadata: dict[str, Any] = {"compressor": None, "shape": [], "chunks": []}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/n/", "metadata": metadata}
    tensorstore.open(spec, dtype="int64", create=True).result().write(value).result()
    index = {"format": "tensorstore", "arrays": [{"path": "n", "shape": [], "dtype": "int64"}]}
    (tmp_path / "tensorstore_index.json").write_text(json.dumps(index))
    assert int(eformer.tree_deserialize_leaves(tmp_path, mesh_of())["n"]) == 1
    for manager in (None, GlobalAsyncCheckpointManager()):
        with pytest.raises(MismatchError, match="has 64-bit leaves"):
            tree_deserialize_leaves(tmp_path, mesh_of(), manager)
    assert tree_deserialize_leaves(tmp_path, None, like={"n": np.array(0)})["n"] == value


def test_paths_and_file_urls_are_taken_and_store_urls_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B35."""
    from eformer.paths import ePath

    monkeypatch.chdir(tmp_path)
    forms = ["relative", tmp_path / "path", f"file://{tmp_path}/a%20url", ePath(tmp_path) / "epath"]
    for form in forms:
        tree_serialize_leaves(form, {"a": jnp.ones(1)})
        assert tree_deserialize_leaves(form, None)["a"] == 1
    assert sorted(os.listdir(tmp_path)) == ["a url", "epath", "path", "relative"]
    for url in ("gs://bucket/x", "s3://bucket/x", "memory://x"):
        with pytest.raises(UnsupportedFormatError, match="replaces whole directories, which"):
            tree_serialize_leaves(url, {})
    with pytest.raises(UnsupportedFormatError, match="the scheme 'ftp' is unknown"):
        tree_deserialize_leaves("ftp://host/x", None)


class Recording:
    """A manager that is not jax's: it writes when it is asked to."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.paths: list[str] = []
        self.callback: Callable[[], None] = lambda: None
        self.waited = 0
        self._jaxs = GlobalAsyncCheckpointManager()

    def serialize_with_paths(
        self, arrays: Any, paths: Any, *, on_commit_callback: Callable[[], None]
    ) -> None:
        self.arrays, self.paths, self.callback = list(arrays), list(paths), on_commit_callback

    def write(self) -> None:
        self._jaxs.serialize_with_paths(self.arrays, self.paths)
        self._jaxs.wait_until_finished()

    def deserialize_with_paths(self, shardings: Any, paths: Any) -> Any:
        self.paths = list(paths)
        return self._jaxs.deserialize_with_paths(shardings, paths)

    def wait_until_finished(self) -> None:
        self.waited += 1


def test_with_a_manager_nothing_is_there_before_the_data(tmp_path: Path) -> None:
    """B25."""
    path = tmp_path / "c"
    tree_serialize_leaves(path, {"w": jnp.zeros(3), "old": jnp.ones(1)})
    manager, messages = Recording(), []
    new = {"w": jnp.ones((2, 2)), "n": np.arange(3)}
    tree_serialize_leaves(path, new, manager, commit_callback=lambda: messages.append(True))
    assert len(manager.arrays) == 1
    assert not manager.paths[0].startswith(f"{path}/")
    assert read_tree(path).keys() == {"w", "old"}
    manager.write()
    assert read_tree(path).keys() == {"w", "old"}
    assert not messages
    manager.callback()
    assert messages
    assert jax.tree.map(np.shape, read_tree(path)) == {"w": (2, 2), "n": (3,)}
    assert not (path / "old").exists()
    assert os.listdir(tmp_path) == ["c"]
    result = tree_deserialize_leaves(path, mesh_of(), manager)
    assert manager.paths == [f"{path}/w"]
    assert manager.waited == 1
    assert np.array_equal(result["w"], np.ones((2, 2)))


def test_a_manager_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "c"
    tree_serialize_leaves(path, {"w": jnp.zeros(3)})

    class Failing(Recording):
        def serialize_with_paths(self, *args: Any, **kwargs: Any) -> None:
            raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        tree_serialize_leaves(path, {"w": jnp.ones(3)}, Failing())
    manager = Recording()
    tree_serialize_leaves(path, {"w": jnp.ones(3)}, manager)
    with pytest.raises(CorruptionError, match=r"w/.zarray is missing"):
        manager.callback()  # and has written nothing
    manager = Recording()
    tree_serialize_leaves(path, {"w": jnp.ones(3)}, manager)
    del manager  # it never called back
    tree_serialize_leaves(path, {"v": jnp.ones(3)}, prefix="p")
    assert not np.any(read_tree(path)["w"])
    assert os.listdir(tmp_path) == ["c"]


def test_what_a_manager_wrote_is_under_digests(tmp_path: Path) -> None:
    manager = GlobalAsyncCheckpointManager()
    tree_serialize_leaves(
        tmp_path / "c", {"w": spread(np.arange(64.0).reshape(8, 8), "x")}, manager
    )
    manager.wait_until_finished()
    chunk = tmp_path / "c/w/1.0"
    data = bytearray(chunk.read_bytes())
    data[-3] ^= 4
    chunk.write_bytes(bytes(data))
    for other in (None, manager):
        with pytest.raises(CorruptionError, match=r"w/1.0"):
            tree_deserialize_leaves(tmp_path / "c", mesh_of(), other)


def test_without_an_index_the_arrays_are_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "c"
    tree_serialize_leaves(path, {"w": jnp.ones(3)}, write_index=False)
    assert not (path / "tensorstore_index.json").exists()
    index = {"format": "tensorstore", "arrays": [{"path": "w", "shape": [3], "dtype": "float32"}]}
    (path / "tensorstore_index.json").write_text(json.dumps(index))
    assert np.array_equal(tree_deserialize_leaves(path, None)["w"], np.ones(3))
    # An index that is there stays, but for digests of what is not there any more.
    tree_serialize_leaves(path, {"w": jnp.zeros(3)}, prefix="m")
    tree_serialize_leaves(path, {"w": jnp.ones(3)}, prefix="m", write_index=False)
    assert np.array_equal(tree_deserialize_leaves(path, None, prefix="m")["w"], np.ones(3))
    assert "cordwood" not in stored_index(path)


def test_prefixes_side_by_side(tmp_path: Path) -> None:
    """B26: of 8 threads at once none loses anything; each saves three times."""
    path = tmp_path / "c"

    def work(number: int) -> None:
        for step in range(3):
            tree = {"w": jnp.full((8, 8), number + step), "step": step}
            tree_serialize_leaves(path, tree, prefix=f"p{number}")

    tree_serialize_leaves(path, {"root": jnp.ones(1)})
    in_threads(work)
    for number in range(8):
        result = read_tree(path, f"p{number}")
        assert result["step"] == 2
        assert (result["w"] == number + 2).all()
    assert np.array_equal(read_tree(path)["root"], np.ones(1))
    assert sorted(stored_index(path)["prefixes"]) == [f"p{n}" for n in range(8)]
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a.b"), ("a.b", "a"), ("A", "a"), ("m", ""), ("", "m")]
)
def test_prefixes_that_would_lie_in_each_other(tmp_path: Path, first: str, second: str) -> None:
    path = tmp_path / "c"
    tree = {"b": {"w": np.ones(2)}, "w": np.zeros(3), "m": {"w": np.ones(1)}}
    for prefix, value in ((first, 1), (second, 2)):
        tree_serialize_leaves(path, {**tree, "n": np.full(4, value)}, prefix=prefix)
    for prefix, value in ((first, 1), (second, 2)):
        assert read_tree(path, prefix)["n"].tolist() == [value] * 4
        assert read_tree(path, prefix)["b"]["w"].tolist() == [1, 1]
    tree_serialize_leaves(path, tree, prefix=first)  # again, around the other
    assert read_tree(path, first).keys() == tree.keys()
    assert read_tree(path, second)["n"].tolist() == [2] * 4


def test_files_that_are_no_part_of_it_stay(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.mkdir()
    (path / "config.json").write_text("{}")
    tree_serialize_leaves(path, {"w": jnp.ones(3), "v": jnp.ones(1)})
    (path / "logs").mkdir()
    (path / "logs" / "log").write_text("x")
    (path / "w" / "note").write_text("mine")
    tree_serialize_leaves(path, {"w": jnp.zeros((2, 2))})
    assert (path / "config.json").read_text() == "{}"
    assert (path / "logs" / "log").read_text() == "x"
    assert sorted(os.listdir(path / "w")) == [".zarray", "0.0", "note"]
    assert not (path / "v").exists()


def test_what_must_not_be_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cordwood.formats.zarr import existing_index

    path = tmp_path / "c"
    path.mkdir()
    (path / "w").write_text("a file where an array has to go")
    with pytest.raises(NotACheckpointError, match=r"holds 'w', which is no part of the"):
        tree_serialize_leaves(path, {"w": jnp.ones(1)})
    assert (path / "w").read_text().startswith("a file")
    (path / "w").unlink()
    (path / "tensorstore_index.json").write_text("{")
    with pytest.raises(NotACheckpointError, match="the checkpoint there cannot be read, so that"):
        tree_serialize_leaves(path, {"w": jnp.ones(1)})
    (path / "tensorstore_index.json").unlink()
    (path / "cordwood.json").touch()
    with pytest.raises(NotACheckpointError, match="it is a checkpoint of another layout"):
        tree_serialize_leaves(path, {"w": jnp.ones(1)})
    (path / "cordwood.json").unlink()
    monkeypatch.setattr(existing_index, "MAX_FOREIGN_FILES", 3)
    for i in range(4):
        (path / str(i)).touch()
    with pytest.raises(NotACheckpointError, match="is no checkpoint and holds more than 3 files"):
        tree_serialize_leaves(path, {"w": jnp.ones(1)})
    assert sorted(os.listdir(path)) == ["0", "1", "2", "3"]
    assert os.listdir(tmp_path) == ["c"]


def test_stale_arrays_of_eformers_do_not_come_along(tmp_path: Path) -> None:
    """A save replaces arrays at its paths that no index lists any more."""
    eformer.tree_serialize_leaves(tmp_path / "c", {"w": jnp.ones(3), "v": jnp.ones(3)})
    eformer.tree_serialize_leaves(tmp_path / "c", {"v": jnp.ones(3)})
    tree_serialize_leaves(tmp_path / "c", {"w": jnp.zeros((2, 2)), "v": jnp.zeros(1)})
    assert sorted(os.listdir(tmp_path / "c/w")) == [".zarray", "0.0"]
    assert read_tree(tmp_path / "c")["v"].shape == (1,)


def test_eformer_adds_an_item_to_a_checkpoint_of_cordwoods(tmp_path: Path) -> None:
    path = tmp_path / "c"
    tree_serialize_leaves(path, {"w": jnp.ones(3)}, prefix="model")
    eformer.tree_serialize_leaves(path, {"w": jnp.zeros(3)}, prefix="opt")
    assert read_tree(path, "model")["w"].tolist() == [1, 1, 1]
    assert tree_deserialize_leaves(path, None, prefix="opt")["w"].tolist() == [0, 0, 0]
    tree_serialize_leaves(path, {"w": jnp.full(3, 2.0)}, prefix="model")
    assert tree_deserialize_leaves(path, None, prefix="opt")["w"].tolist() == [0, 0, 0]
    assert read_tree(path, "model")["w"].tolist() == [2, 2, 2]


def test_what_eformer_cannot_or_drops_is_refused(tmp_path: Path) -> None:
    for leaf in (jnp.tanh, object(), jax.ShapeDtypeStruct((1,), jnp.float32)):
        with pytest.raises(UnsupportedLeafError, match=r"^f: "):
            tree_serialize_leaves(tmp_path / "c", {"a": jnp.ones(1), "f": leaf})
    assert os.listdir(tmp_path) == []


def test_a_load_while_another_save_replaces_the_directory(tmp_path: Path) -> None:
    """A load returns one checkpoint or the other, never parts of both."""
    path = tmp_path / "c"
    done, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    seen: set[int] = set()

    def tree_of(step: int) -> Any:
        return {f"w{i}": np.full((50, 50), step, np.int32) for i in range(8)}

    def save() -> None:
        try:
            step = 0
            while not stop.is_set() and (step < 25 or (len(seen) < 2 and step < 2000)):
                tree_serialize_leaves(path, tree_of(step))
                step += 1
        except BaseException as e:  # noqa: BLE001
            failures.append(e)
        finally:
            done.set()

    tree_serialize_leaves(path, tree_of(0))
    thread = threading.Thread(target=save)
    thread.start()
    try:
        while not done.is_set():
            result = tree_deserialize_leaves(path, None)
            values = {int(array[0, 0]) for array in result.values()}
            assert all((array == array[0, 0]).all() for array in result.values())
            assert len(values) == 1
            seen |= values
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert len(seen) > 1
