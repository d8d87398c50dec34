"""The bytes of the format do not change unnoticed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.formats.safetensors.assemble import equal, file_bytes, header_of
from tests.formats.safetensors.read_in_memory import read_bytes
from tests.golden.safetensors_files import ARRAYS, FOLDER, METADATA, TREE

V1 = (FOLDER / "v1.safetensors").read_bytes()


def test_the_same_tree_still_makes_the_same_bytes() -> None:
    assert file_bytes(TREE, METADATA) == V1


def test_the_golden_file_is_read() -> None:
    tree, index = read_bytes(V1)
    expected: dict[Any, Any] = dict(TREE)
    expected["moments"] = TREE["moments"]._asdict()
    assert equal(tree, expected)
    assert index.metadata == METADATA


def test_the_header_is_that_of_the_golden_file() -> None:
    header = header_of(V1)
    mine = header.pop("__metadata__")
    assert list(mine) == [
        "cordwood.header_digest",
        "cordwood.version",
        "cordwood.digests",
        "cordwood.structure",
        "format",
        "note",
    ]
    assert mine["cordwood.version"] == "1"
    table = json.loads(mine["cordwood.structure"])
    assert table["nodes"] == [
        ["dict", [*list(TREE)[:6], 3, {"utf8": "7aCA"}]],
        ["dict", ["layers", "none"]],
        ["list", 2],
        1,
        ["tuple", 1],
        1,
        None,
        1,
        ["dict", ["None"]],
        1,
        ["namedtuple", ["mu", "nu"], "Moments"],
        3,
        ["list", 9],
        9,
        ["dict", [{"tuple": [1, "a"]}, None]],
        3,
    ]
    assert table["names"] == [3, "Params.None~2"]
    assert header == {
        "params.layers.0": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]},
        "Params.None~2": {"dtype": "F32", "shape": [0, 3], "data_offsets": [128, 128]},
        "moments.nu": {"dtype": "U8", "shape": [4, 16], "data_offsets": [128, 192]},
        "moments.mu": {"dtype": "F32", "shape": [], "data_offsets": [192, 196]},
        "params.layers.1.0": {"dtype": "F16", "shape": [3], "data_offsets": [196, 202]},
        "params.none": {"dtype": "U8", "shape": [2], "data_offsets": [202, 204]},
        "quantised": {"dtype": "U8", "shape": [4], "data_offsets": [204, 208]},
        "3.None": {"dtype": "U8", "shape": [5000], "data_offsets": [208, 5208]},
    }


@pytest.mark.parametrize("name", ["reference-0.8.0.safetensors"])
def test_a_file_of_the_reference_is_read(name: str) -> None:
    tree, index = read_bytes((FOLDER / name).read_bytes())
    assert {key: np.array_equal(tree[key], ARRAYS[key]) for key in ARRAYS} == dict.fromkeys(
        ARRAYS, True
    )
    assert index.metadata == METADATA
