"""The conformance suite of formats: what holds for each one, whoever wrote the checkpoint.

A format is a `Row`; each check takes a row and an empty folder, and uses public names only:

    @pytest.mark.parametrize("check", checks_of(ROW))
    def test_my_format(check: Check, tmp_path: Path) -> None:
        check(ROW, tmp_path)
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.cli.main import main
from cordwood.errors import LossError, MismatchError, NotACheckpointError, UnsupportedLeafError
from cordwood.keypath import format_path
from cordwood.testing import assert_trees_equal, flip_bits
from tests.shardings import mesh_of
from tests.viewer.exported import exported_resources

__all__ = ["TREE", "Check", "Row", "checks_of"]

# Nested dicts of numpy arrays: matrix, vector, scalar and no elements; dtypes of 1, 2 and 4 bytes.
TREE: Mapping[str, Any] = {
    "params": {
        "kernel": np.random.default_rng(0).random((24, 16), np.float32),
        "bias": np.arange(5).astype(ml_dtypes.bfloat16),
    },
    "mask": np.array([[True, False], [False, True]]),
    "empty": np.zeros((0, 3), np.int16),
    "step": np.array(7, np.int32),
}
FLIPS = 100


class Row(NamedTuple):
    """One format: how a checkpoint of it is made, and what the format can do."""

    name: str  # as `cordwood.detect` gives it
    file: str  # the name of the file or directory to make
    write: Callable[[Path, Any], object]  # called with a path of that name, and the tree
    tree: Any = TREE  # what the format can hold; nested dicts of numpy arrays, or one array
    # The arguments of `cordwood.save` and `cordwood.convert` that mean this format; None: it is
    # only read.
    options: Mapping[str, Any] | None = None
    has_names: bool = True  # False: leaves are known by their positions
    has_digests: bool = False  # of every byte
    has_metadata: bool = False  # strings beside the tree
    has_structure: bool = False  # lists, tuples and kinds come back without `like`

    def make(self, folder: Path) -> Path:
        """Write the tree into a folder; return the path of the checkpoint."""
        path = folder / self.file
        self.write(path, self.tree)
        return path


Check: TypeAlias = Callable[[Row, Path], None]


def checks_of(row: Row) -> Sequence[Check]:
    """Return the checks that a format must pass."""
    return READING if row.options is None else READING + WRITING


def named_leaves(row: Row) -> dict[str, Any]:
    """Return the leaves of the tree of a row by the names that `open` lists."""
    leaves = jax.tree_util.tree_leaves_with_path(row.tree)
    if not row.has_names:
        return {str(number): leaf for number, (_, leaf) in enumerate(leaves)}
    return {format_path(tuple([k.key for k in path])): leaf for path, leaf in leaves}


def load(row: Row, path: Path, **options: Any) -> Any:
    """Load a checkpoint; without names of leaves, into a tree like the one that was written."""
    if not row.has_names:
        options.setdefault("like", row.tree)
    return cordwood.load(path, **options)


def assert_same_leaves(loaded: Any, expected: Any) -> None:
    """Assert that two trees are equal but for the order of keys, which few formats keep."""
    one, other = (jax.tree.map(lambda leaf: leaf, tree) for tree in (loaded, expected))
    assert_trees_equal(one, other, placement=False)


def assert_holds(row: Row, path: Path, tree: Any) -> None:
    """Assert that a checkpoint is of the format of the row and holds a tree of numpy arrays."""
    assert cordwood.detect(path).format == row.name
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    assert cordwood.verify(path).leaves == len(jax.tree.leaves(tree))


def changed(tree: Any) -> Any:
    """Return a tree of the same structure with other elements."""
    return jax.tree.map(lambda leaf: np.roll(leaf, 1) if leaf.ndim else leaf + 1, tree)


def files_of(path: Path) -> dict[str, Path]:
    """Return the files of a checkpoint by their names within it."""
    if not path.is_dir():
        return {path.name: path}
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): file for file in files}


def contents_of(path: Path) -> dict[str, bytes]:
    return {name: file.read_bytes() for name, file in files_of(path).items()}


# Reading


def detect_names_the_format(row: Row, folder: Path) -> None:
    path = row.make(folder)
    detected = cordwood.detect(path)
    assert detected.format == row.name
    assert detected.description
    assert detected.steps == ()
    with cordwood.open(path) as checkpoint:
        assert checkpoint.format == row.name


def open_lists_the_leaves(row: Row, folder: Path) -> None:
    leaves = named_leaves(row)
    with cordwood.open(row.make(folder)) as checkpoint:
        assert sorted(checkpoint) == sorted(leaves)
        assert len(checkpoint) == len(leaves)
        for name, leaf in leaves.items():
            stored = checkpoint[name]
            assert (stored.shape, stored.dtype) == (leaf.shape, leaf.dtype.name)
            assert stored.nbytes == leaf.nbytes
        with pytest.raises(KeyError):
            checkpoint["no/such/leaf"]


def open_reads_one_leaf(row: Row, folder: Path) -> None:
    with cordwood.open(row.make(folder)) as checkpoint:
        for name, leaf in named_leaves(row).items():
            np.testing.assert_array_equal(np.asarray(checkpoint[name]), leaf, strict=True)


def open_reads_a_slice(row: Row, folder: Path) -> None:
    with cordwood.open(row.make(folder)) as checkpoint:
        for name, leaf in named_leaves(row).items():
            for key in [(slice(1, None),), (..., slice(0, 1)), (slice(None, None, 2),)]:
                if leaf.ndim:
                    part = checkpoint[name][key]
                    np.testing.assert_array_equal(part, leaf[key], strict=True)


def load_gives_numpy_arrays(row: Row, folder: Path) -> None:
    path = row.make(folder)
    assert_same_leaves(load(row, path, to="numpy"), row.tree)
    assert_same_leaves(load(row, path, to="numpy", mmap=True), row.tree)


def load_gives_jax_arrays(row: Row, folder: Path) -> None:
    loaded = load(row, row.make(folder), to="jax")
    assert_same_leaves(loaded, jax.tree.map(jnp.asarray, row.tree))


def load_fits_like(row: Row, folder: Path) -> None:
    path = row.make(folder)
    assert_trees_equal(cordwood.load(path, like=row.tree), row.tree)

    def spread(leaf: Any) -> Any:
        axes = ("x",) if leaf.ndim and leaf.shape[0] % 8 == 0 else ()
        return jax.device_put(leaf, NamedSharding(mesh_of(8), P(*axes)))

    expected = jax.tree.map(spread, row.tree)
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), expected
    )
    assert_trees_equal(cordwood.load(path, like=like), expected)


def load_selects_a_part(row: Row, folder: Path) -> None:
    path = row.make(folder)
    if not row.has_names:
        with pytest.raises(MismatchError):
            cordwood.load(path, select="0")
        return
    for name, leaf in named_leaves(row).items():
        part = cordwood.load(path, select=name, to="numpy")
        (array,) = jax.tree.leaves(part)
        np.testing.assert_array_equal(array, leaf, strict=True)


def load_names_each_leaf_that_does_not_fit(row: Row, folder: Path) -> None:
    path = row.make(folder)
    like = jax.tree.map(lambda leaf: np.zeros((9, *leaf.shape), np.int64), row.tree)
    with pytest.raises(MismatchError) as raised:
        cordwood.load(path, like=like)
    paths, _ = zip(*jax.tree_util.tree_leaves_with_path(row.tree), strict=True)
    for keys in paths:
        assert format_path(tuple([key.key for key in keys])) in str(raised.value)
    if row.has_names and isinstance(row.tree, dict):
        with pytest.raises(MismatchError, match="in_no_checkpoint"):
            cordwood.load(path, like={**row.tree, "in_no_checkpoint": np.zeros(1)})


def verify_is_clean(row: Row, folder: Path) -> None:
    path = row.make(folder)
    verified = cordwood.verify(path)
    assert verified.format == row.name
    assert verified.leaves == len(named_leaves(row))
    assert verified.verified_bytes + verified.unverified_bytes > 0
    if row.has_digests:
        assert verified.unverified_bytes == 0


def truncation_is_reported(row: Row, folder: Path) -> None:
    """Cut off each file: it is an error, or a file that the load does not need."""
    path = row.make(folder)
    for file in files_of(path).values():
        data = file.read_bytes()
        for size in {len(data) // 2, len(data.rstrip()) - 1} - {-1, len(data)}:
            file.write_bytes(data[:size])
            try:
                loaded = load(row, path, to="numpy")
            except cordwood.CordwoodError:
                pass
            else:
                assert file != path, "a file by itself is needed whole"
                assert_same_leaves(loaded, row.tree)
            if row.has_digests:
                with pytest.raises(cordwood.CordwoodError):
                    cordwood.verify(path)
            file.write_bytes(data)
    assert_same_leaves(load(row, path, to="numpy"), row.tree)


def bit_flips_are_reported(row: Row, folder: Path) -> None:
    """Every flip is found where bytes have digests; elsewhere none is a crash or adds a leaf."""

    def opened_and_loaded(copy: Path) -> tuple[Any, int]:
        with cordwood.open(copy) as checkpoint:
            return load(row, copy, to="numpy"), len(checkpoint)

    def assert_no_more_leaves(damaged: tuple[Any, int], whole: tuple[Any, int]) -> None:
        assert damaged[1] <= whole[1]

    report = flip_bits(
        row.make(folder),
        opened_and_loaded,
        count=FLIPS,
        assert_equal=assert_trees_equal if row.has_digests else assert_no_more_leaves,
    )
    assert report.all_caught, report


def diff_with_itself_is_equal(row: Row, folder: Path) -> None:
    path = row.make(folder)
    if not row.has_names:
        with pytest.raises(MismatchError):
            cordwood.diff(path, path)
        return
    assert cordwood.diff(path, path).equal
    assert cordwood.diff(path, row.tree, strict=False).equal
    assert not cordwood.diff(path, changed(row.tree), strict=False).equal


def convert_keeps_the_values(row: Row, folder: Path) -> None:
    """To packs, and back where the format is written."""
    path = row.make(folder)
    if not row.has_names:
        with pytest.raises(LossError):
            cordwood.convert(path, folder / "converted")
        return
    report = cordwood.convert(path, folder / "converted")
    assert (report.source_format, report.format, report.lost) == (row.name, "packs", ())
    assert cordwood.diff(path, folder / "converted").equal
    if row.options is not None:
        back = folder / "back" / row.file
        back.parent.mkdir()
        assert cordwood.convert(folder / "converted", back, **row.options).lost == ()
        assert_holds(row, back, row.tree)


def the_command_lists_the_leaves(row: Row, folder: Path) -> None:
    path = row.make(folder)
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["cordwood", "ls", str(path), "--json"]),
        contextlib.redirect_stdout(out),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == 0
    listed = json.loads(out.getvalue())
    assert listed["format"] == row.name
    described = {
        name: f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in named_leaves(row).items()
    }
    assert {leaf["key_path"]: leaf["what"] for leaf in listed["leaves"]} == described


def the_viewer_shows_the_leaves(row: Row, folder: Path) -> None:
    path, file = row.make(folder), folder / "exported.html"
    with (
        mock.patch.object(sys, "argv", ["cordwood", "view", str(path), "--export", str(file)]),
        contextlib.redirect_stdout(io.StringIO()),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == 0
    resources = exported_resources(file.read_text())
    checkpoint = resources["checkpoint/a"]
    assert checkpoint["format"] == row.name
    leaves = named_leaves(row)
    assert sorted(checkpoint["leaves"]["path"]) == sorted(leaves)
    for number, name in enumerate(checkpoint["leaves"]["path"]):
        leaf, shown = leaves[name], resources[f"leaf/a/{number}"]
        assert (shown["path"], shown["dtype"]) == (name, leaf.dtype.name)
        assert shown["shape"] == list(leaf.shape)
        sizes = [np.subtract(part["stop"], part["start"]).prod() for part in shown["parts"]]
        assert sum(sizes) == leaf.size
        if leaf.size:
            statistics = resources[f"statistics/a/{number}/sample"]
            assert statistics["complete"]
            assert (statistics["min"], statistics["max"]) == (leaf.min(), leaf.max())


READING: tuple[Check, ...] = (
    detect_names_the_format,
    open_lists_the_leaves,
    open_reads_one_leaf,
    open_reads_a_slice,
    load_gives_numpy_arrays,
    load_gives_jax_arrays,
    load_fits_like,
    load_selects_a_part,
    load_names_each_leaf_that_does_not_fit,
    verify_is_clean,
    truncation_is_reported,
    bit_flips_are_reported,
    diff_with_itself_is_equal,
    convert_keeps_the_values,
    the_command_lists_the_leaves,
    the_viewer_shows_the_leaves,
)

# Writing


def save(row: Row, path: Path, tree: Any, **options: Any) -> None:
    cordwood.save(path, tree, **{**(row.options or {}), **options})


def save_replaces_the_old_tree(row: Row, folder: Path) -> None:
    path = folder / row.file
    save(row, path, row.tree)
    count = len(files_of(path))
    for _ in range(3):
        save(row, path, changed(row.tree))
    assert_holds(row, path, changed(row.tree))
    assert len(files_of(path)) == count, "files of an older save are left"
    save(row, path, {"other": np.ones(3)})
    assert_holds(row, path, {"other": np.ones(3)})


def a_save_that_fails_leaves_the_old_tree(row: Row, folder: Path) -> None:
    path = folder / row.file
    with pytest.raises(UnsupportedLeafError, match="odd"):
        save(row, path, {"odd": object()})
    assert not list(folder.iterdir())
    save(row, path, row.tree)
    before = contents_of(folder)
    with pytest.raises(UnsupportedLeafError, match="odd"):
        save(row, path, {**changed(row.tree), "odd": object()})
    assert contents_of(folder) == before
    assert_holds(row, path, row.tree)


def the_same_tree_gives_the_same_bytes(row: Row, folder: Path) -> None:
    """But for the id of the save, 16 hexadecimal digits in the names of files of a directory."""
    save_id = re.compile(rb"[0-9a-f]{16}")

    def saved(name: str) -> dict[bytes, bytes]:
        (folder / name).mkdir()
        save(row, folder / name / row.file, row.tree)
        files = contents_of(folder / name)
        if files.keys() == {row.file}:
            return {row.file.encode(): files[row.file]}
        return {
            save_id.sub(b"ID", name.encode()): save_id.sub(b"ID", data)
            for name, data in files.items()
        }

    assert saved("a") == saved("b")


def save_async_saves_what_was_given(row: Row, folder: Path) -> None:
    """Save the elements that an array had at the call, whatever is written into it afterwards."""
    path = folder / row.file
    tree = jax.tree.map(np.copy, row.tree)
    pending = cordwood.save_async(path, tree, **(row.options or {}))
    for leaf in jax.tree.leaves(tree):
        leaf[...] = 0
    pending.wait()
    assert pending.done
    assert_holds(row, path, row.tree)
    pending = cordwood.save_async(path, {"odd": np.ones(2)}, **(row.options or {}))
    pending.wait()
    assert_holds(row, path, {"odd": np.ones(2)})


def save_refuses_to_replace_what_is_no_checkpoint(row: Row, folder: Path) -> None:
    path = row.make(folder)
    is_directory = path.is_dir()
    foreign = folder / "elsewhere" / row.file
    foreign.parent.mkdir()
    notes = foreign / "notes.txt" if is_directory else foreign
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("these are notes, and no checkpoint\n")
    before = contents_of(foreign.parent)
    with pytest.raises(NotACheckpointError):
        save(row, foreign, row.tree)
    with pytest.raises(NotACheckpointError):
        cordwood.save_async(foreign, row.tree, **(row.options or {})).wait()
    assert contents_of(foreign.parent) == before


def metadata_is_kept(row: Row, folder: Path) -> None:
    path = folder / row.file
    metadata = {"run": "7", "note": 'é "quoted"'}
    if not row.has_metadata:
        with pytest.raises(ValueError, match="metadata"):
            save(row, path, row.tree, metadata=metadata)
        return
    save(row, path, row.tree, metadata=metadata)
    with cordwood.open(path) as checkpoint:
        assert checkpoint.metadata == metadata
    save(row, path, row.tree)
    with cordwood.open(path) as checkpoint:
        assert checkpoint.metadata == {}


def python_values_and_containers_are_kept(row: Row, folder: Path) -> None:
    path = folder / row.file
    tree = {
        "layers": [{"w": np.ones((2, 3), np.float16)}, (jnp.arange(4), None)],
        "numbers": {"step": 7, "rate": 0.1, "done": False},
        "name": "é",
        "raw": b"\x00\xff",
        "scalar": np.float32(0.5),
    }
    save(row, path, tree)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    if row.has_structure:
        assert_trees_equal(cordwood.load(path), tree, placement=False)


def arrays_spread_over_devices_are_resharded(row: Row, folder: Path) -> None:
    path = folder / row.file
    elements = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)

    def spread(spec: P, *sizes: int) -> Any:
        return {"w": jax.device_put(elements, NamedSharding(mesh_of(*sizes), spec))}

    save(row, path, spread(P("x", "y"), 4, 2))
    for like in (spread(P(None, "x"), 8), spread(P("y"), 2, 2), spread(P(), 1)):
        assert_trees_equal(cordwood.load(path, like=like), like)
    np.testing.assert_array_equal(cordwood.load(path, to="numpy")["w"], elements)


WRITING: tuple[Check, ...] = (
    save_replaces_the_old_tree,
    a_save_that_fails_leaves_the_old_tree,
    the_same_tree_gives_the_same_bytes,
    save_async_saves_what_was_given,
    save_refuses_to_replace_what_is_no_checkpoint,
    metadata_is_kept,
    python_values_and_containers_are_kept,
    arrays_spread_over_devices_are_resharded,
)
