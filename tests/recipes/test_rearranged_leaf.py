"""A large leaf that is rearranged in a temporary file has the bytes that numpy gives."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from cordwood.index import Arranged, ArrangedPart, Box, Leaf
from cordwood.loading.leaf_reader import LeafReader
from cordwood.plan.select_leaves import SelectedLeaves
from cordwood.recipes import Recipe, Rule
from cordwood.recipes.map_index import map_index
from cordwood.sharding.boxes import whole_box
from cordwood.storage.locations import LocalPath
from cordwood.storage.rearranged_leaf import RearrangedLeaf, is_worth_a_file
from tests.plan.test_arrangements import reader_of, stored_in_boxes


def mapped(rule: Rule, array: np.ndarray) -> tuple[SelectedLeaves, LeafReader]:
    leaf, data = stored_in_boxes(array, [whole_box(array.shape)])
    reader = reader_of(leaf, data)
    part = map_index(reader.index, Recipe([rule]), where="the file")
    return part, reader.mapped(part)


@pytest.mark.parametrize(
    "axes", ["(a b) (c d)", "c a b d", "d c b a", "b (a c) d", "a (d c) b", "(d b) (a c)"]
)
def test_any_range_of_its_bytes_is_numpys(tmp_path: Path, axes: str) -> None:
    array = np.arange(6 * 8 * 5 * 7, dtype=np.float32).reshape(6 * 8, 5 * 7)
    rule = Rule("w", "(a b) (c d)", "v", axes, sizes={"a": 6, "c": 5})
    if axes == "(a b) (c d)":
        rule = Rule("w", "x y", "v", "y x", pad={"x": 50})
    part, reader = mapped(rule, array)
    (leaf,) = part.stored.leaves
    expected = reader.read([leaf])[0]
    data = expected.tobytes()

    def read(split: Leaf, box: Box) -> np.ndarray:
        result: np.ndarray = reader.read([split], {0: [box]})[0]
        return result

    rearranged = RearrangedLeaf(leaf, read, LocalPath(str(tmp_path)), 4)
    rng = random.Random(1)
    for _ in range(20):
        start = rng.randrange(len(data))
        target = bytearray(rng.randint(1, len(data) - start))
        rearranged.read_into(start, memoryview(target))
        assert target == data[start : start + len(target)]
    assert list(tmp_path.iterdir()) == []


def test_short_runs_are_not_worth_it() -> None:
    """Layers that are stacked along the last axis would be written element by element."""
    stored, _ = stored_in_boxes(np.zeros(512, np.float32), [])
    for shape, worth in (((2, 512), True), ((512, 2), False)):
        layers = [
            Box((i, 0), (i + 1, 512)) if worth else Box((0, i), (512, i + 1)) for i in range(2)
        ]
        axis = 1 if worth else 0
        parts = [ArrangedPart(stored, (512,), (0,), (axis,), box) for box in layers]
        leaf = stored._replace(shape=shape, storage=Arranged(shape, tuple(parts)))
        assert is_worth_a_file(leaf, 4) is worth
