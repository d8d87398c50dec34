"""safetensors: what is written, and what is read back."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cordwood.dtypes import DTYPES, to_numpy
from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.errors import (
    LimitError,
    UnsupportedLeafError,
)
from cordwood.formats.safetensors import plan_file as planning
from cordwood.formats.safetensors.plan_file import plan_file
from cordwood.formats.safetensors.read_index import read_index
from cordwood.index import LEAF, Index, Inline, LeafSpec, Node, Pieces
from cordwood.io.memory_file import MemoryFile
from cordwood.keypath import DictKey
from cordwood.tree.leaves import without_padding
from tests.block_digests import digests_of
from tests.formats.safetensors.assemble import equal, file_bytes, header_of
from tests.formats.safetensors.read_in_memory import read_bytes


class Point(NamedTuple):
    x: Any
    y: Any


TREE = {
    "layers": [{"w": np.arange(32, dtype=np.float32), "b": np.ones(3, np.float16)}, ()],
    "point": Point(np.int64(4), np.zeros((0, 3))),
    "step": 7,
    "none": None,
    "name": "é",
    3: b"\x00\xff",
}


def test_round_trip_keeps_structure_order_and_kinds() -> None:
    tree, index = read_bytes(file_bytes(TREE))
    assert list(tree) == list(TREE)
    assert equal(tree["layers"], TREE["layers"])
    assert equal(tree["point"], {"x": np.int64(4), "y": np.zeros((0, 3))})
    assert (tree["step"], tree["none"], tree["name"], tree[3]) == (7, None, "é", b"\x00\xff")
    assert index.naming == "exact"
    assert index.format == "safetensors"
    assert index.structure[6] == Node("namedtuple", 2, ("x", "y"), "Point")
    assert [leaf.key_path for leaf in index.leaves] == [
        ("layers", 0, "w"),
        ("layers", 0, "b"),
        ("point", "x"),
        ("point", "y"),
        ("step",),
        ("name",),
        (DictKey(3),),
    ]


VALUES = [
    True,
    False,
    0,
    -1,
    2**53 - 1,
    2**53,
    -(2**64),
    10**6000,
    0.0,
    -0.0,
    0.1,
    5e-324,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0],
    struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0],
    complex(-0.0, math.nan),
    complex(math.inf, 1e-300),
    "",
    "plain",
    'quote " back \\ nul \0 line \u2028 emoji \U0001f600',
    "\ud83d\ude00",  # two lone surrogates, not the character they would be together
    "\udfff",
    "x" * 4096,
    "x" * 4097,
    "é" * 3000,
    "\ud800" * 2000,
    b"",
    bytes(range(256)),
    b"x" * 4096,
    b"x" * 4097,
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_python_values_come_back_exactly(value: Any) -> None:
    tree, index = read_bytes(file_bytes({"value": value}))
    assert equal(tree["value"], value)
    (leaf,) = index.leaves
    assert leaf.kind == type(value).__name__


def test_short_values_are_inline_and_long_ones_are_tensors() -> None:
    _, index = read_bytes(file_bytes({"short": "é" * 2048, "long": "é" * 2049, "raw": b"x" * 5000}))
    short, long, raw = index.leaves
    assert isinstance(short.storage, Inline)
    assert isinstance(long.storage, Pieces)
    assert (long.kind, long.dtype, long.shape) == ("str", "uint8", (4098,))
    assert (raw.kind, raw.dtype, raw.shape) == ("bytes", "uint8", (5000,))


def test_jax_leaves_keep_weak_type_and_prng_implementation() -> None:
    tree = {
        "strong": jnp.ones(3),
        "weak": jnp.asarray(1.5),
        "key": jax.random.split(jax.random.key(0), 3),
        "rbg": jax.random.key(1, impl="rbg"),
        "int4": jnp.array([1, -2, 7], jnp.int4),
    }
    values, index = read_bytes(file_bytes(tree))
    by_name = {leaf.key_path[0]: leaf for leaf in index.leaves}
    assert not by_name["strong"].weak_type
    assert by_name["weak"].weak_type
    assert (by_name["key"].kind, by_name["key"].prng_impl) == ("prng_key", "threefry2x32")
    assert (by_name["key"].shape, by_name["key"].dtype) == ((3, 2), "uint32")
    assert by_name["rbg"].prng_impl == "rbg"
    assert (by_name["int4"].kind, by_name["int4"].dtype) == ("jax", "int4")
    assert np.array_equal(values["key"], jax.random.key_data(tree["key"]))
    assert values["int4"].astype(int).tolist() == [1, -2, 7]


SHAPES = [(), (0,), (0, 3), (1,), (3, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, "datetime64[ns]", "timedelta64[25s]"])
def test_every_dtype_has_its_code_and_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = without_padding(_elements(dtype, shape))
    raw = file_bytes({"array": array, "scalar": array.reshape(-1)[:1].reshape(-1)})
    tree, index = read_bytes(raw)
    assert equal(tree["array"], array)
    assert index.leaves[0].dtype == dtype
    entry = header_of(raw)["array"]
    row = DTYPES.get(dtype)
    if row is not None and row.safetensors is not None:
        assert (entry["dtype"], entry["shape"]) == (row.safetensors, list(shape))
    else:
        extra = [] if array.dtype.itemsize == 1 else [array.dtype.itemsize]
        assert (entry["dtype"], entry["shape"]) == ("U8", [*shape, *extra])
    result = {name: info["shape"] for name, info in safetensors.deserialize(raw)}
    assert result["array"] == entry["shape"]


def _elements(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    numpy_dtype = to_numpy(dtype)
    count = math.prod(shape)
    if dtype == "bool":
        return (np.arange(count) % 2 == 0).reshape(shape)
    rng = np.random.default_rng(0)
    if dtype.startswith(("int1", "int2", "int4", "uint1", "uint2", "uint4", "float4", "float6")):
        bits = {"1": 1, "2": 2, "4": 4, "6": 6}[dtype.removeprefix("u").lstrip("intfloa")[0]]
        if dtype in DTYPES and DTYPES[dtype].source == "ml_dtypes":
            raw = rng.integers(0, 1 << bits, count, np.uint8)
            return raw.view(numpy_dtype).reshape(shape)
    raw = rng.integers(0, 256, count * numpy_dtype.itemsize, np.uint8)
    return raw.view(numpy_dtype).reshape(shape)


@given(
    npst.arrays(
        st.sampled_from([np.dtype(t) for t in ("<f4", ">f4", ">i8", "<c16", ">u2", "?", "|i1")]),
        npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    st.booleans(),
)
def test_arrays_in_any_memory_layout_are_stored_in_c_order(
    array: np.ndarray, fortran: bool
) -> None:
    array = np.array(array, order="F") if fortran else array[..., ::-1] if array.ndim else array
    tree, _ = read_bytes(file_bytes([array]))
    expected = array.astype(array.dtype.newbyteorder("<"))
    assert tree[0].tobytes() == expected.tobytes()
    assert tree[0].shape == array.shape


# --- the layout of the file -------------------------------------------------------------------


def test_data_begins_at_a_page_and_tensors_are_aligned() -> None:
    tree: dict[str, Any] = {
        "odd": np.ones(3, np.int8),
        "half": np.ones(5, np.float16),
        "wide": np.ones(3, np.complex128),
        "lines": np.ones(16, np.float32),
        "double": np.ones(7, np.float64),
        "empty": np.ones((0, 2)),
        "more": np.ones((2, 64), np.int8),
        "scalar": np.float32(1),
    }
    raw = file_bytes(tree)
    index = read_index(MemoryFile(raw))
    offsets = {leaf.key_path[0]: leaf.storage.pieces[0].offset for leaf in index.leaves}  # type: ignore[union-attr]
    assert min(offsets.values()) == 4096
    assert sorted(offsets, key=lambda name: offsets[name]) in (
        ["lines", "empty", "more", "wide", "double", "scalar", "half", "odd"],
        ["lines", "more", "empty", "wide", "double", "scalar", "half", "odd"],
    )
    for name in ("lines", "more", "empty"):
        assert offsets[name] % 64 == 0, name
    for name, array in tree.items():
        assert offsets[name] % array.dtype.itemsize == 0, name


def test_the_header_lists_tensors_in_the_order_of_their_data() -> None:
    raw = file_bytes({"b": np.ones(3, np.int8), "a": np.ones(16, np.float32)})
    header = header_of(raw)
    assert list(header) == ["__metadata__", "a", "b"]
    assert header["a"] == {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    assert header["b"] == {"dtype": "I8", "shape": [3], "data_offsets": [64, 67]}


def test_same_tree_same_bytes() -> None:
    assert file_bytes(TREE, {"a": "b"}) == file_bytes(TREE, {"a": "b"})


def test_an_empty_tree_and_a_single_array() -> None:
    tree, index = read_bytes(file_bytes({}))
    assert (tree, index.leaves) == ({}, ())
    tree, index = read_bytes(file_bytes(np.arange(3)))
    assert equal(tree, np.arange(3))
    assert index.leaves[0].key_path == ()
    assert read_bytes(file_bytes(None))[0] is None
    assert read_bytes(file_bytes(5))[0] == 5


def test_digests_cover_the_data_block_by_block() -> None:
    raw = file_bytes({"a": np.zeros(BLOCK_BYTES + 5, np.uint8)})
    digests = read_index(MemoryFile(raw)).sources[0].digests
    assert digests is not None
    assert (digests.start, digests.block_bytes, len(digests.values)) == (4096, BLOCK_BYTES, 32)


def test_seal_refuses_digests_of_something_else() -> None:
    plan = plan_file((LEAF,), [LeafSpec((), "numpy", (3,), "int8")], metadata={})
    assert plan.make_header is not None
    with pytest.raises(ValueError, match="expected digests of 1048576-byte blocks of the 3 bytes"):
        plan.make_header(digests_of(b"abc", start=0))
    with pytest.raises(ValueError, match="expected digests"):
        plan.make_header(digests_of(b"", start=plan.header_bytes))


def test_a_header_past_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_HEADER_BYTES", 5000)
    with pytest.raises(LimitError, match=r"header would take \d+ bytes.*5000 \(MAX_HEADER_BYTES\)"):
        file_bytes({f"name{i}": np.ones(1) for i in range(100)})


def test_what_the_format_cannot_store_is_refused_with_its_path() -> None:
    structure = (Node("dict", 1, ("a",)), LEAF)
    with pytest.raises(UnsupportedLeafError, match=r"^a: a value that only its original format"):
        plan_file(structure, [LeafSpec(("a",), "opaque", (), "")], metadata={})
    spec = LeafSpec(("a",), "numpy", (1,) * 65, "int8")
    with pytest.raises(UnsupportedLeafError, match=r"^a: 65 dimensions"):
        plan_file(structure, [spec], metadata={})
    with pytest.raises(ValueError, match="structure of 1 leaves, but 0"):
        plan_file(structure, [], metadata={})


def test_64_dimensions_of_a_disguised_dtype_are_refused() -> None:
    # As U8 it would have 65, which nothing reads.
    with pytest.raises(UnsupportedLeafError, match="dimensions"):
        file_bytes({"a": np.zeros((1,) * 64, np.complex128)})


# --- metadata ---------------------------------------------------------------------------------


def test_metadata_is_kept_verbatim() -> None:
    metadata = {"format": "pt", "": "", 'k\n"': "é\\ \U0001f600", "zeta": "1", "alpha": "2"}
    raw = file_bytes({"a": np.ones(2)}, metadata)
    index = read_index(MemoryFile(raw))
    assert index.metadata == metadata
    assert list(index.metadata) == list(metadata)
    stored = header_of(raw)["__metadata__"]
    assert {key: stored[key] for key in metadata} == metadata


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"cordwood.version": "1"}, ValueError, "are cordwood's own; choose another"),
        ({"cordwood.x": "1"}, ValueError, "'cordwood.x'"),
        ({"a": 1}, TypeError, "expected str keys and values, found 'a': 1"),
        ({1: "a"}, TypeError, "expected str keys and values, found 1: 'a'"),
        ({"a": "\ud800"}, ValueError, "'a': holds a lone surrogate"),
    ],
)
def test_metadata_that_cannot_be_stored(
    metadata: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        file_bytes({"a": np.ones(2)}, metadata)


# --- any tree -----------------------------------------------------------------------------------

_KEYS = st.one_of(
    st.text(max_size=4),
    st.text(alphabet="a.bB~é\ud800\ud83d\ude00", max_size=4),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=3),
    st.tuples(st.integers(), st.tuples(st.text(max_size=2))),
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(alphabet=st.characters(), max_size=5),
    st.text(alphabet="\ud800\ude00a", max_size=3),
    st.binary(max_size=5),
    npst.arrays(
        st.sampled_from(["<f4", "<i8", "<c16", "|b1", "<u2"]),
        npst.array_shapes(min_dims=0, max_side=3, max_dims=3, min_side=0),
    ),
    st.floats(width=32).map(np.float32),
)
_TREES = st.recursive(
    _LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(_KEYS, children, max_size=4),
    ),
    max_leaves=12,
)


@given(_TREES, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_any_tree_comes_back(tree: Any, metadata: dict[str, str]) -> None:
    metadata = {key: value for key, value in metadata.items() if not key.startswith("cordwood.")}
    raw = file_bytes(tree, metadata)
    result, index = read_bytes(raw)
    assert equal(result, tree)
    assert index.metadata == metadata
    names = [name for name, _ in safetensors.deserialize(raw)]
    assert len({name.casefold() for name in names}) == len(names)


def test_ordered_dicts_come_back_as_dicts_in_their_order() -> None:
    tree, index = read_bytes(file_bytes(OrderedDict([("b", 1), ("a", 2)])))
    assert list(tree) == ["b", "a"]
    assert index.structure[0].type_name == "OrderedDict"


def test_a_tree_800_levels_deep_comes_back() -> None:
    tree: Any = np.ones(2)
    for i in range(400):
        tree = {"key": [tree, i]}
    result, _ = read_bytes(file_bytes(tree))
    for _ in range(400):
        result = result["key"][0]
    assert equal(result, np.ones(2))


def test_an_index_of_many_leaves() -> None:
    tree = {f"layer{i}": {"w": np.full(2, i), "b": np.float32(i)} for i in range(500)}
    result, index = read_bytes(file_bytes(tree))
    assert equal(result, tree)
    assert isinstance(index, Index)
    assert len(index.leaves) == 1000
