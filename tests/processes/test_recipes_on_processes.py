"""Several processes load by a recipe onto eight devices: each reads the share of its devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from cordwood.recipes import Recipe, Rule
from tests.processes.group import Group

LAYERS, EXPERTS, HEADS, WIDTH, MODEL, MLP = 4, 4, 16, 64, 512, 1024
LAYER = "model.layers.{i}."
# The layout of MaxText: layers are stacked along the second axis, matrices are transposed.
RECIPE = Recipe(
    [
        Rule(LAYER + "q.weight", "(n h) d", "query", "d i n h", sizes={"h": WIDTH}),
        Rule([LAYER + "k.weight", LAYER + "v.weight"], "(n h) d", "kv", "d i L n h"),
        Rule(LAYER + "up.weight", "f d", "up", "d i f"),
        Rule(LAYER + "experts.{e}.up.weight", "f d", "experts", "e i d f"),
        Rule(LAYER + "norm.weight", "d", "norm", "d i"),
    ],
    sizes={"h": WIDTH},
)
# Axes of a mesh of x and y, along which stacked and transposed leaves are cut.
SPECS: dict[str, list[str | list[str] | None]] = {
    "query": [None, "x", "y"],
    "kv": [None, None, None, ["x", "y"]],
    "up": [None, "y", "x"],
    "experts": ["y", "x"],
    "norm": [None, "x"],
}


def stored() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", (HEADS * WIDTH, MODEL))
    shapes |= {"up": (MLP, MODEL), "norm": (MODEL,)}
    shapes |= {f"experts.{e}.up": (MLP // 2, MODEL) for e in range(EXPERTS)}
    return {
        f"model.layers.{i}.{name}.weight": rng.random(shape, np.float32)
        for i in range(LAYERS)
        for name, shape in shapes.items()
    }


def rearranged(tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    def layers(name: str) -> list[np.ndarray]:
        return [tree[f"model.layers.{i}.{name}.weight"] for i in range(LAYERS)]

    def heads(name: str) -> np.ndarray:
        return np.stack([array.reshape(HEADS, WIDTH, MODEL) for array in layers(name)])

    experts = [np.stack(layers(f"experts.{e}.up")) for e in range(EXPERTS)]
    return {
        "query": heads("q").transpose(3, 0, 1, 2),
        "kv": np.stack([heads("k"), heads("v")]).transpose(4, 1, 0, 2, 3),
        "up": np.stack(layers("up")).transpose(2, 0, 1),
        "experts": np.stack(experts).swapaxes(-1, -2),
        "norm": np.stack(layers("norm"), axis=1),
    }


TREE = stored()
EXPECTED = rearranged(TREE)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("stored") / "model.safetensors"
    save_file(TREE, path)  # without digests, as on the hub
    return str(path)


@pytest.mark.parametrize("count", [2, 4])
def test_each_process_reads_its_share(path: str, count: int) -> None:
    with Group(count, devices_each=8 // count) as group:
        for mesh in ([2, 4], [4, 2]):
            results = group.run("load_onto", path=path, specs=SPECS, mesh=mesh, recipe=RECIPE)
            for read_bytes, share_bytes in read_and_shares(results):
                assert share_bytes <= read_bytes <= 1.1 * share_bytes


def test_a_little_of_each_stored_row_is_read_with_the_rows(path: str, four: Group) -> None:
    """A range of the width is half a KiB of each row; no row is read twice."""
    specs = {name: ["x"] if name in ("query", "up") else [] for name in SPECS}
    results = four.run("load_onto", path=path, specs=specs, mesh=[8], recipe=RECIPE)
    size_bytes = sum([array.nbytes for array in TREE.values()])
    for read_bytes, share_bytes in read_and_shares(results):
        assert share_bytes < read_bytes <= 1.001 * size_bytes


def read_and_shares(results: list[Any]) -> list[tuple[int, int]]:
    """Return for each process how many bytes it read and needed; all elements are right."""
    pairs = []
    seen = {name: np.zeros(array.shape, bool) for name, array in EXPECTED.items()}
    for parts, read_bytes in results:
        share_bytes = 0
        for name, shards in parts.items():
            for ranges, data in {tuple(ranges): data for ranges, data in shards}.items():
                key = tuple([slice(*each) for each in ranges])
                np.testing.assert_array_equal(data, EXPECTED[name][key])
                seen[name][key] = True
                share_bytes += data.nbytes
        pairs.append((read_bytes, share_bytes))
    assert all(each.all() for each in seen.values())
    return pairs
