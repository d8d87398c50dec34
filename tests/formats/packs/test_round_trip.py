"""Directories of packs, through save, load, open, verify and gc."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import (
    CorruptionError,
    IncompleteCheckpointError,
    NotACheckpointError,
    PrefixError,
    UnsupportedFormatError,
)
from cordwood.formats.packs import open
from cordwood.formats.packs.parse_item import parse_items
from cordwood.loading.open_reader import open_reader
from cordwood.testing import assert_trees_equal
from tests.children import run_python

HUGGING_FACE = "model.safetensors.index.json"


def names(path: Path) -> list[str]:
    """Return the names of the files, without save ids."""
    return sorted(
        name[:5] + name[21:] if name[:5] == "data-" else name for name in os.listdir(path)
    )


def put(array: Any, *spec: Any) -> Any:
    """On eight devices."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def test_a_directory_is_what_has_no_suffix_of_a_file(tmp_path: Path) -> None:
    tree = {"a": np.arange(5), "b": [1.5, None, "x"]}
    for name in ("100", "run/step-1.5", "model.v2", "old.ckpt", "deep/er/"):
        path = tmp_path / name
        cordwood.save(f"{tmp_path}/{name}", tree)
        assert names(path) == ["cordwood.json", "data--0-0.safetensors", HUGGING_FACE]
        assert_trees_equal(cordwood.load(path), tree)
        assert_trees_equal(cordwood.load(f"{path}/"), tree)
        assert cordwood.load(path, like=tree)["b"] == tree["b"]


def test_saving_again_leaves_one_save(tmp_path: Path) -> None:
    for step in range(3):
        cordwood.save(tmp_path, {"step": np.int32(step)})
        assert names(tmp_path) == ["cordwood.json", "data--0-0.safetensors", HUGGING_FACE]
        assert cordwood.load(tmp_path) == {"step": step}
    cordwood.save(tmp_path, {"step": 3})
    assert names(tmp_path) == ["cordwood.json"]
    assert cordwood.load(tmp_path) == {"step": 3}


def test_sharded_arrays_are_written_shard_by_shard(tmp_path: Path) -> None:
    tree = {
        "both": put(jnp.arange(64.0).reshape(8, 8), "x", "y"),
        "one": put(jnp.arange(8, dtype=jnp.int4), "y"),
        "all": put(jnp.arange(6.0)),
        "key": jax.device_put(
            jax.random.split(jax.random.key(1), 4), put(jnp.arange(4), "x").sharding
        ),
    }
    cordwood.save(tmp_path, tree, prefix="state")
    for leaf in (*tree["both"].addressable_shards, *tree["one"].addressable_shards):
        assert leaf.data._npy_value is None
    assert tree["both"]._npy_value is None
    assert names(tmp_path) == ["cordwood.json", "data--0-0.safetensors"]
    (pack,) = tmp_path.glob("data-*")
    with cordwood.open(pack) as file:
        shapes = {name: leaf.shape for name, leaf in file.items()}
    assert len(shapes) == 8 + 2 + 1 + 4
    assert shapes["both[0:2,0:4]"] == (2, 4)
    assert_trees_equal(cordwood.load(tmp_path, like=tree), tree)
    other = {name: put(leaf, None) if name == "both" else leaf for name, leaf in tree.items()}
    assert_trees_equal(cordwood.load(tmp_path, like=other), other)
    plain = cordwood.load(tmp_path, to="numpy")
    np.testing.assert_array_equal(plain["both"], np.arange(64.0).reshape(8, 8))


def test_a_save_asks_for_no_whole_of_a_sharded_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = put(jnp.arange(64.0).reshape(8, 8), "x", "y")

    def refuse(self: Any, *args: Any, **options: Any) -> Any:
        assert len(self.sharding.device_set) == 1, "the whole array is asked for"
        return original(self, *args, **options)

    kind = type(array)
    original = kind.__array__
    monkeypatch.setattr(kind, "__array__", refuse)
    cordwood.save(tmp_path, {"w": array})
    monkeypatch.undo()
    np.testing.assert_array_equal(cordwood.load(tmp_path, to="numpy")["w"], array)


def test_slices_of_what_is_cut(tmp_path: Path) -> None:
    array = np.arange(8 * 6 * 4, dtype=np.int16).reshape(8, 6, 4)
    cordwood.save(tmp_path, {"a/b": put(array, "x", "y"), "n": 3})
    with cordwood.open(tmp_path) as checkpoint:
        assert checkpoint.format == "packs"
        assert list(checkpoint) == ["a%2Fb", "n"]
        for key in ((slice(1, 5), 2), (3, slice(None), -1), (slice(None, None, 3), slice(2, 4))):
            np.testing.assert_array_equal(checkpoint["a%2Fb"][key], array[key])


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("verify", [False, True])
def test_a_directory_loads_mapped_and_verified(tmp_path: Path, mmap: bool, verify: bool) -> None:
    tree = {
        "w": put(np.arange(4096.0, dtype=np.float32), "x"),
        "v": np.arange(70_000),
        "s": "x" * 9000,
    }
    cordwood.save(tmp_path, tree)
    assert_trees_equal(cordwood.load(tmp_path, like=tree, mmap=mmap, verify=verify), tree)


# Several trees.


def test_trees_of_one_directory_have_prefixes(tmp_path: Path) -> None:
    params, opt = {"w": np.ones(3)}, [np.zeros(2), 1]
    cordwood.save(tmp_path, params, prefix="params")
    assert_trees_equal(cordwood.load(tmp_path), params)
    cordwood.save(tmp_path, opt, prefix="opt/é\n", metadata={"a": "b"})
    with pytest.raises(PrefixError) as none:
        cordwood.load(tmp_path)
    assert str(none.value) == (
        f"{tmp_path}: No prefix specified. Available prefixes: ['opt/é\\n', 'params']; name "
        "the tree: prefix='opt/é\\n' in Python, --prefix 'opt/é\\n' for the command"
    )
    assert isinstance(none.value, ValueError)
    with pytest.raises(ValueError, match=r"Prefix 'zz' not found. Available: \['opt/é\\n', 'pa"):
        cordwood.open(tmp_path, prefix="zz")
    cordwood.save(tmp_path, {"w": 1})
    assert cordwood.load(tmp_path) == {"w": 1}
    cordwood.save(tmp_path / "one", {"w": 1})
    with pytest.raises(PrefixError, match=r"Prefix 'w' not found\. It is one tree .* as select="):
        cordwood.load(tmp_path / "one", prefix="w")
    cordwood.save(tmp_path, {"w": 2}, prefix="")
    assert cordwood.load(tmp_path) == cordwood.load(tmp_path, prefix="") == {"w": 2}
    assert_trees_equal(cordwood.load(tmp_path, prefix="params"), params)
    assert_trees_equal(cordwood.load(tmp_path, like=opt, prefix="opt/é\n"), opt)
    with cordwood.open(tmp_path, prefix="opt/é\n") as checkpoint:
        assert checkpoint.metadata == {"a": "b"}
    assert cordwood.verify(tmp_path).leaves == 1 + 2 + 1


def test_refused_prefixes_and_metadata(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="prefix: expected a str, found int"):
        cordwood.save(tmp_path / "a", {}, prefix=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"prefix: .* holds a lone surrogate"):
        cordwood.save(tmp_path / "a", {}, prefix="\ud800")
    with pytest.raises(ValueError, match=r"keys that begin with 'cordwood.' are cordwood's own"):
        cordwood.save(tmp_path / "a", {}, metadata={"cordwood.x": ""})
    with pytest.raises(ValueError, match=r"prefix= is for directories; a file holds one tree"):
        cordwood.save(tmp_path / "a.safetensors", {}, prefix="p")
    with pytest.raises(
        ValueError, match=r"and a name with the suffix of a file means a file: leave out \."
    ):
        cordwood.save(tmp_path / "a.safetensors", {}, format="packs")
    with pytest.raises(UnsupportedFormatError, match="format 'tar' is unknown; expected"):
        cordwood.save(tmp_path / "a", {}, format="tar")
    assert not list(tmp_path.iterdir())
    cordwood.save(tmp_path / "a.safetensors", {})
    with pytest.raises(ValueError, match="prefix= is for directories"):
        cordwood.load(tmp_path / "a.safetensors", prefix="p")


def test_a_directory_format_makes_any_name_a_directory(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "model.npz", {"a": 1}, format="packs")
    assert cordwood.load(tmp_path / "model.npz") == {"a": 1}


# What is not replaced, and what is not there.


def test_what_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "thesis"
    path.mkdir()
    for name in ("a.tex", "b.tex", "c.tex", "d.tex"):
        (path / name).write_text("three years of work")
    with pytest.raises(
        NotACheckpointError, match=r"no cordwood.json, and contains a.tex, .*and 1 m"
    ):
        cordwood.save(path, {"a": 1})
    assert len(list(path.iterdir())) == 4
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(NotACheckpointError, match="is a file; expected a directory"):
        cordwood.save(file, {"a": 1})
    assert file.read_text() == "x"
    (path / "cordwood.json").write_text("{}")
    with pytest.raises(NotACheckpointError, match="is not a checkpoint that can be saved"):
        cordwood.save(path, {"a": 1})
    assert (path / "cordwood.json").read_text() == "{}"


def test_a_directory_that_a_killed_save_left_can_be_saved_to(tmp_path: Path) -> None:
    (tmp_path / f"data-{'0' * 16}-0-0.safetensors").write_bytes(b"half")
    (tmp_path / f".cordwood.json.cordwood-{'0' * 16}.tmp").write_bytes(b"{")
    with pytest.raises(
        IncompleteCheckpointError,
        match=r"no save to it has finished: it contains .* no index \(cordwood.json or tensor",
    ):
        cordwood.load(tmp_path)
    assert len(cordwood.gc(tmp_path, dry_run=True)) == 2
    cordwood.save(tmp_path, {"a": 1})
    assert names(tmp_path) == ["cordwood.json"]


def test_a_missing_checkpoint_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint.*ckpt/100'"):
        cordwood.load(tmp_path / "ckpt/100")
    with pytest.raises(FileNotFoundError, match=r"did you mean one that ends in .safetensors\?"):
        cordwood.load(tmp_path / "x.safetensor")
    with pytest.raises(IncompleteCheckpointError, match="is an empty directory"):
        cordwood.verify(tmp_path)
    (tmp_path / ".100.cordwood-0123456789abcdef.stage").mkdir()
    with pytest.raises(IncompleteCheckpointError, match=r"100: a save to this path has not fin"):
        cordwood.load(tmp_path / "100")
    cordwood.save(tmp_path / "x.safetensors", {"a": 1})
    with pytest.raises(FileNotFoundError, match=r"did you mean .*/x.safetensors\?"):
        cordwood.load(tmp_path / "x.safetensor")
    with pytest.raises(UnsupportedFormatError, match=r"did you mean .safetensors\?"):
        cordwood.save(tmp_path / "x.safetensor", {})
    with pytest.raises(FileNotFoundError, match=r"and no index \(cordwood.json"):
        cordwood.verify(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no directory that a save could .*none'"):
        cordwood.gc(tmp_path / "none")


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "latest").symlink_to("real")
    cordwood.save(tmp_path / "latest", {"a": np.ones(3)})
    assert (tmp_path / "latest").is_symlink()
    assert names(tmp_path / "real") == ["cordwood.json", "data--0-0.safetensors", HUGGING_FACE]
    (tmp_path / "broken").symlink_to("not/yet")
    cordwood.save(tmp_path / "broken", {"a": 1})
    assert cordwood.load(tmp_path / "not/yet") == {"a": 1}


def test_unknown_files_stay(tmp_path: Path) -> None:
    cordwood.save(tmp_path, {"a": np.ones(3)})
    (tmp_path / "notes.md").write_text("kept")
    (tmp_path / "sub").mkdir()
    cordwood.save(tmp_path, {"a": np.ones(3)})
    assert cordwood.gc(tmp_path) == []
    assert names(tmp_path) == [
        *("cordwood.json", "data--0-0.safetensors"),
        HUGGING_FACE,
        "notes.md",
        "sub",
    ]


def test_gc_removes_unlisted_packs_of_an_undamaged_directory(tmp_path: Path) -> None:
    cordwood.save(tmp_path, {"a": np.ones(3)})
    stray = tmp_path / f"data-{'a' * 16}-3-1.safetensors"
    stray.write_bytes(b"")
    assert cordwood.gc(tmp_path, dry_run=True) == [str(stray)]
    assert cordwood.gc(f"{tmp_path}/") == [str(stray)]
    assert not stray.exists()
    stray.write_bytes(b"")
    index = tmp_path / "cordwood.json"
    index.write_bytes(index.read_bytes().replace(b'"version"', b'"versioN"'))
    with pytest.raises(CorruptionError, match="does not match its own digest"):
        cordwood.gc(tmp_path)
    assert stray.exists()


# Keys.

LONG = "k" * 300
KEYS: list[Any] = [
    {"a.b": 1, "a": {"b": 2}},
    {"a/b": 1, "a": {"b": 2}},
    {"..": {"..": 1}, ".": 2, "": 3},
    {"/abs/EVIL": 1, "../../evil": 2},
    {"": {"": {"": 1}}},
    {2: 1, "2": 2, (1, "1"): 3, None: 4},
    {"é": 1, "e\u0301": 2, "日本": 3, "\U0001f600": 4},
    {LONG: {LONG: 1}, LONG + "x": 2},
    {"Aa": 1, "aA": 2, "AA": 3, "aa": 4},
    {"a": {"0": 1}, "a.0": 2},
    {"con": 1, "NUL": 2, "a:b": 3, "a*": 4, "a\\b": 5, "a\nb": 6, "a\0b": 7},
    {"__metadata__": 1, "cordwood.json": 2, "weight_map": 3},
    {"\ud800": 1},
]


@pytest.mark.parametrize("number", range(len(KEYS)))
def test_keys_of_any_content(tmp_path: Path, number: int) -> None:
    """They are names in headers alone: nothing of them reaches the file system."""

    def arrays(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: arrays(value) for key, value in node.items()}
        return np.arange(node, dtype=np.int32)

    tree = arrays(KEYS[number])
    path = tmp_path / "in" / "ckpt"
    cordwood.save(path, tree)
    assert_trees_equal(cordwood.load(path), tree)
    assert names(path) == ["cordwood.json", "data--0-0.safetensors", HUGGING_FACE]
    assert os.listdir(tmp_path) == ["in"]
    assert os.listdir(tmp_path / "in") == ["ckpt"]
    cordwood.verify(path)


# Other readers.


def test_the_hub_index_leads_to_every_tensor(tmp_path: Path) -> None:
    """Read it as transformers does: the index, then each tensor from the file that it names."""
    from safetensors import safe_open

    tree: dict[str, Any] = {
        "layers": [{"w": np.arange(6.0, dtype=np.float32).reshape(2, 3)} for _ in range(3)],
        "n": 1,
    }
    cordwood.save(tmp_path, tree)
    index = json.loads((tmp_path / HUGGING_FACE).read_text())
    assert index["metadata"] == {"total_size": 72}
    assert list(index["weight_map"]) == ["layers.0.w", "layers.1.w", "layers.2.w"]
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, framework="numpy") as reader:
            assert reader.metadata()["format"] == "pt"
            np.testing.assert_array_equal(reader.get_tensor(name), tree["layers"][0]["w"])
    cordwood.save(tmp_path, tree, metadata={"format": "flax"})
    (pack,) = tmp_path.glob("data-*")
    with safe_open(pack, framework="numpy") as reader:
        assert reader.metadata()["format"] == "flax"


def test_the_other_readers_index_comes_and_goes(tmp_path: Path) -> None:
    whole, cut = {"w": np.ones(8)}, {"v": put(np.ones(8, np.float32), "x")}
    cordwood.save(tmp_path, whole)
    assert (tmp_path / HUGGING_FACE).exists()
    cordwood.save(tmp_path, cut, prefix="cut")
    assert not (tmp_path / HUGGING_FACE).exists()
    cordwood.save(tmp_path, {"v": np.ones(8)}, prefix="cut")
    index = json.loads((tmp_path / HUGGING_FACE).read_text())
    assert set(index["weight_map"]) == {"w", "v"}
    for name, file in index["weight_map"].items():
        with cordwood.open(tmp_path / file) as pack:
            assert list(pack) == [name]


# Readers beside savers.


def test_an_open_checkpoint_stays_as_it_was(tmp_path: Path) -> None:
    cordwood.save(tmp_path, {"a": np.arange(5)})
    with cordwood.open(tmp_path) as checkpoint:
        cordwood.save(tmp_path, {"a": np.zeros(3)})
        assert not checkpoint.is_current()
        assert checkpoint["a"][1:3].tolist() == [1, 2]
        assert checkpoint.load()["a"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("pinned_files", [64, 0])
def test_a_load_that_a_save_overtakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned_files: int
) -> None:
    """Whatever the moment, it gives a whole tree: the older or the newer."""
    monkeypatch.setattr("cordwood.storage.local_storage.MAX_OPEN_FILES", pinned_files)
    saved = [0]
    saves_to_come = [0]

    def save() -> None:
        saved[0] += 1
        cordwood.save(tmp_path, {"a": np.full(5, saved[0])})

    def overtaken(original: Any) -> Any:
        def wrapped(*args: Any, **options: Any) -> Any:
            if saves_to_come[0]:
                saves_to_come[0] -= 1
                save()
            return original(*args, **options)

        return wrapped

    save()
    # Between reading the index and opening the files, twice.
    saves_to_come[0] = 2
    monkeypatch.setattr("cordwood.formats.packs.open.parse_items", overtaken(parse_items))
    assert cordwood.load(tmp_path)["a"].tolist() == [3] * 5
    # Between that and reading them.
    saves_to_come[0] = 1
    opened = _then(open_reader, overtaken(lambda: None))
    monkeypatch.setattr("cordwood.formats.packs.open.parse_items", parse_items)
    monkeypatch.setattr("cordwood.loading.load_tree.open_reader", opened)
    assert cordwood.load(tmp_path)["a"].tolist() == [3 if pinned_files else 4] * 5
    assert saved == [4]


def _then(first: Any, second: Any) -> Any:
    def both(*args: Any, **options: Any) -> Any:
        result = first(*args, **options)
        second()
        return result

    return both


def test_an_index_of_very_many_cells_is_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open, "_LISTED_CELLS", 3)
    tree = {
        "w": put(np.arange(64.0, dtype=np.float32).reshape(8, 8), "x", "y"),
        "n": 5,
        "v": np.ones(3),
    }
    cordwood.save(tmp_path, tree)
    with cordwood.open(tmp_path) as checkpoint:
        assert not checkpoint.index.leaves[0].storage.pieces  # type: ignore[union-attr]
        assert checkpoint["w"][5, 2:4].tolist() == [42.0, 43.0]
        assert checkpoint["v"].load().tolist() == [1.0] * 3
    assert_trees_equal(cordwood.load(tmp_path, like=tree), tree)
    assert_trees_equal(cordwood.load(tmp_path, to="numpy")["v"], tree["v"])
    cordwood.verify(tmp_path)


def test_a_directory_is_saved_in_the_background(tmp_path: Path) -> None:
    tree = {"w": put(jnp.arange(64.0).reshape(8, 8), "x", "y"), "n": np.arange(4), "s": "x" * 9000}
    expected = jax.tree.map(np.array, {"w": tree["w"], "n": tree["n"]})
    pending = cordwood.save_async(tmp_path / "ckpt", tree, prefix="p", metadata={"a": "b"})
    tree["n"][:] = 0
    tree["w"].delete()
    pending.wait()
    loaded = cordwood.load(tmp_path / "ckpt", prefix="p", to="numpy")
    np.testing.assert_array_equal(loaded["w"], expected["w"])
    np.testing.assert_array_equal(loaded["n"], expected["n"])
    assert loaded["s"] == tree["s"]
    assert pending.progress.done_bytes == pending.progress.total_bytes > 0


def test_numpy_trees_need_no_jax(tmp_path: Path) -> None:
    out = run_python(
        """
        import sys
        import numpy as np
        import cordwood
        cordwood.save(sys.argv[1], {"a": np.arange(4), "b": 1}, prefix="p")
        assert cordwood.load(sys.argv[1])["a"].tolist() == [0, 1, 2, 3]
        cordwood.verify(sys.argv[1])
        cordwood.gc(sys.argv[1])
        with cordwood.open(sys.argv[1]) as checkpoint:
            checkpoint["a"][1:]
        print(sorted({"jax", "tensorstore", "zarr"} & set(sys.modules)))
        """,
        str(tmp_path),
    )
    assert out.strip() == "[]"
