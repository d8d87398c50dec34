"""The index of a directory of packs describes what its files hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.encoding.digests import digest_of
from cordwood.errors import CorruptionError, FormatError, LimitError, UnsupportedLeafError
from cordwood.formats.packs import parse_item
from cordwood.formats.packs.cordwood_json import encode_index
from cordwood.formats.packs.encode_item import encode_item
from cordwood.formats.packs.grid import Grid, cells_meeting
from cordwood.formats.packs.hub_index import hugging_face_index
from cordwood.formats.packs.new_packs import new_packs
from cordwood.formats.packs.pack_headers import read_pack_digests
from cordwood.formats.packs.packed_tree import pack_tree
from cordwood.formats.packs.read_index import read_index
from cordwood.formats.safetensors.read_index import read_index as read_file_index
from cordwood.index import Box, HeaderDigest, Inline, LeafSpec, Piece, Pieces, Span
from cordwood.io.memory_file import MemoryFile
from cordwood.plan.file_plan import LeafBytes
from cordwood.plan.packs import packs_of_process
from cordwood.sharding.boxes import ShardGrid, grid_cells, intersect
from cordwood.testing import assert_trees_equal
from cordwood.testing import strategies as some
from cordwood.tree.flatten import DescribedTree, flatten
from tests.formats.packs.packed import SAVE_ID, SIZES, Directory, directory_of, item_of, tree_in

TREE = {
    "layers": [
        {"w": np.arange(32, dtype=np.float32).reshape(4, 8), "b": np.arange(3, dtype=np.int16)},
        {"w": np.arange(32, 64, dtype=np.float32).reshape(4, 8), "b": None},
    ],
    "step": 7,
    "note": "x" * 5000,
}
SPREAD = ShardGrid((4, 8), ((0, 2), (0, 4)), ((0,), (1,), (0,), (1,)))


def test_the_json_of_a_small_tree() -> None:
    directory = directory_of(TREE, metadata={"é": '"'})
    index = json.loads(directory.data)
    assert list(index) == ["digest", "version", "items"]
    assert directory.data.startswith(b'{"digest":"' + index["digest"].encode() + b'","version":1,')
    (name,) = directory.files
    assert name == f"data-{SAVE_ID}-0-0.safetensors"
    raw = directory.files[name]
    item = index["items"][""]
    (file,) = item.pop("files")
    assert file[0] == name
    assert file[1:3] == [len(raw), len(raw) - 32 * 4 * 2 - 6 - 5000]
    assert file[4] == [0, 0, 1, 0, 2, 0]
    assert item == {
        "save_id": SAVE_ID,
        "metadata": {"é": '"'},
        "nodes": [
            ["dict", ["layers", "step", "note"]],
            ["list", 2],
            ["dict", ["w", "b"]],
            2,
            ["dict", ["w", "b"]],
            1,
            None,
            2,
        ],
        "types": [
            {"kind": "numpy", "dtype": "float32", "shape": [4, 8]},
            {"kind": "numpy", "dtype": "int16", "shape": [3]},
            {"kind": "int"},
            {"kind": "str", "tensor": True, "shape": [5000]},
        ],
        "leaves": [0, 1, 1, 1, 0, 1, 2, 1, 3, 1],
        "values": [7],
        "columns": [[0, 1, 2, 1], [1, 1], [4, 1]],
    }


def test_a_leaf_that_is_spread() -> None:
    directory = directory_of(TREE, shards={0: SPREAD, 2: SPREAD}, process_count=2)
    item = json.loads(directory.data)["items"][""]
    assert item["types"][0] == {
        "kind": "numpy",
        "dtype": "float32",
        "shape": [4, 8],
        "cuts": [2, 2],
    }
    assert item["columns"] == [[0, 1, 2, 1], [1, 1], [4, 1]]
    # Cells of 32 bytes: among the arrays that are no multiple of 64, the widest items first.
    assert [file[4] for file in item["files"]] == [
        [0, 0, 0, 2, 1, 0, 2, 0],
        [0, 1, 0, 3],
    ]
    tree, index = tree_in(directory)
    assert_trees_equal(tree, TREE)
    (first,) = {leaf for leaf in index.leaves if leaf.key_path == ("layers", 0, "w")}
    assert isinstance(first.storage, Pieces)
    header = [source.header_digest.header_bytes for source in index.sources if source.header_digest]
    assert first.storage.pieces == (
        Piece(Box((0, 0), (2, 4)), 0, header[0], 32),
        Piece(Box((0, 4), (2, 8)), 1, header[1], 32),
        Piece(Box((2, 0), (4, 4)), 0, header[0] + 64, 32),
        Piece(Box((2, 4), (4, 8)), 1, header[1] + 64, 32),
    )
    names = {
        name: list(read_file_index(MemoryFile(raw)).structure[0].keys)
        for name, raw in directory.files.items()
    }
    assert names == {
        f"data-{SAVE_ID}-0-0.safetensors": [
            "layers.0.w[0:2,0:4]",
            "layers.1.w[0:2,0:4]",
            "layers.0.w[2:4,0:4]",
            "layers.1.w[2:4,0:4]",
            "layers.0.b",
            "note",
        ],
        f"data-{SAVE_ID}-1-0.safetensors": [
            "layers.0.w[0:2,4:8]",
            "layers.1.w[0:2,4:8]",
            "layers.0.w[2:4,4:8]",
            "layers.1.w[2:4,4:8]",
        ],
    }


def test_cuts_that_are_not_even() -> None:
    uneven = ShardGrid((7, 2), ((0, 1, 6), (0,)), ((0,),) * 3)
    even = ShardGrid((7,), ((0, 2, 4),), ((0,),) * 3)
    tree = [np.arange(14.0).reshape(7, 2), np.arange(7)]
    directory = directory_of(tree, shards={0: uneven, 1: even})
    types = json.loads(directory.data)["items"][""]["types"]
    assert [each["cuts"] for each in types] == [[[0, 1, 6], 1], [3]]
    assert_trees_equal(tree_in(directory)[0], tree)


def test_cuts_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = directory_of([np.arange(7)], shards={0: ShardGrid((7,), ((0, 2, 4),), ((0,),) * 3)})
    monkeypatch.setattr(parse_item, "MAX_CUTS", 2)
    with pytest.raises(LimitError, match=r"types: 3 cuts; expected at most 2 \(MAX_CUTS\)"):
        _ = directory.items


def test_tensors_that_would_have_one_name() -> None:
    tree = {"w": np.arange(4), "w[0:2]": np.arange(2), "W[2:4]": np.arange(3)}
    halves = ShardGrid((4,), ((0, 2),), ((0,), (0,)))
    directory = directory_of(tree, shards={0: halves})
    (raw,) = directory.files.values()
    assert read_file_index(MemoryFile(raw)).structure[0].keys == (
        *("w[0:2]", "w[0:2]~2", "W[2:4]", "w[2:4]~2"),
    )
    assert_trees_equal(tree_in(directory)[0], tree)


def test_an_empty_tree_has_no_files() -> None:
    trees: list[Any] = [{}, [], None, {"a": 1, "b": [None, "x"]}]
    for tree in trees:
        directory = directory_of(tree)
        assert not directory.files
        assert_trees_equal(tree_in(directory)[0], tree)
        assert hugging_face_index(directory.items) is None


@st.composite
def spread_trees(draw: st.DrawFn) -> tuple[Any, dict[int, ShardGrid], int]:
    """Trees of host values, some leaves cut anyhow and held by anyone."""
    kinds = [kind for kind in some.LEAF_KINDS if kind not in ("jax", "prng_key")]
    tree = draw(
        some.trees(leaf=some.leaves(kinds=kinds), containers=("dict", "list", "tuple", "none"))
    )
    processes = draw(st.integers(1, 3))
    shards: dict[int, ShardGrid] = {}
    for i, leaf in enumerate(flatten(tree).leaves):
        if isinstance(leaf, np.ndarray) and draw(st.booleans()):
            cuts = tuple(
                tuple(sorted({0, *draw(st.sets(st.integers(0, max(0, size - 1)), max_size=2))}))
                for size in leaf.shape
            )
            holders = st.sets(st.integers(0, processes - 1), min_size=1).map(
                lambda h: tuple(sorted(h))
            )
            grid = grid_cells(leaf.shape, cuts)
            shards[i] = ShardGrid(leaf.shape, cuts, tuple(draw(holders) for _ in grid))
    return tree, shards, processes


@given(spread_trees(), st.sampled_from((8, 1 << 20)))
@settings(max_examples=200)
def test_any_tree_however_spread(
    case: tuple[Any, dict[int, ShardGrid], int], min_share: int
) -> None:
    tree, shards, processes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.plan.cells.MIN_PART_BYTES", min_share)
        directory = directory_of(tree, shards=shards, process_count=processes)
    assert_trees_equal(tree_in(directory)[0], tree)
    check_files(directory)


def check_files(directory: Directory) -> None:
    """Each file is a safetensors file on its own, whose tensors lie where the index says."""
    index = read_index(directory.items[""])
    offsets: dict[str, list[int]] = {name: [] for name in directory.files}
    for leaf in index.leaves:
        if isinstance(leaf.storage, Pieces):
            for piece in leaf.storage.pieces:
                offsets[index.sources[piece.source].name].append(piece.offset)
    assert {source.name for source in index.sources} == set(directory.files)
    for source in index.sources:
        file = MemoryFile(directory.files[source.name])
        alone = read_file_index(file)
        begins = [
            leaf.storage.pieces[0].offset
            for leaf in alone.leaves
            if not isinstance(leaf.storage, Inline)
        ]
        assert sorted(begins) == sorted(offsets[source.name])
        assert source.size_bytes == file.size_bytes
        assert source.header_digest is not None
        assert read_pack_digests(file, source.header_digest) == alone.sources[0].digests


_BOXES = st.tuples(*[st.tuples(st.integers(0, 7), st.integers(0, 7))] * 2).map(
    lambda ab: Box(tuple(min(p) for p in ab), tuple(max(p) for p in ab))
)


@given(_BOXES, st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)))
def test_cells_that_meet_a_box(box: Box, rows: set[int], columns: set[int]) -> None:
    grid = Grid.of((7, 7), ((0, *sorted(rows)), (0, *sorted(columns))))
    expected = [
        n
        for n, cell in enumerate(grid_cells(grid.shape, grid.cuts))
        if intersect(cell, box) is not None
    ]
    assert list(cells_meeting(grid, box)) == expected


def test_an_index_of_what_is_wanted() -> None:
    directory = directory_of(TREE, shards={0: SPREAD, 2: SPREAD}, process_count=2)
    item = directory.items[""]
    entries = [[Box((0, 0), (1, 4)), Box((1, 3), (2, 4))], (), None, None, [Box((0,), (5000,))]]
    part, full = read_index(item, boxes=entries), read_index(item)
    assert part.sources == full.sources
    results = [leaf.storage.pieces for leaf in part.leaves if isinstance(leaf.storage, Pieces)]
    all_of_it = [leaf.storage.pieces for leaf in full.leaves if isinstance(leaf.storage, Pieces)]
    assert results == [all_of_it[0][:1], (), all_of_it[2], all_of_it[3]]
    assert all_of_it[3][0].where == Span(0, 5000)


def test_the_hugging_face_index() -> None:
    directory = directory_of(TREE)
    written = hugging_face_index(directory.items)
    (name,) = directory.files
    assert written is not None
    assert json.loads(written) == {
        "metadata": {"total_size": 32 * 4 * 2 + 6 + 5000},
        "weight_map": dict.fromkeys(["layers.0.w", "layers.0.b", "layers.1.w", "note"], name),
    }
    assert written == f"{json.dumps(json.loads(written), indent=2)}\n".encode()


def test_the_hugging_face_index_of_two_items() -> None:
    (one, _), (two, _) = item_of({"a": np.ones(2)}), item_of({"b": np.ones(3)})
    both = Directory(encode_index({"p": one, "q": two}), {})
    written = hugging_face_index(both.items)
    assert written is not None
    assert set(json.loads(written)["weight_map"]) == {"a", "b"}
    clash = Directory(encode_index({"p": one, "q": one}), {})
    assert hugging_face_index(clash.items) is None
    cut, _ = item_of([np.ones(4)], shards={0: ShardGrid((4,), ((0, 2),), ((0,), (0,)))})
    parts = Directory(encode_index({"": cut}), {})
    assert hugging_face_index(parts.items) is None


def test_leaves_of_64_axes_and_opaque_ones_are_refused() -> None:
    structure = flatten(0).structure
    deep = LeafSpec((), "numpy", (1,) * 64, "float32")
    shards = ShardGrid((1,) * 64, ((0,),) * 64, ((0,),))
    with pytest.raises(UnsupportedLeafError, match="64 dimensions; packs take fewer than 64"):
        pack_tree(
            DescribedTree(structure, (deep,), (shards,), (), ()), process_count=1, sizes=SIZES
        )
    opaque = LeafSpec((), "opaque", (), "")
    shards = ShardGrid((), (), ((0,),))
    with pytest.raises(UnsupportedLeafError, match="only its own format understands"):
        pack_tree(
            DescribedTree(structure, (opaque,), (shards,), (), ()), process_count=1, sizes=SIZES
        )


def test_what_was_written_must_be_what_was_laid_out() -> None:
    spec = LeafSpec((), "numpy", (3,), "float32")
    shards = ShardGrid((3,), ((0,),), ((0,),))
    described = DescribedTree(flatten(0).structure, (spec,), (shards,), (), ())
    packed = pack_tree(described, process_count=1, sizes=SIZES)
    packs = packs_of_process(packed.assignment, 0)
    (pack,) = new_packs(packed, packs, 0, save_id=SAVE_ID)
    assert pack.plan.segments == (LeafBytes(0, 0, 12),)
    with pytest.raises(ValueError, match="process 0 wrote 0 files, not 1"):
        encode_item(packed, [[]], save_id=SAVE_ID)


def test_headers_that_were_changed() -> None:
    directory = directory_of(TREE)
    (raw,) = directory.files.values()
    (source,) = read_index(directory.items[""]).sources
    assert source.header_digest is not None
    changed = raw.replace(b"layers.0.b", b"layers.0.c")
    with pytest.raises(CorruptionError, match=r"x: bytes 0 to 4096 \(the header\) do not match"):
        read_pack_digests(MemoryFile(changed, "x"), source.header_digest)
    for header, expected in (
        (b"\0" * 8, "expected a header of 8 bytes, found one of 8"),
        (b"\x02" + b"\0" * 7 + b"{}", "expected a header of 10 bytes"),
        (b"\x02" + b"\0" * 7 + b"\xff{", "can't decode"),
        (b"\x13" + b"\0" * 7 + b'{"__metadata__":[]}', "expected cordwood.digests"),
        (b"\x14" + b"\0" * 7 + b'{"__metadata__":{[}}', "no JSON at character 16"),
    ):
        with pytest.raises(FormatError, match=f"^x: .*{expected}"):
            read_pack_digests(MemoryFile(header, "x"), HeaderDigest(len(header), digest_of(header)))
