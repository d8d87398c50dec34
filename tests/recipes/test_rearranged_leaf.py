"""A large leaf that is rearranged in a temporary file has the elements that numpy gives."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cordwood.converting.rearranged_leaf import rearrange_in_file
from cordwood.index import Arranged, Codec, Encoded, Leaf, Piece, Pieces
from cordwood.io.source_digests import block_bytes
from cordwood.loading.leaf_reader import LeafReader
from cordwood.plan.arrangements import as_arranged
from cordwood.plan.read_windows import bytes_to_read, choose_windows
from cordwood.plan.split_arrays import split_array
from cordwood.recipes import Recipe, Rule
from cordwood.recipes.map_index import map_index
from cordwood.sharding.boxes import grid_cells, slices, whole_box
from cordwood.storage.locations import LocalPath
from tests.plan.test_arrangements import reader_of, stored_in_boxes

_ARRAY = np.arange(48 * 35, dtype=np.float32).reshape(48, 35)
_AXES = ["c a b d", "d c b a", "b (a c) d", "a (d c) b", "(d b) (a c)"]


def mapped(rule: Rule, array: np.ndarray, cuts: list[range]) -> tuple[Leaf, LeafReader]:
    leaf, data = stored_in_boxes(array, grid_cells(array.shape, cuts))
    reader = reader_of(leaf, data)
    part = map_index(reader.index, Recipe([rule]), where="the file")
    return part.stored.leaves[0], reader.mapped(part)


@pytest.mark.parametrize("cuts", [[range(1), range(1)], [range(0, 48, 20), range(0, 35, 9)]])
@pytest.mark.parametrize("axes", [*_AXES, "pad"])
def test_any_box_of_it_is_numpys(tmp_path: Path, axes: str, cuts: list[range]) -> None:
    rule = Rule("w", "x y", "v", "y x", pad={"x": 50}, add=1.5)
    if axes != "pad":
        rule = Rule("w", "(a b) (c d)", "v", axes, sizes={"a": 6, "c": 5})
    leaf, reader = mapped(rule, _ARRAY, cuts)
    expected = reader.read([leaf])[0]
    copied, other = rearrange_in_file(leaf, reader, LocalPath(str(tmp_path)), block_bytes=1000)
    rng = random.Random(1)
    for _ in range(20):
        start = [rng.randrange(size) for size in expected.shape]
        stop = [rng.randint(a + 1, n) for a, n in zip(start, expected.shape, strict=True)]
        box = whole_box(leaf.shape)._replace(start=tuple(start), stop=tuple(stop))
        (array,) = other.read([copied], {0: [box]})
        np.testing.assert_array_equal(array, expected[slices(box)])
    assert list(tmp_path.iterdir()) == []


def test_each_source_is_read_once(tmp_path: Path) -> None:
    leaf, reader = mapped(Rule("w", "x y", "v", "y x"), _ARRAY, [range(1), range(1)])
    read = read_sizes(reader)
    copied, other = rearrange_in_file(leaf, reader, LocalPath(str(tmp_path)), block_bytes=1000)
    for box in split_array(leaf.shape, item_bytes=4, limit_bytes=500):
        other.read([copied], {0: [box]})
    assert sum(read) == _ARRAY.nbytes


@pytest.mark.parametrize("axes", ["y (a b)", "b y a"])
def test_each_chunk_is_decoded_once(tmp_path: Path, axes: str) -> None:
    data, pieces = b"", []
    for box in grid_cells(_ARRAY.shape, [range(0, 48, 16), range(0, 35, 20)]):
        chunk = np.zeros((16, 20), np.float32)
        part = _ARRAY[slices(box)]
        chunk[: part.shape[0], : part.shape[1]] = part
        compressed = zlib.compress(chunk.tobytes())
        pieces.append(Piece(box, 0, len(data), len(compressed)))
        data += compressed
    leaf = Leaf(("w",), "numpy", _ARRAY.shape, "float32", Pieces(()))
    leaf = leaf._replace(storage=Encoded(tuple(pieces), (16, 20), Codec("zlib")))
    reader = reader_of(leaf, data)
    rule = Rule("w", "(a b) y", "v", axes, sizes={"a": 6})
    part = map_index(reader.index, Recipe([rule]), where="the file")
    (made,) = part.stored.leaves
    mapped_reader = reader.mapped(part)
    assert choose_windows(made, block_bytes=[0], limits=[(700, 1.2), (2000, 9)]) is None
    expected = mapped_reader.read([made])[0]
    read = read_sizes(mapped_reader)
    folder = LocalPath(str(tmp_path))
    copied, other = rearrange_in_file(made, mapped_reader, folder, block_bytes=2000)
    assert sum(read) == len(data)
    np.testing.assert_array_equal(other.read([copied])[0], expected)


def read_sizes(reader: LeafReader) -> list[int]:
    """Return a list that receives the size of each read of the file of a reader."""
    sizes: list[int] = []
    file = reader.files[0]
    original: Callable[..., None] = file.read_into

    def read_into(offset: int, views: list[memoryview]) -> None:
        sizes.append(sum(map(len, views)))
        original(offset, views)

    file.read_into = read_into  # type: ignore[method-assign, assignment]
    return sizes


@pytest.mark.parametrize("axes", ["(a b) c -> b a c", "(a b) c -> b c a", "a b -> b a"])
def test_the_bytes_to_read_are_those_of_reading(axes: str) -> None:
    stored, _, made = axes.partition(" -> ")
    rule = Rule("w", stored, "v", made, sizes={"a": 6} if "(" in axes else {})
    leaf, reader = mapped(rule, _ARRAY, [range(1), range(1)])
    assert isinstance(leaf.storage, Arranged)
    blocks = block_bytes(reader.index.sources, verify=True)
    for box in list(split_array(leaf.shape, item_bytes=4, limit_bytes=700)):
        read = read_sizes(reader)
        reader.read([leaf], {0: [box]})
        assert sum(read) == bytes_to_read(leaf, box, block_bytes=blocks)


@pytest.mark.parametrize(
    ("axes", "limits", "size_bytes"),
    [
        ("i x y -> i x y", [(140, 1.2), (2240, 3)], 140),  # rows of a part
        ("i x y -> i y x", [(140, 1.2), (1120, 3)], 1120),  # whole parts
        ("i x y -> y i x", [(140, 1.2), (2520, 3)], 2520),  # a third of all parts
        ("i x y -> y i x", [(140, 1.2), (1260, 3)], None),  # an eighth
    ],
)
def test_windows_are_as_small_as_reading_allows(
    axes: str, limits: list[tuple[int, float]], size_bytes: int | None
) -> None:
    stored, _, made = axes.partition(" -> ")
    array = np.zeros((6, 8, 35), np.float32)
    cuts = [range(1), range(1), range(1)]
    leaf, _ = mapped(Rule("w", stored, "v", f"1 {made}"), array, cuts)
    leaf = leaf._replace(storage=as_arranged(leaf))
    windows = choose_windows(leaf, block_bytes=[0], limits=limits)
    assert windows == (None if size_bytes is None else (size_bytes, 1))
    distant = choose_windows(leaf, block_bytes=[0], is_distant=True, limits=limits)
    assert distant == (windows if size_bytes in (140, 1120) else None)
