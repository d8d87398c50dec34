"""open reads what it is asked for; verify names what is damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cordwood
from cordwood.errors import CorruptionError, FormatError
from cordwood.formats.packs import open as open_packs
from cordwood.io.open_files import LocalFile
from tests.children import run_python


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    tree = {
        "big": np.arange(6 << 20, dtype=np.float32).reshape(-1, 64),
        "list": [np.arange(12).reshape(3, 4), 7],
        "scalar": np.array(2.5),
    }
    cordwood.save(path, tree)
    return path


def test_a_mapping_of_key_paths(path: Path) -> None:
    with cordwood.open(path) as checkpoint:
        assert list(checkpoint) == ["big", "list/0", "list/1", "scalar"]
        assert repr(checkpoint["list/0"]) == "<list/0: int64[3,4]>"
        assert checkpoint["list/1"].load() == 7
        assert checkpoint["big"].nbytes == 24 << 20
        with pytest.raises(KeyError, match=r"has no leaf 'list/00'; did you mean 'list/0'\?"):
            checkpoint["list/00"]
        with pytest.raises(TypeError, match="list/1 is of kind 'int', not an array"):
            checkpoint["list/1"][0]


@pytest.mark.parametrize(
    "key",
    [
        0, -1, slice(None), slice(1, 3), slice(None, None, -1), slice(2, 0, -1), slice(None, 2, 2),
        slice(3, 1), (0, 1), (slice(1, 3), 2), (1, slice(None, None, 2)), ..., (..., 1), [0, 2],
        np.array([True, False, True]), np.int64(2), None, (None, 1),
    ],
    ids=lambda key: str(key) if not isinstance(key, np.ndarray) else "mask",
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack"])
def test_slices_are_those_of_numpy(tmp_path: Path, key: Any, suffix: str) -> None:
    array = np.arange(12).reshape(3, 4)
    cordwood.save(tmp_path / f"x{suffix}", {"a": array})
    with cordwood.open(tmp_path / f"x{suffix}") as checkpoint:
        got = checkpoint["a"][key]
    np.testing.assert_array_equal(got, array[key])
    assert got.shape == array[key].shape
    assert type(got) is type(array[key])


def test_long_strings_are_no_arrays(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x.msgpack", {"text": "s" * 3_000_000})
    with cordwood.open(tmp_path / "x.msgpack") as checkpoint:
        leaf = checkpoint["text"]
        assert (leaf.kind, leaf.shape, leaf.dtype) == ("str", (), "")
        assert repr(leaf) == "<text: str>"
        assert leaf.load() == "s" * 3_000_000
        with pytest.raises(TypeError, match="text is of kind 'str', not an array"):
            leaf[0]


def test_an_index_out_of_range_is_an_error(path: Path) -> None:
    with cordwood.open(path) as checkpoint, pytest.raises(IndexError):
        checkpoint["list/0"][3]


def test_a_slice_reads_only_its_blocks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = LocalFile.read_into

    def counting(self: LocalFile, offset: int, views: Any) -> None:
        read.append(sum(len(view) for view in views))
        original(self, offset, views)

    with cordwood.open(path) as checkpoint:
        monkeypatch.setattr(LocalFile, "read_into", counting)
        rows = checkpoint["big"][5000:5010]
    np.testing.assert_array_equal(rows[:, 0], np.arange(5000, 5010) * 64.0)
    assert 0 < sum(read) <= 2 << 20


def test_verify_counts_leaves_and_verified_bytes(path: Path, tmp_path: Path) -> None:
    report = cordwood.verify(path)
    assert report.leaves == 4
    assert report.verified_bytes == path.stat().st_size
    assert report.unverified_bytes == 0
    save_file({"a": np.ones(3)}, tmp_path / "foreign.safetensors")
    report = cordwood.verify(tmp_path / "foreign.safetensors")
    assert report.verified_bytes == 0
    assert report.unverified_bytes == (tmp_path / "foreign.safetensors").stat().st_size


def test_damage_is_reported_with_its_bytes_and_leaf(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[9 << 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"bytes \d+ to \d+ of .*: big"):
        cordwood.verify(path)
    with pytest.raises(CorruptionError, match=r"x\.safetensors"):
        cordwood.load(path)
    with pytest.raises(CorruptionError, match="big"):
        cordwood.load(path, mmap=True, verify=True)
    cordwood.load(path, verify=False)
    with cordwood.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint["big"][:2, 0], [0, 64])  # other blocks are well


def test_dotted_names_are_nested_or_matched_with_like(tmp_path: Path) -> None:
    path = tmp_path / "hf.safetensors"
    arrays: dict[str, np.ndarray] = {
        "model.layer.0.weight": np.ones((2, 2), np.float32),
        "model.bias": np.zeros(1),
    }
    save_file(arrays, path, metadata={"format": "np"})
    flat = cordwood.load(path)
    assert set(flat) == set(arrays)
    nested = cordwood.load(path, nest=True)
    np.testing.assert_array_equal(nested["model"]["layer"]["0"]["weight"], np.ones((2, 2)))
    like = {"model": {"layer": [{"weight": np.ones((2, 2), np.float32)}], "bias": np.ones(1)}}
    got = cordwood.load(path, like=like)
    assert isinstance(got["model"]["layer"], list)
    with cordwood.open(path) as checkpoint:
        assert checkpoint.metadata["format"] == "np"
    save_file({"a": np.ones(1), "a.b": np.ones(1)}, path)
    with pytest.raises(FormatError, match=r"'a\.b' cannot be nested: 'a' is a leaf too"):
        cordwood.load(path, nest=True)


def test_a_foreign_file_keeps_its_names_through_a_round_trip(tmp_path: Path) -> None:
    from safetensors import safe_open

    arrays: dict[str, np.ndarray] = {
        "model.layer.0.weight": np.ones((2, 2), np.float32),
        "model.bias": np.zeros(1),
    }
    save_file(arrays, tmp_path / "in.safetensors", metadata={"format": "np", "x": "y"})
    with cordwood.open(tmp_path / "in.safetensors") as checkpoint:
        tree = checkpoint.load()
        cordwood.save(tmp_path / "out.safetensors", tree, metadata=checkpoint.metadata)
    with safe_open(tmp_path / "out.safetensors", "np") as file:
        assert set(file.keys()) == set(arrays)
        assert file.metadata()["format"] == "np"
        assert file.metadata()["x"] == "y"
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_metadata_is_kept_only_by_passing_it_on(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(1)}, path, metadata={"format": "pt"})
    tree = cordwood.load(path)
    cordwood.save(tmp_path / "y.safetensors", tree)
    with cordwood.open(tmp_path / "y.safetensors") as checkpoint:
        assert checkpoint.metadata == {}


def test_a_closed_checkpoint_says_so(path: Path) -> None:
    checkpoint = cordwood.open(path)
    checkpoint.close()
    for use in (lambda: checkpoint.load(mmap=True), checkpoint.load, checkpoint["big"].load):
        with pytest.raises(ValueError, match=r"x\.safetensors is closed; open it again"):
            use()


def test_overwriting_a_compressed_file_reads_only_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack.zst"
    cordwood.save(path, {"a": np.zeros(1000)})
    damaged = path.read_bytes()[:-3]
    path.write_bytes(damaged)
    cordwood.save(path, {"a": 2})
    assert cordwood.load(path) == {"a": 2}


@pytest.mark.parametrize("name", ["packs", "zarr", "x.safetensors"])
def test_one_that_outlives_the_interpreter_is_closed_in_silence(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"format": "zarr"} if name == "zarr" else {}
    cordwood.save(tmp_path / name, {"x": np.arange(3)}, **options)
    code = """
        import os, sys
        import jax
        import cordwood

        os.dup2(1, 2)
        held = cordwood.open(sys.argv[1])
        # Held by what is let go of after the names of all modules.
        jax.tree_util.register_pytree_node(
            type("Held", (), {}), lambda _: ((), None), lambda *_: held
        )
        """
    assert run_python(code, str(tmp_path / name)) == ""


def test_items_that_are_replaced_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(tmp_path / "c", {"w": np.zeros(3)}, prefix="new")
    lists = [["old"], ["new"], ["new"]]
    monkeypatch.setattr(open_packs, "item_names", lambda path: lists.pop(0))
    assert cordwood.verify(tmp_path / "c").leaves == 1
    assert not lists


def test_the_last_error_of_a_checkpoint_that_changes_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(tmp_path / "c", {"w": np.zeros(3)})
    (pack,) = (tmp_path / "c").glob("*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    open_item = open_packs.open_item
    monkeypatch.setattr(
        open_packs,
        "open_item",
        lambda *arguments: replace(open_item(*arguments), is_current=lambda: False),
    )
    with pytest.raises(CorruptionError, match="damaged"):
        cordwood.verify(tmp_path / "c")
