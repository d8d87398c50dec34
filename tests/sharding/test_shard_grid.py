"""Grids of cells, and the grids of jax's shardings."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from cordwood.index import Box
from cordwood.sharding.boxes import (
    cell_box,
    device_boxes,
    element_count,
    grid_cells,
    intersect,
    shard_grid,
    single_process_grid,
    slices,
    whole_box,
)


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [((), ()), ((0,), ((0,),)), ((7,), ((0, 3, 6),)), ((4, 6, 2), ((0, 2), (0, 1, 5), (0,)))],
)
def test_cells_tile_the_array(shape: tuple[int, ...], cuts: tuple[tuple[int, ...], ...]) -> None:
    boxes = grid_cells(shape, cuts)
    count = np.zeros(shape, int)
    for number, box in enumerate(boxes):
        count[slices(box)] += 1
        assert cell_box(shape, cuts, number) == box
    assert (count == 1).all()
    assert sum(map(element_count, boxes)) == element_count(whole_box(shape))


def test_boxes_intersect_where_they_share_elements() -> None:
    assert intersect(Box((0, 0), (2, 2)), Box((2, 0), (4, 2))) is None
    assert intersect(Box((), ()), Box((), ())) == Box((), ())
    assert intersect(Box((0,), (0,)), Box((0,), (0,))) is None


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, "y"), P("x", "y"), P(("x", "y")), P("y")])
def test_the_grid_has_the_boxes_of_every_device(spec: P) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    array = jax.device_put(np.arange(128.0).reshape(16, 8), NamedSharding(mesh, spec))
    grid = shard_grid(array.sharding, array.shape)
    assert set(grid_cells(grid.shape, grid.cuts)) == set(
        device_boxes(array.sharding, array.shape).values()
    )
    for shard in array.addressable_shards:
        box = device_boxes(array.sharding, array.shape)[shard.device]
        np.testing.assert_array_equal(np.asarray(array)[slices(box)], shard.data)
    assert set(grid.holders) == {(0,)}


def test_one_device_has_a_grid_of_one_cell() -> None:
    one = SingleDeviceSharding(jax.devices()[3])
    assert shard_grid(one, (3, 0)) == single_process_grid((3, 0)) == ((3, 0), ((0,), (0,)), ((0,),))
    assert shard_grid(one, ()) == single_process_grid(())
