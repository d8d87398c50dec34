"""Any requested boxes from any stored boxes, compared with numpy slicing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood import dtypes
from cordwood.errors import CorruptionError, FormatError
from cordwood.index import Box, Inline, Leaf, Piece, Pieces, Span
from cordwood.io import read_units
from cordwood.io.execute_load import execute_load
from cordwood.io.memory_file import MemoryFile
from cordwood.plan import move_templates
from cordwood.plan.load_boxes import plan_boxes
from cordwood.plan.load_plan import Move
from cordwood.sharding.boxes import grid_cells, shape_of, slices, whole_box
from tests.block_digests import digests_of

MIB = 1 << 20


def grids(shape: tuple[int, ...]) -> st.SearchStrategy[list[Box]]:
    """Ways to cut an array."""
    axes = [st.sets(st.integers(0, n - 1), max_size=2) for n in shape]
    return st.tuples(*axes).map(
        lambda cuts: grid_cells(shape, tuple([tuple(sorted({0, *some})) for some in cuts]))
    )


def spans(size: int) -> st.SearchStrategy[list[Span]]:
    cuts = st.sets(st.integers(0, size), max_size=3).map(lambda some: sorted({0, size, *some}))
    return cuts.map(lambda ends: [Span(a, b) for a, b in pairwise(ends)])


class Counted(MemoryFile):
    """A file that counts the bytes that are read, and the calls."""

    def __init__(self, data: Any) -> None:
        super().__init__(data, "counted")
        self.read_bytes = self.calls = 0

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self.read_bytes += sum(map(len, views))
        self.calls += 1
        super().read_into(offset, views)


@settings(max_examples=300)
@given(
    st.data(),
    st.lists(st.integers(1, 6), max_size=4).map(tuple),
    st.sampled_from(["int8", "bfloat16", "float32", "complex64", "complex128", "complex256"]),
    st.sampled_from([0, 16, 100]),
    st.sampled_from([1, 10, 1000]),
    st.sampled_from([1, 10, 1000]),
    st.sampled_from([50, 1 << 20]),
)
def test_every_box_is_numpys(
    data: st.DataObject,
    shape: tuple[int, ...],
    dtype: str,
    block: int,
    price: int,
    run: int,
    unit: int,
) -> None:
    item = dtypes.itemsize(dtype)
    count = math.prod(shape)
    wheres = data.draw(st.one_of(grids(shape), spans(count)))
    boxes = data.draw(st.one_of(grids(shape), st.tuples(grids(shape), grids(shape)).map(sum_of)))
    files, raws, leaves, requested = [], [], [], {}
    for source in range(2):  # two leaves that are cut alike, and lie differently
        raw = np.random.default_rng(source).integers(0, 256, (*shape, item), np.uint8)
        file = bytearray()
        pieces = []
        for where in wheres:
            file += bytes(data.draw(st.integers(0, 40)))
            rows = raw.reshape(-1, item)
            part = rows[slice(*where)] if isinstance(where, Span) else raw[slices(where)]
            pieces.append(Piece(where, source, len(file), part.size))
            file += part.tobytes()
        leaf = Leaf((str(source),), "numpy", shape, dtype, Pieces(tuple(pieces)))
        files.append(file)
        raws.append(raw)
        leaves.append(leaf)
        requested[source] = boxes
    digests = [digests_of(f, start=0, block_bytes=block) if block else None for f in files]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(move_templates, "RANGE_PRICE_BYTES", price)
        patch.setattr(move_templates, "RUN_BYTES", run)
        plan = plan_boxes(leaves, requested, block_bytes=[block] * 2)
        patch.setattr(read_units, "_UNIT_BYTES", unit)
        buffers = execute_load(plan, list(map(MemoryFile, files)), digests=digests, verify=True)
    assert plan.moves == tuple(sorted(plan.moves, key=itemgetter(0, 1)))
    box_requests = [(raw, box) for raw in raws for box in boxes]
    for (raw, box), (buffer, position, length) in zip(box_requests, plan.placements, strict=True):
        assert position % 64 == 0
        stored = buffers[buffer][position : position + length]
        assert stored.tobytes() == raw[slices(box)].tobytes()


def sum_of(some: tuple[list[Box], list[Box]]) -> list[Box]:
    return some[0] + some[1]


def stored_whole(shape: tuple[int, ...], dtype: str = "float32", offset: int = 0) -> Leaf:
    length = math.prod(shape) * dtypes.itemsize(dtype)
    piece = Piece(Span(0, math.prod(shape)), 0, offset, length)
    return Leaf(("w",), "numpy", shape, dtype, Pieces((piece,)))


def read_bytes(leaf: Leaf, boxes: Sequence[Box], *, block: int = MIB) -> tuple[int, int]:
    """Return the number of bytes that are read for boxes of a leaf, and the number of calls."""
    size = math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype)
    data = np.zeros(size, np.uint8)
    file = Counted(data.data)
    digests = digests_of(data.data, start=0, block_bytes=block) if block else None
    plan = plan_boxes([leaf], {0: tuple(boxes)}, block_bytes=[block])
    execute_load(plan, [file], digests=[digests], verify=True)
    return file.read_bytes, file.calls


def test_rows_are_read_alone() -> None:
    leaf = stored_whole((1024, 16 << 10))  # 64 MiB
    byte_count, _ = read_bytes(leaf, [Box((256, 0), (512, 16 << 10))])
    assert byte_count == 16 * MIB
    byte_count, _ = read_bytes(leaf, [Box((257, 0), (511, 16 << 10))])  # rounded out to blocks
    assert byte_count == 16 * MIB
    byte_count, _ = read_bytes(leaf, [Box((257, 0), (511, 16 << 10))], block=0)
    assert byte_count == 254 * (64 << 10)


def test_columns_are_read_alone_where_that_is_less() -> None:
    wide = stored_whole((4, 4 << 20))  # rows of 16 MiB
    byte_count, calls = read_bytes(wide, [Box((0, 0), (4, 1 << 20))])
    assert (byte_count, calls) == (16 * MIB, 4)
    narrow = stored_whole((4 << 10, 4 << 10))  # rows of 16 KiB
    byte_count, calls = read_bytes(narrow, [Box((0, 0), (4 << 10, 1 << 10))])
    assert (byte_count, calls) == (64 * MIB, 16)
    without = stored_whole((64, 256 << 10))  # rows of 1 MiB: a quarter each, but for the digests
    assert read_bytes(without, [Box((0, 0), (64, 64 << 10))], block=0) == (16 * MIB, 64)
    assert read_bytes(without, [Box((0, 0), (64, 64 << 10))]) == (64 * MIB, 16)


def test_all_columns_are_read_once() -> None:
    leaf = stored_whole((1024, 16 << 10))
    boxes = grid_cells(leaf.shape, ((0,), tuple(range(0, 16 << 10, 2 << 10))))
    assert read_bytes(leaf, boxes) == (64 * MIB, 16)
    assert read_bytes(leaf, [*boxes, whole_box(leaf.shape)]) == (64 * MIB, 16)


def test_long_runs_go_straight_into_place() -> None:
    leaf = stored_whole((4, 64, 4096))  # four layers of 1 MiB
    boxes = grid_cells(leaf.shape, ((0,), (0, 32), (0,)))
    plan = plan_boxes([leaf], {0: tuple(boxes)}, block_bytes=[MIB])
    assert all(isinstance(move.target, int) for move in plan.moves)
    assert [move.length for move in plan.moves] == [MIB // 2] * 8
    buffer, position, _ = plan.placements[1]
    assert plan.moves[1] == Move(0, MIB // 2, MIB // 2, buffer, position)


def test_small_boxes_share_slabs_and_large_ones_do_not() -> None:
    leaf = stored_whole((64, 100))
    boxes = grid_cells(leaf.shape, (tuple(range(64)), (0,)))
    plan = plan_boxes([leaf], {0: tuple(boxes)}, block_bytes=[0])
    assert plan.buffers == (63 * 448 + 400,)
    large = stored_whole((8, MIB))
    boxes = grid_cells(large.shape, (tuple(range(8)), (0,)))
    plan = plan_boxes([large], {0: tuple(boxes)}, block_bytes=[0])
    assert plan.buffers == (4 * MIB,) * 8


def test_a_whole_leaf_is_the_special_case() -> None:
    leaves = [stored_whole((3, 5)), stored_whole((7,), offset=60)]
    boxes = {i: (whole_box(leaf.shape),) for i, leaf in enumerate(leaves)}
    plan = plan_boxes(leaves, boxes, block_bytes=[0])
    assert plan == plan_boxes(leaves, {}, block_bytes=[0])


def test_a_bit_flip_in_a_block_that_only_part_is_wanted_of() -> None:
    leaf = stored_whole((1024, 1024))
    data = np.zeros(4 * MIB, np.uint8)
    digests = digests_of(data.data, start=0)
    data[2 * MIB + 5000] = 1  # in a column that nobody wants
    plan = plan_boxes([leaf], {0: (Box((0, 0), (1024, 10)),)}, block_bytes=[MIB])
    with pytest.raises(CorruptionError, match="f: bytes 2097152 to 3145728 do not match"):
        execute_load(plan, [MemoryFile(data.data, "f")], digests=[digests], verify=True)


def box_leaf(*pieces: tuple[Box, int], shape: tuple[int, ...] = (4, 4)) -> Leaf:
    return Leaf(
        ("a", "w"),
        "numpy",
        shape,
        "float32",
        Pieces(tuple([Piece(box, 0, 0, length) for box, length in pieces])),
    )


UPPER, LOWER = Box((0, 0), (2, 4)), Box((2, 0), (4, 4))


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (box_leaf((UPPER, 32)), r"that make up \[\(0, 4\), \(0, 4\)\], found 8 of 16"),
        (box_leaf((UPPER, 32), (UPPER, 32)), "found 16 of 16 elements in them, or some twice"),
        (box_leaf((UPPER, 32), (LOWER, 31)), r"a/w: expected 32 bytes for 8 .* float32, found 31"),
        (box_leaf((UPPER, 32), (Box((2, 0), (5, 4)), 48)), r"is no part of shape \[4, 4\]"),
        (box_leaf((UPPER, 32), (Box((2, -1), (4, 4)), 40)), r"is no part of shape \[4, 4\]"),
        (box_leaf((UPPER, 32), (Box((4, 0), (2, 4)), -32)), r"is no part of shape \[4, 4\]"),
        (box_leaf((Box((0,), (4,)), 16)), r"is no part of shape \[4, 4\]"),
        (box_leaf(), "a/w: expected pieces that make up"),
    ],
)  # fmt: skip
def test_pieces_that_do_not_make_up_the_leaf(leaf: Leaf, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        plan_boxes([leaf], {0: (whole_box(leaf.shape),)}, block_bytes=[0])


@pytest.mark.parametrize("place", [Span(0, 16), whole_box((4, 4))])
@pytest.mark.parametrize("length", [60, 68])
def test_a_piece_that_is_wanted_as_it_is_but_of_another_length(
    place: Box | Span, length: int
) -> None:
    leaf = box_leaf((whole_box((4, 4)), length))
    leaf = leaf._replace(storage=Pieces((Piece(place, 0, 0, length),)))
    with pytest.raises(FormatError, match=f"expected 64 bytes for 16 .* found {length}"):
        plan_boxes([leaf], {0: (whole_box((4, 4)),)}, block_bytes=[0])


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(0, 6), (6, 11)], "a: expected 12 elements in its pieces, found 11"),
        ([(0, 6), (7, 12)], "a: expected element 6 next, found 7"),
        ([(0, 7), (6, 12)], "a: expected element 7 next, found 6"),
    ],
)
def test_spans_that_do_not_make_up_the_leaf(pieces: list[tuple[int, int]], message: str) -> None:
    stored = tuple([Piece(Span(a, b), 0, a, b - a) for a, b in pieces])
    leaf = Leaf(("a",), "numpy", (3, 4), "int8", Pieces(stored))
    with pytest.raises(FormatError, match=message):
        plan_boxes([leaf], {0: (Box((0, 0), (3, 2)),)}, block_bytes=[0])


def test_what_cannot_be_read_in_parts() -> None:
    inline = Leaf((), "int", (), "int64", Inline(3))
    with pytest.raises(TypeError, match="the root is stored inline"):
        plan_boxes([inline], {0: (whole_box(()),)}, block_bytes=[0])
    packed = box_leaf((whole_box((4, 4)), 8))._replace(
        storage=Pieces((Piece(Span(0, 16), 0, 0, 8),), "packed4"), dtype="int4"
    )
    with pytest.raises(TypeError, match="a/w is packed4: it can only be read whole"):
        plan_boxes([packed], {0: (UPPER,)}, block_bytes=[0])


def test_boxes_of_several_leaves_lie_as_in_the_file() -> None:
    """First the upper halves of all leaves, then the lower ones: what two devices wrote."""
    shape, half = (4, 16), 128
    halves = tuple(grid_cells(shape, ((0, 2), (0,))))
    leaves = []
    for i in range(3):
        pieces = [Piece(box, 0, (3 * n + i) * half, half) for n, box in enumerate(halves)]
        leaf = Leaf((str(i),), "numpy", shape, "float32", Pieces(tuple(pieces)))
        leaves.append(leaf)
    plan = plan_boxes(leaves, dict.fromkeys(range(3), halves), block_bytes=[MIB])
    assert plan.moves == (Move(0, 0, 6 * half, 0, 0),)
    assert plan.placements == tuple(
        [(0, (3 * n + i) * half, half) for i in range(3) for n in range(2)]
    )
    file = Counted(bytes(range(6)) * half)
    (buffer,) = execute_load(plan, [file], digests=[None], verify=False)
    assert buffer.tobytes() == bytes(range(6)) * half
    assert file.calls == 1


def test_empty_boxes_take_nothing() -> None:
    leaf = Leaf((), "numpy", (0, 3), "float32", Pieces(()))
    plan = plan_boxes([leaf], {0: (whole_box((0, 3)), whole_box((0, 3)))}, block_bytes=[])
    assert [length for _, _, length in plan.placements] == [0, 0]
    assert not plan.moves
    assert shape_of(whole_box((0, 3))) == (0, 3)


def test_arrays_of_64_axes_whose_elements_blocks_cut() -> None:
    shape = (1,) * 62 + (3, 5)
    raw = np.arange(15, dtype=np.int32).reshape(shape)
    data = raw.tobytes()
    digests = digests_of(data, start=0, block_bytes=7)
    box = Box((0,) * 64, (1,) * 62 + (3, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_units, "_UNIT_BYTES", 7)
        plan = plan_boxes([stored_whole(shape, "int32")], {0: (box,)}, block_bytes=[7])
        buffers = execute_load(plan, [MemoryFile(data)], digests=[digests], verify=True)
    assert buffers[0].tobytes() == raw[slices(box)].tobytes()
