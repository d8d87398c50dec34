"""Directories that cordwood did not write: eFormer's, of all its versions, and other zarr."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from eformer.serialization.serialization import tree_serialize_leaves

from cordwood.dtypes import to_numpy
from cordwood.errors import CordwoodError, CorruptionError, FormatError, TruncatedError
from cordwood.formats.zarr.read_index import read_index
from cordwood.index import Box, Codec, Encoded, Index, Leaf, Pieces
from cordwood.sharding.boxes import slices
from cordwood.storage.local_directory import LocalDirectory
from cordwood.tree.flatten import build_tree

pytestmark = pytest.mark.usefixtures("cut_small_arrays")


def index_at(path: Path, prefix: str | None = None) -> Index:
    with LocalDirectory(path) as directory:
        return read_index(directory, prefix)


def tree_of(index: Index) -> Any:
    return build_tree(index.structure, [(leaf.dtype, leaf.shape) for leaf in index.leaves])


def elements(path: Path, index: Index, leaf: Leaf) -> np.ndarray:
    """Return the elements of a leaf of raw chunks."""
    assert isinstance(leaf.storage, Pieces)
    dtype = to_numpy(leaf.dtype)
    array = np.empty(leaf.shape, dtype)
    for where, source, offset, length in leaf.storage.pieces:
        assert isinstance(where, Box)
        data = (path / index.sources[source].name).read_bytes()[offset : offset + length]
        part = array[slices(where)]
        part[...] = np.frombuffer(data, dtype).reshape(part.shape)
    return array


def raw(path: Path, array: np.ndarray, chunks: tuple[int, ...], **changes: Any) -> None:
    """Write an array by TensorStore without a compressor, and an index that lists it."""
    metadata = {"compressor": None, "shape": array.shape, "chunks": chunks, **changes}
    spec = {"driver": "zarr", "kvstore": f"file://{path}/w/", "metadata": metadata}
    store = tensorstore.open(spec, dtype=array.dtype.name, create=True).result()
    store.write(array).result()
    index(path, {"path": "w", "shape": list(array.shape), "dtype": array.dtype.name})


def index(path: Path, *entries: dict[str, Any], **members: Any) -> None:
    members = {"format": "tensorstore", "arrays": entries, **members}
    (path / "tensorstore_index.json").write_text(json.dumps(members))


def test_the_index_of_eformer_is_read(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    spread = jax.NamedSharding(mesh, jax.P("x", "y"))
    tree = {
        "a": {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), spread)},
        "l": [jnp.ones(3, jnp.bfloat16), (jnp.arange(4).astype(jnp.int4),)],
        "none": jnp.zeros((0, 3), jnp.float8_e5m2),
        "s": jnp.int8(2),
    }
    expected = {
        "a": {"w": ("float32", (8, 8))},
        "l": {"0": ("bfloat16", (3,)), "1": {"0": ("int4", (4,))}},
        "none": ("float8_e5m2", (0, 3)),
        "s": ("int8", ()),
    }
    tree_serialize_leaves(tmp_path, tree)
    tree_serialize_leaves(tmp_path, tree, prefix="x.y/z")
    for prefix in (None, "x.y/z"):
        result = index_at(tmp_path, prefix)
        assert tree_of(result) == expected
        assert {leaf.kind for leaf in result.leaves} == {"jax"}
        assert result.naming == "dotted"
        assert not any(source.digests for source in result.sources)
        storage = result.leaves[0].storage
        assert isinstance(storage, Encoded)
        assert storage.chunk_shape == (2, 4)
        assert storage.codec.compressor == "zstd"
        assert len(storage.pieces) == 8
        assert storage.pieces[3].where == Box((2, 4), (4, 8))


def test_older_indexes_of_eformer_are_read(tmp_path: Path) -> None:
    tree_serialize_leaves(tmp_path, {"a": {"w": jnp.ones(3)}})
    written = json.loads((tmp_path / "tensorstore_index.json").read_text())
    index(tmp_path, *written["arrays"], version="1.0")
    for prefix in (None, "whatever"):
        assert tree_of(index_at(tmp_path, prefix)) == {"a": {"w": ("float32", (3,))}}
    index(tmp_path, *written["arrays"], version="2.0", prefixes={})
    assert tree_of(index_at(tmp_path)) == {"a": {"w": ("float32", (3,))}}


def test_a_leaf_as_the_tree(tmp_path: Path) -> None:
    tree_serialize_leaves(tmp_path, jnp.ones((2, 2)))
    result = index_at(tmp_path)
    assert [leaf.key_path for leaf in result.leaves] == [()]
    assert [source.name for source in result.sources] == ["0.0"]
    tree_serialize_leaves(tmp_path / "p", jnp.ones((2, 2)), prefix="m")
    assert [leaf.key_path for leaf in index_at(tmp_path / "p", "m").leaves] == [()]


def test_a_leaf_within_a_leaf_stays_flat(tmp_path: Path) -> None:
    tree_serialize_leaves(tmp_path, {"a": jnp.ones((2, 2)), "a.b": jnp.ones(3), "c": jnp.ones(1)})
    result = index_at(tmp_path)
    assert [leaf.key_path for leaf in result.leaves] == [("a",), ("a/b",), ("c",)]


def test_one_of_two_leaves_was_lost(tmp_path: Path) -> None:
    """B21, as eFormer leaves it behind."""
    tree_serialize_leaves(tmp_path, {"a.b": jnp.ones(3), "a": {"b": jnp.zeros(3)}})
    with pytest.raises(FormatError, match=r"arrays\[1\]: 'a/b' is listed twice: two leaves were"):
        index_at(tmp_path)


@pytest.mark.parametrize("chunks", [(3, 4), (8, 4), (5, 4), (1, 4)])
def test_raw_chunks_are_byte_ranges(tmp_path: Path, chunks: tuple[int, ...]) -> None:
    array = np.arange(32, dtype=np.int16).reshape(8, 4)
    raw(tmp_path, array, chunks)
    result = index_at(tmp_path)
    assert np.array_equal(elements(tmp_path, result, result.leaves[0]), array)


def test_what_is_padded_in_the_middle_is_decoded(tmp_path: Path) -> None:
    raw(tmp_path, np.ones((8, 4), np.int16), (3, 3))
    (leaf,) = index_at(tmp_path).leaves
    assert isinstance(leaf.storage, Encoded)
    assert leaf.storage.chunk_shape == (3, 3)
    assert [piece.length for piece in leaf.storage.pieces] == [18] * 6
    assert leaf.storage.pieces[-1].where == Box((6, 3), (8, 4))


@pytest.mark.parametrize(
    ("change", "codec"),
    [
        ({"dtype": ">i2"}, {"compressor": None, "order": "C", "swapped": True}),
        ({"order": "F"}, {"compressor": None, "order": "F", "swapped": False}),
        (
            {"compressor": {"id": "gzip", "level": 1}},
            {"compressor": "gzip", "order": "C", "swapped": False},
        ),
        (
            {"compressor": {"id": "blosc"}},
            {"compressor": "blosc", "order": "C", "swapped": False},
        ),
    ],
    ids=str,
)
def test_what_is_not_raw_is_decoded(
    tmp_path: Path, change: dict[str, Any], codec: dict[str, Any]
) -> None:
    metadata = {"compressor": None, "shape": [4, 2], "chunks": [2, 2], "dtype": "<i2", **change}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/w/", "metadata": metadata}
    tensorstore.open(spec, create=True).result().write(np.ones((4, 2), np.int16)).result()
    index(tmp_path, {"path": "w"})
    (leaf,) = index_at(tmp_path).leaves
    assert isinstance(leaf.storage, Encoded)
    assert leaf.storage.codec == Codec(**codec)


def test_chunks_in_nested_directories_are_read(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    raw(tmp_path, array, (2, 3, 1), dimension_separator="/")
    result = index_at(tmp_path)
    assert result.sources[1].name == "w/0/0/1"
    (leaf,) = result.leaves
    assert isinstance(leaf.storage, Pieces)
    (tmp_path / "w" / "1" / "0" / "0").unlink()
    with pytest.raises(CorruptionError, match="w: 1/0/0 is missing"):
        index_at(tmp_path)


def move_and_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def remove_chunks(path: Path) -> None:
    for chunk in path.glob("?.0"):
        chunk.unlink()


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, type[CordwoodError], str]] = {
    "a missing chunk": (lambda p: (p / "w/1.0").unlink(), CorruptionError, "1.0 is missing"),
    "no chunks": (lambda p: remove_chunks(p / "w"), CorruptionError, "0.0 is missing"),
    "no .zarray": (lambda p: (p / "w/.zarray").unlink(), CorruptionError, "zarray is missing"),
    "no array": (lambda p: (p / "w").rename(p / "v"), CorruptionError, "/w is missing"),
    "a short chunk": (lambda p: os.truncate(p / "w/0.0", 31), TruncatedError, "32 bytes, found 31"),
    "an empty chunk": (lambda p: os.truncate(p / "w/0.0", 0), TruncatedError, "found 0: it is"),
    "a long chunk": (lambda p: os.truncate(p / "w/0.0", 33), FormatError, "32 bytes, found 33"),
    "an extra chunk": (
        lambda p: (p / "w/9.0").write_bytes(b"x"),
        CorruptionError,
        "9.0 is no chunk of an array of shape",
    ),
    "a renamed chunk": (
        lambda p: (p / "w/1.0").rename(p / "w/1.1"),
        CorruptionError,
        "1.0 is missing",
    ),
    "a symlinked chunk": (
        lambda p: move_and_link(p / "w/1.0"),
        CorruptionError,
        "w: 1.0: expected a regular file, found a symbolic link",
    ),
    "a symlinked array": (
        lambda p: move_and_link(p / "w"),
        CorruptionError,
        "/w is, or lies behind, a symbolic link",
    ),
    "a pipe for a chunk": (
        lambda p: make_pipe(p / "w/1.0"),
        CorruptionError,
        "expected a regular file",
    ),
    "another shape": (
        lambda p: index(p, {"path": "w", "shape": [4, 8], "dtype": "int16"}),
        FormatError,
        r"tensorstore_index.json says int16\[4, 8\], .zarray int16\[8, 4\]",
    ),
    "another dtype": (
        lambda p: index(p, {"path": "w", "shape": [8, 4], "dtype": "uint16"}),
        FormatError,
        "says uint16",
    ),
    "damaged metadata": (
        lambda p: (p / "w/.zarray").write_text("{"),
        FormatError,
        "/w: .zarray is not JSON",
    ),
}


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [pytest.param(*damage, id=name) for name, damage in DAMAGES.items()],
)
def test_damage_is_never_read_as_zeros(
    tmp_path: Path, damage: Damage, error: type[CordwoodError], message: str
) -> None:
    """B22, B33."""
    raw(tmp_path, np.ones((8, 4), np.int16), (4, 4))
    index_at(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message):
        index_at(tmp_path)


def test_a_grid_that_no_directory_could_hold(tmp_path: Path) -> None:
    raw(tmp_path, np.ones((8, 4), np.int16), (4, 4))
    metadata = json.loads((tmp_path / "w/.zarray").read_text())
    for separator in "./":
        metadata |= {"shape": [2**40, 4], "chunks": [1, 1], "dimension_separator": separator}
        (tmp_path / "w/.zarray").write_text(json.dumps(metadata))
        index(tmp_path, {"path": "w"})
        with pytest.raises(CorruptionError, match="is missing"):
            index_at(tmp_path)


def test_a_missing_index_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match=r"tensorstore_index.json is missing"):
        index_at(tmp_path)
    with pytest.raises(FileNotFoundError):
        index_at(tmp_path / "none")
