"""Items of which some files were written by earlier saves."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from cordwood.errors import FormatError
from cordwood.formats.packs.base_files import base_files
from cordwood.formats.packs.cordwood_json import decode_index, encode_index
from cordwood.formats.packs.encode_item import encode_item
from cordwood.formats.packs.hub_index import hugging_face_index
from cordwood.formats.packs.item import cells_of_file
from cordwood.formats.packs.packed_tree import PackedTree, pack_tree
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.read_index import read_index
from cordwood.formats.packs.written_packs import WrittenPack, written_pack
from cordwood.index import HeaderDigest
from cordwood.plan.links import StoredCell, linked_parts
from cordwood.plan.packs import Gap, PackPart
from cordwood.sharding.boxes import ShardGrid, single_process_grid
from cordwood.tree.flatten import DescribedTree, flatten
from cordwood.tree.leaves import describe_leaf
from tests.formats.packs.packed import SIZES, Directory, directory_of, tree_in

OLD, NEW = "aa" * 8, "bb" * 8
HALVES = ShardGrid((8,), ((0, 4),), ((0,), (1,)))


def packed_tree(
    tree: Any, shards: dict[int, ShardGrid] | None = None, count: int = 1
) -> PackedTree:
    flat = flatten(tree)
    specs = [describe_leaf(path, leaf) for path, leaf in zip(flat.paths, flat.leaves, strict=True)]
    maps = [
        (shards or {}).get(i, single_process_grid(np.shape(leaf)))
        for i, leaf in enumerate(flat.leaves)
    ]
    tree = DescribedTree(flat.structure, tuple(specs), tuple(maps), (), ())
    return pack_tree(tree, process_count=count, sizes=SIZES)


def tree_of(value: int) -> dict[str, Any]:
    return {
        "a": np.arange(16.0),
        "b": np.full(24, value, np.float64),
        "c": np.arange(32.0),
        "n": value,
    }


def joined() -> tuple[Directory, list[WrittenPack]]:
    """Return a directory that reuses a file of an old save, and the files of the new save."""
    old = directory_of(tree_of(1), save_id=OLD)
    packed = packed_tree(tree_of(2))
    (base,) = base_files(old.items[""], packed, 0)
    same = [i for i, cell in enumerate(base.cells) if cell.leaf != 1]
    more = directory_of({"b": tree_of(2)["b"]}, save_id=NEW)
    (added,) = more.items[""].packs
    assert base.source.header_digest is not None
    assert added.source.header_digest is not None
    written = [
        written_pack(*base.source[:2], base.source.header_digest, linked_parts(base.cells, same)),
        written_pack(*added.source[:2], added.source.header_digest, (PackPart((1,), 0),)),
    ]
    item = encode_item(packed, [written], save_id=NEW)
    return Directory(encode_index({"": item}), {**old.files, **more.files}), written


def test_the_index_of_a_linked_file_has_a_gap() -> None:
    directory, _ = joined()
    item = decode_index(directory.data)[""]
    assert item["columns"] == [[0, 1], [2, 1], [1, 1]]
    assert [row[4] for row in item["files"]] == [[0, 0, -1, 192, 1, 0], [2, 0]]
    result, index = tree_in(directory)
    assert result.keys() == tree_of(2).keys()
    for name, value in tree_of(2).items():
        assert np.array_equal(result[name], value)
    assert [source.name[5:21] for source in index.sources] == [OLD, NEW]
    parsed = directory.items[""]
    assert [pack.has_gaps for pack in parsed.packs] == [True, False]
    assert list(cells_of_file(parsed, 0)) == [
        StoredCell(0, 0, 4096, 128),
        StoredCell(None, 0, 4096 + 128, 192),
        StoredCell(2, 0, 4096 + 128 + 192, 256),
    ]
    expectation = read_index(parsed, boxes=[(), None, (), ()])
    assert [len(getattr(leaf.storage, "pieces", ())) for leaf in expectation.leaves] == [0, 1, 0, 0]


def test_it_can_be_the_base_of_the_next() -> None:
    directory, _ = joined()
    files = base_files(directory.items[""], packed_tree(tree_of(3)), 0)
    assert [[cell.leaf for cell in file.cells] for file in files] == [[0, None, 2], [1]]
    assert sum(cell.length for file in files for cell in file.cells) == sum(
        len(raw) - 4096 for raw in directory.files.values()
    )


def test_the_index_for_other_readers_is_left_out_beside_a_gap() -> None:
    directory, _ = joined()
    assert hugging_face_index(directory.items) is None
    assert hugging_face_index(directory_of(tree_of(1)).items) is not None


def test_what_a_process_has_written_goes_to_process_0_as_json() -> None:
    packed = packed_tree(tree_of(2))
    directory, written = joined()
    (sent,) = json.loads(json.dumps([written]))
    item = encode_item(packed, [sent], save_id=NEW)
    assert encode_index({"": item}) == directory.data
    seal = HeaderDigest(4096, bytes(range(16)))
    parts = (PackPart((3, 4, 9), 7), Gap(12), PackPart((5,), 0))
    expected = ["one", 5000, 4096, seal.digest.hex(), [[7, 3, 2, 9, 1], 12, [0, 5, 1]]]
    assert json.loads(json.dumps(written_pack("one", 5000, seal, parts))) == expected


def test_a_linked_file_with_a_missing_or_repeated_cell_is_refused() -> None:
    _, (one, two) = joined()
    packed = packed_tree(tree_of(2))
    item = encode_item(packed, [[one]], save_id=NEW)
    with pytest.raises(FormatError, match="expected the 3 cells of all leaves, found 2"):
        parse_items(encode_index({"": item}), name="x")
    twice = [[one, two._replace(parts=one.parts)]]
    item = encode_item(packed, twice, save_id=NEW)
    with pytest.raises(FormatError, match="expected the 3 cells of all leaves, found 4"):
        parse_items(encode_index({"": item}), name="x")


def test_a_process_may_link_what_it_has_written_and_is_to_write() -> None:
    tree = {"s": np.arange(8.0), "t": np.arange(4.0)}
    old = directory_of(tree, shards={0: HALVES}, process_count=2, save_id=OLD)
    item = old.items[""]
    both = packed_tree(tree, {0: HALVES}, 2)
    for process in (0, 1):
        (file,) = base_files(item, both, process)
        assert f"-{process}-" in file.source.name
        assert {cell.cell for cell in file.cells if cell.leaf == 0} == {process}
    alone = packed_tree(tree)
    (file,) = base_files(item, alone, 0)  # of which it holds `t` as it was
    assert [cell.leaf for cell in file.cells if cell.leaf is not None] == [1]
    swapped = packed_tree(tree, {0: HALVES._replace(holders=((1,), (0,)))}, 2)
    for process in (0, 1):
        for file in base_files(item, swapped, process):
            assert 0 not in {cell.leaf for cell in file.cells}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"a": np.arange(16.0)}, ["a"]),
        ({"a": np.arange(16.0), "A": np.ones(2)}, ["a"]),
        ({"A": np.ones(2), "a": np.arange(16.0)}, []),  # whose name differs then
        ({"a": np.arange(16)}, []),
        ({"a": np.arange(16.0).reshape(4, 4)}, []),
        ({"b": np.arange(16.0)}, []),
        ([np.arange(16.0)], []),
        ({"a": 5}, []),
    ],
)
def test_which_leaves_are_the_same(change: Any, same: list[str]) -> None:
    item = directory_of({"a": np.arange(16.0), "z": np.ones(3)}, save_id=OLD).items[""]
    packed = packed_tree(copy.deepcopy(change))
    results = [
        packed.described.specs[cell.leaf].key_path[0]
        for file in base_files(item, packed, 0)
        for cell in file.cells
        if cell.leaf is not None
    ]
    assert results == same
