"""safetensors: what other writers make, and what the safetensors package reads of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy

from cordwood.formats.safetensors.read_index import read_index
from cordwood.index import Pieces
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import LocalFile
from tests.formats.safetensors.assemble import equal, file_bytes, header_of, with_header
from tests.formats.safetensors.read_in_memory import read_bytes


def test_the_safetensors_package_reads_files_of_cordwood(tmp_path: Path) -> None:
    tree = {
        "model.layers.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "nested": {"b": np.arange(5, dtype=np.int8), "é": [np.zeros((0, 3)), np.float64(2.5)]},
        "flag": np.array([True, False]),
        "c": np.ones(3, np.complex64),
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(tree, {"format": "pt"}))
    result = safetensors.numpy.load_file(path)
    assert set(result) == {
        "model.layers.0.weight",
        "nested.b",
        "nested.é.0",
        "nested.é.1",
        "flag",
        "c",
    }
    assert equal(result["model.layers.0.weight"], tree["model.layers.0.weight"])
    assert result["nested.é.1"].shape == ()
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata()["format"] == "pt"
    as_jax = safetensors.flax.load_file(path)
    assert as_jax["c"].dtype == jnp.complex64


def test_we_read_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a.weight": np.arange(5, dtype=np.int8),
        "empty": np.zeros((2, 0), np.float64),
        "scalar": np.array(7, np.uint16),
        "c": np.ones(3, np.complex64),
        'quote" \\ é': np.ones(1, bool),
    }
    path = tmp_path / "x.safetensors"
    for metadata in (None, {"format": "pt", "k": 'v"\\'}):
        safetensors.numpy.save_file(arrays, path, metadata)
        tree, index = read_bytes(path.read_bytes())
        assert {key: equal(tree[key], arrays[key]) for key in arrays} == dict.fromkeys(arrays, True)
        assert list(tree) == [key for key in header_of(path.read_bytes()) if key in arrays]
        assert index.metadata == (metadata or {})
        assert index.naming == "dotted"
        assert {leaf.kind for leaf in index.leaves} == {"numpy"}
        assert index.sources[0].digests is None
        with LocalFile(path) as file:
            assert read_index(file).leaves == index.leaves


def test_we_read_what_safetensors_flax_writes(tmp_path: Path) -> None:
    arrays = {"bf16": jnp.arange(4, dtype=jnp.bfloat16), "i": jnp.arange(3)}
    path = tmp_path / "x.safetensors"
    safetensors.flax.save_file(dict(arrays), path)
    tree, _ = read_bytes(path.read_bytes())
    for name, array in arrays.items():
        assert equal(tree[name], np.asarray(array))


def test_a_foreign_file_keeps_its_names_and_metadata_through_cordwood(tmp_path: Path) -> None:
    arrays = {"model.layers.0.weight": np.ones(3), "model.norm": np.ones(2), "lm_head": np.ones(1)}
    raw = safetensors.numpy.save(arrays, {"format": "pt"})
    tree, index = read_bytes(raw)
    again = safetensors.numpy.load(file_bytes(tree, index.metadata))
    assert set(again) == set(arrays)


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "F6_E3M2"])
def test_packed_tensors_of_other_tools(code: str) -> None:
    bits = 4 if code == "F4" else 6
    length = 8 * bits // 8
    header = {"t": {"dtype": code, "shape": [2, 4], "data_offsets": [0, length]}}
    raw = with_header(header, bytes(range(length)))
    assert safetensors.deserialize(raw)[0][1]["dtype"] == code
    (leaf,) = read_index(MemoryFile(raw)).leaves
    assert isinstance(leaf.storage, Pieces)
    assert leaf.storage.encoding == f"packed{bits}"
    assert leaf.storage.pieces[0].where == (0, 8)
    assert leaf.storage.pieces[0].length == length
    assert leaf.dtype in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"__metadata__":null}',
        '{"__metadata__":{}}  ',
        '{ "a": {"shape": [2], "dtype": "U8", "data_offsets": [0, 2]} }',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"k":"v"}}\n',
        (
            '{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},'
            '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
        ),
        '{"\\u0061\\n":{"dtype":"U8","shape":[2,1],"data_offsets":[0,2]}}',
        (
            '{"a":{"dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0]},'
            '"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}'
        ),
    ],
)
def test_unusual_headers_are_read_as_the_reference_reads_them(text: str) -> None:
    data = b"\0\1" if "dtype" in text else b""
    raw = with_header(text, data)
    expected = {name: info["shape"] for name, info in safetensors.deserialize(raw)}
    index = read_index(MemoryFile(raw))
    assert {leaf.key_path[0]: list(leaf.shape) for leaf in index.leaves} == expected
    assert [leaf.key_path[0] for leaf in index.leaves] == [
        key for key in json.loads(text) if key != "__metadata__"
    ]
