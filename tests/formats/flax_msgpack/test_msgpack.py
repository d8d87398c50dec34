"""The msgpack format: bytes, what a scan finds, views, and foreign forms of the same things."""

from __future__ import annotations

import importlib
import mmap
import sys
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack as library
import numpy as np
import pytest

from cordwood import msgpack, to_state_dict
from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.formats.flax_msgpack import wire
from cordwood.formats.flax_msgpack.plan_state import plan_state
from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.index import LEAF, Inline, Leaf, Node, Piece, Pieces, Source, Span
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import LocalFile
from cordwood.keypath import DictKey
from cordwood.storage.write_files import write_file
from cordwood.tree.leaves import host_array
from tests.random_trees import Trees, assert_same

# Written by flax 0.12.8 and by eformer 0.0.101 alike.
GOLDEN: list[tuple[Any, str]] = [
    (
        np.array([1, 2], np.float32),
        "c71501939102a7666c6f61743332c4080000803f00000040",
    ),
    ({"a": np.array(7, np.int32)}, "81a161c70e019390a5696e743332c40407000000"),
    (np.float32(1.5), "d8039390a7666c6f61743332c4040000c03f"),
    (np.bool_(True), "c70a039390a4626f6f6cc40101"),
    (1 + 2j, "c7130292cb3ff0000000000000cb4000000000000000"),
    (np.array([1, 2], ml_dtypes.bfloat16), "c71201939102a862666c6f61743136c404803f0040"),
    (jnp.bfloat16(1.5), "c70f019390a862666c6f61743136c402c03f"),
    (ml_dtypes.bfloat16(1.5), "c70f039390a862666c6f61743136c402c03f"),
    (np.array([-1, -8], ml_dtypes.int4), "c70c01939102a4696e7434c4020f08"),
    (
        [None, True, -1, 2**40, 1.5, "é", b"x"],
        "97c0c3ffcf0000010000000000cb3ff8000000000000a2c3a9c40178",
    ),
]


@pytest.mark.parametrize(("value", "expected"), GOLDEN, ids=range(len(GOLDEN)))
def test_values_have_the_golden_bytes(value: Any, expected: str) -> None:
    assert msgpack.msgpack_serialize(value).hex() == expected
    assert_same(
        msgpack.msgpack_restore(bytes.fromhex(expected)),
        np.asarray(value) if isinstance(value, jax.Array) else value,
    )


_EDGES = [2**bits + offset for bits in range(64) for offset in (-1, 0, 1)]


@pytest.mark.parametrize("value", [*_EDGES, *[-edge for edge in _EDGES[:-1]], 2**64 - 1])
def test_every_length_class_of_int(value: int) -> None:
    assert msgpack.msgpack_serialize(value) == library.packb(value)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536, 70000])
def test_every_length_class_of_headers(length: int) -> None:
    for value in ("x" * length, b"x" * length, bytearray(length), [1] * length):
        assert msgpack.msgpack_serialize(value) == library.packb(value)
    keyed = {f"{i}": i for i in range(length)}
    assert msgpack.msgpack_serialize(keyed, in_place=True) == library.packb(keyed)
    view = memoryview(bytes(range(256)) * (length // 128 + 1))[::2]
    assert msgpack.msgpack_serialize(view) == library.packb(view.tobytes())
    assert (
        wire.ext_header(9, length)
        == library.packb(library.ExtType(9, b"x" * length))[: -length or None]
    )


def test_the_index_has_structure_sources_and_pieces() -> None:
    tree = {"a": {"w": np.zeros((2, 3), np.int8), "n": None}, "l": [1.5, "x"], 5: np.float32(1)}
    data = msgpack.msgpack_serialize(tree, in_place=True)
    index = read_index(MemoryFile(data, "a.msgpack"))
    at = data.index(bytes(6))
    assert index.format == "msgpack"
    assert index.naming == "strings"
    assert index.sources == (Source("a.msgpack", len(data)),)
    assert index.structure == (
        Node("dict", 3, ("a", "l", DictKey(5))),
        Node("dict", 2, ("w", "n")),
        LEAF,
        Node("none"),
        Node("list", 2),
        LEAF,
        LEAF,
        LEAF,
    )
    assert index.leaves == (
        Leaf(("a", "w"), "numpy", (2, 3), "int8", Pieces((Piece(Span(0, 6), 0, at, 6),))),
        Leaf(("l", 0), "float", (), "", Inline(1.5)),
        Leaf(("l", 1), "str", (), "", Inline("x")),
        Leaf(
            (DictKey(5),),
            "numpy_scalar",
            (),
            "float32",
            Pieces((Piece(Span(0, 1), 0, len(data) - 4, 4),)),
        ),
    )


def test_chunked_array_is_one_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", 16)
    array = np.arange(10, dtype=np.float32).reshape(2, 5)
    data = msgpack.to_bytes({"w": array})
    (leaf,) = read_index(MemoryFile(data)).leaves
    assert (leaf.key_path, leaf.kind, leaf.shape, leaf.dtype) == (
        ("w",),
        "numpy",
        (2, 5),
        "float32",
    )
    assert isinstance(leaf.storage, Pieces)
    assert [piece.where for piece in leaf.storage.pieces] == [Span(0, 4), Span(4, 8), Span(8, 10)]
    assert [piece.length for piece in leaf.storage.pieces] == [16, 16, 8]
    restored = msgpack.msgpack_restore(data)["w"]
    assert_same(restored, array)
    assert restored.flags.writeable


def test_chunks_in_any_order() -> None:
    parts = [np.arange(2, dtype=np.int16), np.arange(2, 5, dtype=np.int16)]
    state = {
        "chunks": {"1": parts[1], "0": parts[0]},
        "shape": {"0": 5},
        "__msgpack_chunked_array__": True,
    }
    data = flax.serialization.msgpack_serialize(state, in_place=True)
    assert_same(msgpack.msgpack_restore(data), np.arange(5, dtype=np.int16))


@pytest.mark.parametrize(
    "state",
    [
        {"__msgpack_chunked_array__": 1, "shape": {}, "chunks": {}},
        {"__msgpack_chunked_array__": False, "shape": {}, "chunks": {}},
        {"__msgpack_chunked_array__": True, "shape": {}},
        {"__msgpack_chunked_array__": True, "shape": {}, "chunks": {}, "more": 1},
        {"__msgpack_chunked_array__": True, "shape": 1, "chunks": {}},
        {"__msgpack_chunked_array__": True, "shape": [], "chunks": {}},
        {"__msgpack_chunked_array__": True, "shape": {"0": [1]}, "chunks": {}},
        {"__msgpack_chunked_array__": True, "shape": {"0": None}, "chunks": {}},
        {"__msgpack_chunked_array__": {}, "shape": {}, "chunks": {}},
        [{"__msgpack_chunked_array__": True, "shape": {}, "chunks": {}}],
    ],
    ids=repr,
)
def test_what_only_looks_chunked_stays_a_dict(state: Any) -> None:
    data = library.packb(state)
    assert msgpack.msgpack_restore(data) == state


FOREIGN: list[tuple[str, bytes, Any]] = [
    ("big-endian dtype", b"\xa3>f4", np.array([1, 2], ">f4")),
    ("little-endian dtype", b"\xa3<f4", np.array([1, 2], "<f4")),
    ("code of a dtype", b"\xa2f4", np.array([1, 2], "<f4")),
    ("big-endian ints", b"\xa3>i2", np.array([1, 2], ">i2")),
    ("bytes as a name", b"\xc4\x07float32", np.array([1, 2], "<f4")),
    ("long name header", b"\xdb\0\0\0\x07float32", np.array([1, 2], "<f4")),
]


@pytest.mark.parametrize(
    ("name", "array"), [row[1:] for row in FOREIGN], ids=[r[0] for r in FOREIGN]
)
@pytest.mark.parametrize("code", [wire.EXT_ARRAY, wire.EXT_SCALAR])
def test_dtypes_spelled_by_numpy_are_read(name: bytes, array: np.ndarray, code: int) -> None:
    raw = array.tobytes()
    for header in (b"\xc4" + bytes([len(raw)]), b"\xc6\0\0\0" + bytes([len(raw)])):
        payload = b"\xdc\x00\x03\x91\xff" + name + header + raw
        data = wire.ext_header(code, len(payload)) + payload
        restored = msgpack.msgpack_restore(data)
        assert_same(restored, flax.serialization.msgpack_restore(data))
        assert restored.tolist() == [1, 2]
        (leaf,) = read_index(MemoryFile(data)).leaves
        assert isinstance(leaf.storage, Pieces)
        assert leaf.storage.encoding == ("swapped" if array.dtype.str[0] == ">" else "raw")


def test_a_dimension_of_minus_1_is_computed() -> None:
    payload = b"\x93\x92\x02\xff\xa4int8\xc4\x06abcdef"
    data = wire.ext_header(1, len(payload)) + payload
    assert_same(msgpack.msgpack_restore(data), flax.serialization.msgpack_restore(data))


def test_tuples_of_orbax_are_read() -> None:
    inner = msgpack.msgpack_serialize([1, np.ones(2), []])
    nested = b"\x92" + wire.ext_header(4, len(inner)) + inner + wire.ext_header(4, 1) + b"\x90"
    data = wire.ext_header(4, len(nested)) + nested
    assert_same(msgpack.msgpack_restore(data), ((1, np.ones(2), []), ()))
    assert [node.kind for node in read_index(MemoryFile(data)).structure] == [
        "tuple", "tuple", "leaf", "leaf", "list", "tuple",
    ]  # fmt: skip


def test_orbax_reads_and_writes_the_same() -> None:
    utils = pytest.importorskip("orbax.checkpoint.msgpack_utils")
    state = {"a": (1, np.ones(2, np.float32), (2.5,)), "b": {"c": [np.int8(1)]}}
    assert_same(msgpack.msgpack_restore(utils.msgpack_serialize(state)), state)


@pytest.mark.parametrize(
    "key", [0, -5, 2**40, True, None, 2.5, b"k", np.int64(3), 1j, library.ExtType(9, b"x")]
)
def test_keys_of_other_types(key: Any) -> None:
    data = msgpack.msgpack_serialize({key: {"x": 1}})
    assert data == flax.serialization.msgpack_serialize({key: {"x": 1}}, in_place=True)
    restored = msgpack.msgpack_restore(data)
    assert restored == {key: {"x": 1}}
    assert type(next(iter(restored))) is type(key)


def test_unknown_extensions_pass_through() -> None:
    state = {"e": library.ExtType(77, b"abc"), "t": library.Timestamp(1, 2)}
    data = msgpack.msgpack_serialize(state)
    assert data == flax.serialization.msgpack_serialize(dict(state))
    assert msgpack.msgpack_restore(data) == state
    assert {leaf.kind for leaf in read_index(MemoryFile(data)).leaves} == {"opaque"}


def test_extensions_that_would_forge_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="e: extension 1 would read as an array, scalar or tuple"):
        msgpack.msgpack_serialize({"e": library.ExtType(1, b"abc")})


def test_views_into_what_was_given(tmp_path: Path) -> None:
    tree = {"w": np.arange(1000), "s": np.float32(2)}
    data = msgpack.to_bytes(tree)
    path = tmp_path / "a.msgpack"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for buffer in (data, bytearray(data), memoryview(data), mapped):
            whole = np.frombuffer(buffer, np.uint8)
            restored = msgpack.msgpack_restore(buffer)  # type: ignore[arg-type]
            assert np.shares_memory(restored["w"], whole)
            assert not restored["w"].flags.writeable
            assert_same(restored, flax.serialization.msgpack_restore(data))
            del restored, whole


def test_buffers_are_views() -> None:
    tree = {"w": np.arange(1000), "j": jnp.arange(1000), "f": np.asfortranarray(np.eye(3))}
    buffers = msgpack.to_buffers(tree)
    assert b"".join(buffers) == flax.serialization.to_bytes(tree)
    parts = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    assert any(np.shares_memory(part, tree["w"]) for part in parts)
    assert any(np.shares_memory(part, host_array(tree["j"])) for part in parts)


def test_sharded_arrays_are_put_together() -> None:
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = {"w": jax.device_put(np.arange(64.0).reshape(16, 4), sharding)}
    assert msgpack.to_bytes(tree) == flax.serialization.to_bytes(tree)


@pytest.mark.parametrize("size", [2**30, 16, 1])
def test_plan_written_and_read_by_the_engine(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", size)
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", size)
    for seed in range(10):
        tree = Trees(seed).tree()
        plan, leaves = plan_state(to_state_dict(tree))
        path = tmp_path / f"{seed}.msgpack"
        write_file(path, plan, Leaves(leaves))
        assert path.read_bytes() == flax.serialization.to_bytes(tree)
        with LocalFile(path) as file:
            restored = msgpack.msgpack_restore(file.map())
        assert_same(restored, msgpack.from_bytes(None, flax.serialization.to_bytes(tree)))
        assert_same(
            msgpack.load_from_file(tree, path),
            flax.serialization.from_bytes(tree, path.read_bytes()),
        )


def test_loaded_arrays_are_writable(tmp_path: Path) -> None:
    tree = {"w": np.arange(6, dtype=np.float32), "l": [np.zeros((0, 3)), np.int8(1)]}
    msgpack.save_to_file(tree, tmp_path / "new" / "folder" / "a.msgpack")
    loaded = msgpack.load_from_file(tree, tmp_path / "new" / "folder" / "a.msgpack")
    assert_same(loaded, tree)
    assert loaded["w"].flags.writeable


@pytest.mark.parametrize("wrap", [lambda x: {"a": x}, lambda x: [x]], ids=["dict", "list"])
def test_the_depth_is_limited_without_recursion(wrap: Any) -> None:
    tree: Any = np.ones(1)
    for _ in range(wire.MAX_DEPTH):
        tree = wrap(tree)
    limit = sys.getrecursionlimit()
    data = msgpack.msgpack_serialize(tree)
    restored = msgpack.msgpack_restore(data)
    assert msgpack.msgpack_serialize(restored) == data
    assert sys.getrecursionlimit() == limit
    with pytest.raises(LimitError, match="deeper than 1024 containers"):
        msgpack.msgpack_serialize(wrap(tree))
    assert library.unpackb(data, ext_hook=lambda code, _: code)


def test_a_tree_that_holds_itself() -> None:
    tree: dict[str, Any] = {}
    tree["a"] = [tree]
    with pytest.raises(LimitError, match="a container may hold itself"):
        msgpack.msgpack_serialize(tree, in_place=True)
    assert not msgpack.validate_serializable(tree)[0]
    assert isinstance(msgpack.get_serialization_info(tree)["tree_structure"], str)


def test_arguments_have_the_peers_names() -> None:
    import inspect

    from eformer.pytree import _serialization as eformer

    for peer in (flax.serialization, eformer):
        for name in msgpack.__all__:
            theirs = getattr(peer, name, None)
            if callable(theirs):
                parameters = inspect.signature(getattr(msgpack, name)).parameters.values()
                ours = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
                expected = list(inspect.signature(theirs).parameters.values())
                assert [p.name for p in ours] == [p.name for p in expected], name
                assert [p.default for p in ours] == [p.default for p in expected], name


def test_values_are_counted_over_all_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("cordwood.formats.flax_msgpack.read_index")
    monkeypatch.setattr(module, "MAX_NODES", 10)
    with pytest.raises(LimitError, match="byte 7: more than 10 values"):
        read_index(MemoryFile(b"\x92\x95" + b"\xc0" * 5 + b"\x96" + b"\xc0" * 6))


def test_an_array_too_big_for_an_extension_is_planned_in_pieces_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    huge = np.broadcast_to(np.zeros((), np.uint8), (2**32,))
    plan, leaves = plan_state({"a": huge})  # in dicts it is stored in pieces
    assert plan.size_bytes > 2**32
    assert leaves[0] is huge
    monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", 2**33)
    message = "does not fit one msgpack extension, which holds 4294967295.*put it in a dict"
    with pytest.raises(UnsupportedLeafError, match=f"^a: .*{message}, lower MAX_CHUNK_SIZE"):
        plan_state({"a": huge})
