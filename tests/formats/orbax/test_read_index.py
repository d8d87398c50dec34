"""Orbax checkpoints become an Index: what is where, in each of the layouts."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood.errors import FormatError, IncompleteCheckpointError, LimitError, PrefixError
from cordwood.formats.ocdbt.values import INLINE_NAME
from cordwood.formats.orbax.orbax_directory import OrbaxDirectory, inspect_directory
from cordwood.formats.orbax.select_tree import select_tree
from cordwood.formats.orbax.tree_metadata import parse_tree_metadata
from cordwood.index import LEAF, MAX_DEPTH, Box, Codec, Encoded, Inline, Leaf, Node, Pieces
from cordwood.keypath import format_path
from cordwood.storage.local_directory import DirectoryFile, LocalDirectory
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.readable_directory import FOLDER, SizeOrKind
from cordwood.tree.flatten import build_tree
from tests.formats.orbax.orbax_trees import EVERY, index_at, tree_folder
from tests.golden.orbax_checkpoints import GOLDEN
from tests.shardings import sharding

KINDS = {
    "done": ("bool", "", ()),
    "int4": ("jax", "int4", (7,)),
    "key": ("prng_key", "uint32", (2,)),
    "keys": ("prng_key", "uint32", (3, 4)),
    "large": ("int", "", ()),
    "layers/0": ("numpy", "int16", (3, 5)),
    "layers/1/0": ("jax", "int8", ()),
    "layers/1/1/0": ("jax", "float32", (2,)),
    "name": ("str", "", ()),
    "params/a.b%2Fc": ("jax", "float8_e5m2", (2, 1)),
    "params/bias": ("jax", "bfloat16", (5,)),
    "params/kernel": ("jax", "float32", (64, 48)),
    "rate": ("float", "", ()),
    "step": ("int", "", ()),
}


@pytest.mark.parametrize("layout", EVERY)
def test_what_is_in_a_checkpoint(layout: str) -> None:
    index = index_at(GOLDEN / layout / tree_folder(layout))
    result = {format_path(leaf.key_path): leaf for leaf in index.leaves}
    assert {name: (leaf.kind, leaf.dtype, leaf.shape) for name, leaf in result.items()} == KINDS
    assert (index.format, index.naming) == ("orbax", "keys")
    assert result["keys"].prng_impl == "rbg"
    assert result["large"].storage == Inline(2**60)
    assert build_tree(index.structure, [0] * len(index.leaves))["empty"] == {
        "dict": {},
        "list": [],
        "tuple": (),
    }


@pytest.mark.parametrize("layout", EVERY)
def test_where_the_shards_are(layout: str) -> None:
    index = index_at(GOLDEN / layout / tree_folder(layout))
    (kernel,) = [leaf for leaf in index.leaves if leaf.key_path == ("params", "kernel")]
    storage = kernel.storage
    assert isinstance(storage, Pieces if layout == "v0-zarr3-files" else Encoded)
    assert len(storage.pieces) == 8
    assert storage.pieces[3].where == Box((16, 24), (32, 48))
    names = {index.sources[piece.source].name for piece in storage.pieces}
    if "files" in layout:
        assert "params.kernel/" + ("c/1/1" if "zarr3" in layout else "1.1") in names
    else:
        assert all(name.startswith("ocdbt.process_0/d/") for name in names)
        assert index.sources[0].name == INLINE_NAME
    if isinstance(storage, Encoded):
        assert storage.chunk_shape == (16, 24)
        assert storage.codec == Codec("zstd")


def entry(*keys: tuple[str, int], value_type: str = "jax.Array") -> dict[str, Any]:
    return {
        "key_metadata": [{"key": key, "key_type": kind} for key, kind in keys],
        "value_metadata": {"value_type": value_type, "skip_deserialize": False},
    }


def tree_file(*entries: dict[str, Any], **members: Any) -> bytes:
    named = {str(i): entry for i, entry in enumerate(entries)}
    return json.dumps({"tree_metadata": named, **members}).encode()


def test_a_list_whose_first_elements_are_missing_is_a_dict() -> None:
    result = parse_tree_metadata(tree_file(entry(("a", 2), ("1", 1))))
    assert result.structure == (Node("dict", 1, ("a",)), Node("dict", 1, ("1",)), LEAF)
    assert result.leaves[0].key_path == ("a", "1")


def test_the_order_of_positions_is_theirs() -> None:
    result = parse_tree_metadata(tree_file(*[entry((str(i), 1)) for i in (10, *range(10))]))
    assert [leaf.key_path for leaf in result.leaves] == [(i,) for i in range(11)]
    assert [leaf.name for leaf in result.leaves][-1] == "10"


def test_an_empty_tree_and_a_single_leaf() -> None:
    assert parse_tree_metadata(tree_file()).structure == (Node("dict"),)
    assert parse_tree_metadata(tree_file(entry())).structure == (LEAF,)
    assert parse_tree_metadata(tree_file(entry(value_type="None"))).structure == (Node("none"),)


def test_settings_that_are_absent_are_none() -> None:
    result = parse_tree_metadata(tree_file(custom_metadata={"loss": float("nan")}))
    assert (result.use_ocdbt, result.use_zarr3, result.stores_zeros) == (None, None, None)


def test_rich_types_tell_tuples_from_lists() -> None:
    rich = {
        "a": {"category": "custom", "clazz": "tuple", "entries": [{}]},
        "b": {
            "category": "namedtuple",
            "module": "os",
            "clazz": "P",
            "entries": [{"key": "x", "value": [{}]}],
        },
    }
    data = tree_file(
        entry(("a", 2), ("0", 1)),
        entry(("b", 2), ("x", 2), ("0", 1)),
        value_metadata_tree=json.dumps(rich),
    )
    assert parse_tree_metadata(data).structure == (
        Node("dict", 2, ("a", "b")),
        Node("tuple", 1),
        LEAF,
        Node("namedtuple", 1, ("x",), "P"),
        Node("list", 1),
        LEAF,
    )


BAD_TREES = {
    "no JSON": (b"{", "_METADATA is not JSON"),
    "no UTF-8": (b'{"\xff', "_METADATA is not UTF-8 at byte 2"),
    "a list": (b"[]", "expected a JSON object with tree_metadata"),
    "no tree": (b"{}", "expected a JSON object with tree_metadata"),
    "a list of leaves": (b'{"tree_metadata": []}', "expected a JSON object with tree_metadata"),
    "twice": (b'{"tree_metadata": {}, "tree_metadata": {}}', "occurs twice"),
    "no keys": (tree_file({}), "expected an object with key_metadata and value_metadata"),
    "a leaf that is no object": (tree_file(3), "expected an object with key_metadata"),  # type: ignore[arg-type]
    "a key that is no string": (tree_file(entry((3, 2))), "expected a key and its key_type"),  # type: ignore[arg-type]
    "a kind of key": (tree_file(entry(("a", 3))), "expected a key and its key_type"),
    "a value": (tree_file(entry(("a", 2), value_type="x.y")), "value_type 'x.y' is unknown"),
    "a value that is a list": (tree_file(entry(value_type=[])), "value_type .* is unknown"),  # type: ignore[arg-type]
    "a flag": (tree_file(use_ocdbt=1), "use_ocdbt: expected true or false, found 1"),
    "a leaf twice": (tree_file(entry(("a", 2)), entry(("a", 2))), "'1': it occurs twice"),
    "a leaf in a leaf": (
        tree_file(entry(("a", 2)), entry(("a", 2), ("b", 2))),
        "it is inside 'a', which is a leaf",
    ),
    "a leaf around a leaf": (
        tree_file(entry(("a", 2), ("b", 2)), entry(("a", 2))),
        "other leaves are inside it",
    ),
    "a root and more": (tree_file(entry(("a", 2)), entry()), "this leaf is the whole tree, but"),
    "keys and positions": (
        tree_file(entry(("a", 2), ("0", 1)), entry(("a", 2), ("b", 2))),
        "positions and keys in one container",
    ),
    "one name": (
        tree_file(entry(("a.b", 2)), entry(("a", 2), ("b", 2))),
        "two leaves are called 'a.b': they were saved to one place",
    ),
    "no rich types": (tree_file(value_metadata_tree=3), "value_metadata_tree: expected a string"),
    "bad rich types": (tree_file(value_metadata_tree="{"), "value_metadata_tree is not JSON"),
}


@pytest.mark.parametrize(("data", "message"), BAD_TREES.values(), ids=BAD_TREES.keys())
def test_a_tree_that_is_none(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_tree_metadata(data)


def test_a_tree_that_is_too_deep() -> None:
    with pytest.raises(LimitError, match="MAX_DEPTH"):
        parse_tree_metadata(tree_file(entry(*[("a", 2)] * (MAX_DEPTH + 1))))


class Listing:
    """A directory of which only the names are known."""

    name = "ckpt"

    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def sizes(self, path: str) -> dict[str, SizeOrKind]:
        above = "" if path == "." else f"{path}/"
        rest = [p.removeprefix(above) for p in self._paths if p.startswith(above)]
        return {p.split("/")[0]: FOLDER if "/" in p else 1 for p in rest}

    def folders(self, path: str) -> list[str]:
        return sorted(name for name, size in self.sizes(path).items() if size is FOLDER)

    def has(self, path: str) -> bool:
        return any(p == path or p.startswith(f"{path}/") for p in self._paths)

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        raise AssertionError

    def file(self, path: str, size_bytes: int) -> Any:
        raise AssertionError


PLACES: dict[str, tuple[tuple[str, ...], OrbaxDirectory]] = {
    "nothing": (("a", "1/b"), OrbaxDirectory(others=("1",))),
    "a tree": (("_METADATA", "d/x"), OrbaxDirectory(("",), marked=True)),
    "version 1": (
        ("_CHECKPOINT_METADATA", "state/_METADATA", "metrics/metrics"),
        OrbaxDirectory(("state",), ("metrics",), marked=True),
    ),
    "items whose names are numbers": (
        ("_CHECKPOINT_METADATA", "1/_METADATA", "2/_METADATA"),
        OrbaxDirectory(("1", "2"), marked=True),
    ),
    "items of an older Orbax": (("default/_METADATA",), OrbaxDirectory(("default",))),
    "steps": (
        ("9/_CHECKPOINT_METADATA", "10/_CHECKPOINT_METADATA", "logs/x", "11/notes"),
        OrbaxDirectory(others=("11", "logs"), steps=("9", "10")),
    ),
    "steps of an older Orbax": (
        ("step_9/default/_METADATA", "step_10/_METADATA", "best/default/_METADATA"),
        OrbaxDirectory(others=("best",), steps=("step_9", "step_10")),
    ),
    "items that end in a digit": (
        ("model1/_METADATA", "layer-2/_METADATA", "v1.5/_METADATA"),
        OrbaxDirectory(("layer-2", "model1", "v1.5")),
    ),
    "steps, one unfinished": (
        ("1/_CHECKPOINT_METADATA", "2.orbax-checkpoint-tmp/x", "3.orbax-checkpoint-tmp-17/x"),
        OrbaxDirectory(
            steps=("1",), unfinished=("2.orbax-checkpoint-tmp", "3.orbax-checkpoint-tmp-17")
        ),
    ),
    "an item that was not finished": (
        ("_CHECKPOINT_METADATA", "default.orbax-checkpoint-tmp/_METADATA"),
        OrbaxDirectory(unfinished=("default.orbax-checkpoint-tmp",), marked=True),
    ),
}


@pytest.mark.parametrize(("paths", "expected"), PLACES.values(), ids=PLACES.keys())
def test_what_lies_in_a_directory(paths: tuple[str, ...], expected: OrbaxDirectory) -> None:
    assert inspect_directory(Listing(*paths)) == expected
    assert expected.is_orbax == (expected != OrbaxDirectory(others=("1",)))


def test_which_tree_is_meant() -> None:
    one, two = OrbaxDirectory(("state",), ("metrics",)), OrbaxDirectory(("a", "b"), ("m",))
    assert select_tree(OrbaxDirectory(("",)), None, name="c") == ""
    assert select_tree(OrbaxDirectory(("",)), "", name="c") == ""
    assert select_tree(one, None, name="c") == "state"
    assert select_tree(two, "b", name="c") == "b"
    with pytest.raises(
        PrefixError, match=r"c: No prefix specified. Available prefixes: \['a', 'b'"
    ):
        select_tree(two, None, name="c")
    with pytest.raises(PrefixError, match=r"c: Prefix 'x' not found. Available: \['a', 'b'\]"):
        select_tree(two, "x", name="c")
    named = OrbaxDirectory(("ema", "params"), ())
    with pytest.raises(PrefixError, match=r"'parms' not found; did you mean prefix='params'\? Ava"):
        select_tree(named, "parms", name="c")
    with pytest.raises(
        PrefixError, match=r"the item 'm' is something else, not a tree. Trees: \['a', 'b'\]"
    ):
        select_tree(two, "m", name="c")
    with pytest.raises(PrefixError, match="It is one tree, without items; leave the prefix out"):
        select_tree(OrbaxDirectory(("",)), "x", name="c")


def test_what_is_no_checkpoint() -> None:
    steps = OrbaxDirectory(steps=tuple(map(str, range(30))))
    with pytest.raises(
        IncompleteCheckpointError,
        match=r"is not a checkpoint. It holds the steps 10 more, 10, .* of a run: load .*run/29",
    ):
        select_tree(steps, None, name="run/")
    for name in ("c.orbax-checkpoint-tmp", "c.orbax-checkpoint-tmp-12/"):
        with pytest.raises(IncompleteCheckpointError, match="did not finish this save; load an"):
            select_tree(OrbaxDirectory(("",)), None, name=name)
    unfinished = OrbaxDirectory(unfinished=("1.orbax-checkpoint-tmp",))
    with pytest.raises(
        IncompleteCheckpointError, match=r"finished save of Orbax, only 1.orbax-checkpoint-tmp: l"
    ):
        select_tree(unfinished, None, name="c")
    linked = OrbaxDirectory(links=("state",), marked=True)
    with pytest.raises(
        FormatError, match=r"state: symbolic links are not followed; copy the check"
    ):
        select_tree(linked, None, name="c")
    with pytest.raises(FormatError, match=r"c: expected _METADATA, .* found metrics: it holds no"):
        select_tree(OrbaxDirectory(others=("metrics",), marked=True), None, name="c")


def test_directories_that_may_not_be_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as lost+found, of the file system's."""
    for name in ("lost+found", "7", "8/_METADATA"):
        (tmp_path / name).mkdir(parents=True)

    def refused(folder: int, path: str, *, directory: bool = False) -> int:
        if path in ("lost+found", "7"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_beneath(folder, path, directory=directory)

    monkeypatch.setattr("cordwood.storage.local_directory.open_beneath", refused)
    with LocalDirectory(tmp_path) as directory:
        assert inspect_directory(directory) == OrbaxDirectory(
            others=("7", "lost+found"), steps=("8",)
        )
        with pytest.raises(PermissionError, match=f"'{tmp_path}/7/x'"):
            directory.has("7/x")


def leaf_named(leaves: tuple[Leaf, ...], name: str) -> Leaf:
    (result,) = [leaf for leaf in leaves if format_path(leaf.key_path) == name]
    return result


def test_a_file_may_be_moved(tmp_path: Path) -> None:
    """Nothing in a checkpoint says where it was written."""
    for layout in EVERY:
        for path in (GOLDEN / layout).rglob("*"):
            assert not path.is_file() or b"/tmp" not in path.read_bytes()


@pytest.mark.parametrize("use_zarr3", [False, True])
@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_only_what_is_needed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_ocdbt: bool, use_zarr3: bool
) -> None:
    """Raw rows of one shard, or whole compressed chunks, and no others."""
    whole = np.random.default_rng(0).random((4096, 64), np.float32)
    rows = sharding(jax.P("x"), 8)
    done = {"read": 0}
    really = DirectoryFile.read_into

    def read_into(self: DirectoryFile, offset: int, views: Any) -> None:
        done["read"] += sum(map(len, views))
        really(self, offset, views)

    monkeypatch.setattr(DirectoryFile, "read_into", read_into)
    for compressed in (False, True):
        path = tmp_path / f"c{compressed}"
        options = {"use_ocdbt": use_ocdbt, "use_zarr3": use_zarr3, "use_compression": compressed}
        with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave({"w": jax.device_put(whole, rows)}))
        with cordwood.open(path) as checkpoint:
            done["read"] = 0
            part = checkpoint["w"][512:600]
            assert np.array_equal(part, whole[512:600])
            assert done["read"] < (1 if compressed else 0.2) * whole.nbytes / 8 + 4096
