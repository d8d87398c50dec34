"""B1 to B19 of Flax's and eFormer's msgpack layer: the peers have them, cordwood does not.

Each test first shows the defect in the peer, so that it is known when one of them is mended.
"""

from __future__ import annotations

import dataclasses
import enum
import gzip
import os
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import equinox
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eformer.pytree import _serialization as eformer
from flax import nnx

import cordwood
from cordwood import from_state_dict, msgpack, register_serialization_state
from cordwood.errors import CorruptionError, FormatError, MismatchError, UnsupportedLeafError
from cordwood.testing import assert_trees_equal
from tests.memory import traced_memory
from tests.random_trees import assert_same


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">u8", ">c8", ">f8", ">M8[s]"])
def test_b1_big_endian_arrays_keep_their_values(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(1, 7).astype(dtype).reshape(2, 3)
    theirs = flax.serialization.from_bytes(None, flax.serialization.to_bytes({"w": array}))["w"]
    assert not np.array_equal(theirs, array)
    for size in (2**30, 8):
        monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", size)
        data = msgpack.to_bytes({"w": array, "l": [array.T, array[0, 0]]})
        for restored in (msgpack.from_bytes(None, data), flax.serialization.from_bytes(None, data)):
            assert np.array_equal(restored["w"], array)
            assert np.array_equal(restored["l"]["0"], array.T)
            assert restored["w"].dtype == array.dtype.newbyteorder("<")


UNREADABLE: list[tuple[Any, str]] = [
    (np.array(["ab", "c"]), "store a str, or numbers"),
    (np.array([b"ab", b"c"]), "store a bytes object, or a uint8 array"),
    (np.zeros(2, "V3"), "store each field as an array of its own"),
    (np.zeros(2, [("a", "i4"), ("b", "f4")]), "store each field as an array of its own"),
    (np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]), "store each field"),
    (np.str_("x"), "convert it with .item\\(\\)"),
    (np.bytes_(b"x"), "convert it with .item\\(\\)"),
    (np.zeros(2, jax.dtypes.float0), "float0 .*leave it out"),
]


@pytest.mark.parametrize(("leaf", "message"), UNREADABLE, ids=lambda x: type(x).__name__)
def test_b2_what_could_not_be_read_back_is_refused(leaf: Any, message: str) -> None:
    theirs = flax.serialization.to_bytes({"a": [leaf]})
    with pytest.raises((TypeError, ValueError)):
        flax.serialization.from_bytes(None, theirs)
    with pytest.raises(UnsupportedLeafError, match=f"^a/0: .*{message}"):
        msgpack.to_bytes({"a": [leaf]})
    with pytest.raises(FormatError, match=r"byte [0-9]+: expected a numeric dtype, found"):
        msgpack.msgpack_restore(theirs)


def test_b3_b4_strict_checks_types_shapes_dtypes_and_keys() -> None:
    stored = {"w": np.zeros(3, np.float32), "d": {"x": np.float32(1)}, "more": np.ones(1)}
    target = {"w": np.zeros((2, 2), np.int8), "d": np.zeros(1)}
    assert flax.serialization.from_bytes(target, flax.serialization.to_bytes(stored))
    state = msgpack.msgpack_restore(msgpack.to_bytes(stored))
    assert set(from_state_dict(target, state)) == {"w", "d"}  # lenient, as Flax's
    with pytest.raises(MismatchError) as caught:
        from_state_dict(target, state, strict=True)
    message = str(caught.value)
    assert "w: expected int8[2,2], found float32[3]" in message
    assert "d: " in message
    assert "more: " in message


def test_b5_flipped_bits_are_detected_where_the_format_has_room(tmp_path: Path) -> None:
    tree = {"w": np.arange(500, dtype=np.float32)}
    plain = bytearray(flax.serialization.to_bytes(tree))
    plain[-100] ^= 1
    assert not np.array_equal(flax.serialization.from_bytes(None, bytes(plain))["w"], tree["w"])
    path = tmp_path / "a.msgpack.zst"
    cordwood.save(path, tree)
    stored = bytearray(path.read_bytes())
    stored[-100] ^= 1
    path.write_bytes(stored)
    with pytest.raises((CorruptionError, FormatError), match=r"a\.msgpack\.zst"):
        cordwood.load(path)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Int(int):
    pass


class Text(str):
    __slots__ = ()


REFUSED: list[tuple[Any, str]] = [
    ({1, 2}, "a set cannot be stored; store a sorted list"),
    (frozenset(), "a frozenset cannot be stored"),
    (Colour.RED, "an enum .* cannot be stored; store its .value or .name"),
    (Level.LOW, "an enum .* cannot be stored"),
    (np.dtype("f4"), "a dtype .* cannot be stored; store its name"),
    (jnp.float32, "cannot be stored"),
    (Int(3), "is a subclass of int; convert it with int"),
    (Text("x"), "is a subclass of str; convert it with str"),
    (object(), "a value of type builtins.object cannot be stored"),
    (len, "a function or class .* cannot be stored; keep it out of the tree"),
    (jax.random.key(0), "a typed PRNG key .*jax.random.key_data"),
    (jax.ShapeDtypeStruct((2,), "float32"), "a ShapeDtypeStruct has no value to store"),
    (np.ma.masked_array([1, 2], [True, False]), "a masked array .*store its .data and .mask"),
    (np.array([object()]), "dtype object cannot be stored"),
    (np.zeros(1, np.dtype([("a", "i4"), ("b", "f8")], align=True)), "cannot be stored"),
    (2**64, "an int of 65 bits cannot be stored: msgpack's range is"),
    (-(2**63) - 1, "an int of 64 bits cannot be stored"),
    ("\ud800", "lone surrogate '.ud800' cannot be stored in msgpack"),
]


@pytest.mark.parametrize(("leaf", "message"), REFUSED, ids=lambda x: type(x).__name__)
def test_b6_errors_name_the_key_path(leaf: Any, message: str) -> None:
    tree = {"params": {"layers": [1, (leaf, 2)]}}
    peer_error: Any = Exception
    with pytest.raises(peer_error) as theirs:
        flax.serialization.to_bytes(tree)
    assert "params" not in str(theirs.value)
    with pytest.raises(UnsupportedLeafError, match=f"^params/layers/1/0: .*{message}") as ours:
        msgpack.to_bytes(tree)
    builtin = next(b for b in type(theirs.value).__mro__ if b.__module__ == "builtins")
    if builtin is UnicodeEncodeError:
        builtin = ValueError
    assert isinstance(ours.value, builtin), (builtin, type(ours.value))
    with pytest.raises(UnsupportedLeafError, match=f"^a/0: .*{message}"):
        msgpack.msgpack_serialize({"a": [leaf]})
    assert msgpack.validate_serializable(tree) == (False, [str(ours.value)])
    assert msgpack.get_serialization_info(tree)["is_serializable"] is False


@pytest.mark.parametrize(
    "tree", [(1,), OrderedDict(a=1), flax.core.freeze({"a": 1})], ids=lambda x: type(x).__name__
)
def test_b6_raw_calls_say_what_to_use(tree: Any) -> None:
    with pytest.raises(TypeError, match=r"^x: a .* cannot be stored as it is.*use to_bytes"):
        msgpack.msgpack_serialize({"x": tree})
    assert msgpack.to_bytes({"x": tree})


@pytest.mark.parametrize(
    "key", [(1, 2), frozenset(), Colour.RED, np.str_("k")], ids=lambda x: type(x).__name__
)
def test_b6_keys_that_cannot_be_stored(key: Any) -> None:
    with pytest.raises(UnsupportedLeafError, match=r"^a/.*cannot be stored"):
        msgpack.msgpack_serialize({"a": {key: 1}})


def test_b6_deleted_arrays() -> None:
    array = jnp.ones(3)
    array.delete()
    for error in (UnsupportedLeafError, RuntimeError):
        with pytest.raises(error, match=r"^w: the array was deleted or donated"):
            msgpack.to_bytes({"w": array})
    (ok, problems) = msgpack.validate_serializable({"w": array})
    assert not ok
    assert problems[0].startswith("w: the array was deleted")


def test_b6_tracers() -> None:
    with pytest.raises(UnsupportedLeafError, match=r"^w: a tracer has no value"):
        jax.jit(lambda x: msgpack.to_bytes({"w": x}))(1.0)


Legacy = namedtuple("Legacy", "name fields values")


def test_b7_no_dict_can_pose_as_an_array() -> None:
    marker = "__msgpack_chunked_array__"
    posing = {marker: True, "shape": {"0": 1}, "chunks": {"0": np.ones(1)}}
    for state in ({marker: 1}, posing):
        theirs = flax.serialization.to_bytes({"a": dict(state)})
        assert_fails_or_differs(theirs, {"a": state})
        for call in (msgpack.to_bytes, msgpack.to_buffers, msgpack.msgpack_serialize):
            with pytest.raises(UnsupportedLeafError, match=f"^a/{marker}: .*rename the key"):
                call({"a": state})
    assert msgpack.msgpack_restore(flax.serialization.msgpack_serialize({marker: 1})) == {marker: 1}


@pytest.mark.parametrize("chunks", [{}, {"0": np.ones(1)}, 1])
def test_b7_a_file_of_cordwood_never_loads_as_another_tree(chunks: Any, tmp_path: Path) -> None:
    tree = {"a": {"__msgpack_chunked_array__": True, "shape": {"0": 1}, "chunks": chunks}}
    for path in (tmp_path / "a.safetensors", tmp_path / "a"):
        cordwood.save(path, tree)
        assert_trees_equal(cordwood.load(path), tree)
    for suffix in ("msgpack", "msgpack.zst", "msgpack.gz"):
        with pytest.raises(UnsupportedLeafError, match=r"^a/__msg.*rename the key"):
            cordwood.save(tmp_path / f"a.{suffix}", tree)
    legacy = Legacy(np.ones(1), {"0": np.zeros(2)}, {"0": 5})
    for suffix in (".msgpack", ".safetensors", ""):
        cordwood.save(tmp_path / f"legacy{suffix}", legacy)
        assert_trees_equal(cordwood.load(tmp_path / f"legacy{suffix}", like=legacy), legacy)


def assert_fails_or_differs(data: bytes, state: Any) -> None:
    try:
        restored = flax.serialization.msgpack_restore(data)
    except (KeyError, ValueError):
        return
    assert type(restored["a"]) is not type(state["a"])


def test_b7_named_tuples_whose_fields_are_name_fields_values() -> None:
    tree = Legacy(np.ones(1), {"0": np.zeros(2)}, {"0": 5})
    with pytest.raises((ValueError, TypeError)):
        flax.serialization.from_bytes(tree, flax.serialization.to_bytes(tree))
    assert_same(msgpack.from_bytes(tree, msgpack.to_bytes(tree)), tree)


def test_b8_loaded_arrays_are_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", 64)
    tree = {"big": np.arange(100.0), "small": np.arange(3.0)}
    msgpack.save_to_file(tree, tmp_path / "a.msgpack")
    loaded = msgpack.load_from_file(tree, tmp_path / "a.msgpack")
    assert [leaf.flags.writeable for leaf in loaded.values()] == [True, True]


def test_b9_memory() -> None:
    tree = {f"w{i}": np.ones(1 << 20, np.float64) for i in range(4)}  # 32 MiB
    size = 32 << 20
    assert _peak(lambda: flax.serialization.to_bytes(tree)) > 1.9 * size
    assert _peak(lambda: msgpack.to_bytes(tree)) < 1.05 * size
    assert _peak(lambda: msgpack.to_buffers(tree)) < 0.05 * size
    data = msgpack.to_bytes(tree)
    assert _peak(lambda: flax.serialization.msgpack_restore(data)) > 0.9 * size
    assert _peak(lambda: msgpack.msgpack_restore(data)) < 0.05 * size


def _peak(call: Any) -> int:
    with traced_memory() as memory:
        call()
    return memory.peak_bytes


def test_b10_arrays_too_big_for_an_extension_are_refused_by_name() -> None:
    huge = np.broadcast_to(np.zeros((), np.uint8), (2**32,))
    message = "does not fit one msgpack extension, which holds 4294967295.*put it in a dict"
    with pytest.raises(ValueError, match=f"^a/0: an array of 4294967296 bytes {message}"):
        msgpack.msgpack_serialize({"a": [huge]})


class Held:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state


for _register in (
    register_serialization_state,
    flax.serialization.register_serialization_state,
):
    _register(Held, lambda held: held.state, lambda held, state: Held(state), override=True)


def test_b11_dicts_of_handlers_are_not_changed() -> None:
    array = jnp.ones(3)
    theirs, ours = Held({"w": array}), Held({"w": array})
    assert flax.serialization.to_bytes(theirs) == msgpack.to_bytes(ours)
    assert theirs.state["w"] is not array
    assert ours.state["w"] is array


def test_b11_the_raw_call_never_changes_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", 4)
    tree = {"b": jnp.ones(3), "a": {"w": np.ones(3)}}
    before = (list(tree), tree["b"], tree["a"])
    msgpack.msgpack_serialize(tree, in_place=True)
    msgpack.msgpack_serialize(tree)
    assert (list(tree), tree["b"], tree["a"]) == before


def test_b12_depth() -> None:
    tree: Any = np.ones(1)
    for _ in range(400):
        tree = {"a": [tree]}
    with pytest.raises(RecursionError):
        flax.serialization.to_bytes(tree)
    restored = msgpack.from_bytes(tree, msgpack.to_bytes(tree))
    for _ in range(400):
        restored = restored["a"][0]
    assert_same(restored, np.ones(1))


def test_b13_keys_that_cannot_be_sorted_keep_their_order() -> None:
    tree = {"b": 1, 2: {"z": 1, "a": 2}, None: 3}
    with pytest.raises(ValueError, match="Comparator raised exception"):
        flax.serialization.msgpack_serialize(dict(tree))
    data = msgpack.msgpack_serialize(tree)
    assert list(msgpack.msgpack_restore(data)) == ["b", 2, None]
    assert list(flax.serialization.msgpack_restore(data)) == ["b", 2, None]
    assert list(msgpack.msgpack_restore(data)[2]) == ["a", "z"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    size: int = dataclasses.field(metadata={"static": True}, default=3)


def b14_trees() -> dict[str, Any]:
    module = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    return {
        "OrderedDict": OrderedDict(b=1, a=np.ones(2)),
        "defaultdict": defaultdict(list, {"b": np.ones(2)}),
        "dataclass": Layer(np.ones(2)),
        "equinox module": equinox.nn.Linear(2, 3, key=jax.random.key(0)),
        "nnx state": nnx.state(module, nnx.Param),
        "nnx parameter": nnx.Param(jnp.ones(2)),
        "nnx parameters of a module": {"kernel": module.kernel},
        "typed PRNG key": {"rng": jax.random.key(7), "keys": jax.random.split(jax.random.key(1))},
    }


@pytest.mark.parametrize("name", b14_trees())
def test_b14_what_the_peers_refuse_is_stored(name: str, tmp_path: Path) -> None:
    tree = b14_trees()[name]
    for peer in (flax.serialization, eformer):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            peer.to_bytes(tree)
    in_msgpack = name != "typed PRNG key"  # for which Flax's format has no place
    for suffix in (".safetensors", "", ".msgpack")[: 2 + in_msgpack]:
        cordwood.save(tmp_path / f"tree{suffix}", tree)
        assert_trees_equal(cordwood.load(tmp_path / f"tree{suffix}", like=tree), tree)
    if in_msgpack:
        restored = msgpack.from_bytes(tree, msgpack.to_bytes(tree))
        assert type(restored) is type(tree)
        assert_trees_equal(jax.tree.leaves(restored), jax.device_get(jax.tree.leaves(tree)))


@pytest.mark.parametrize(
    ("leaf", "advice"),
    [({1}, "store a sorted list"), (Colour.RED, "store its .value"), (object(), "register it as")],
    ids=["set", "enum", "class"],
)
@pytest.mark.parametrize("suffix", [".msgpack", ".safetensors", ""])
def test_b14_what_is_no_data_is_refused(
    leaf: Any, advice: str, suffix: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedLeafError, match=f"^a/0: .*{advice}"):
        cordwood.save(tmp_path / f"tree{suffix}", {"a": [leaf]})
    assert not list(tmp_path.iterdir())


def test_b15_an_error_leaves_the_old_file_and_no_folder(tmp_path: Path) -> None:
    eformer.save_to_file({"w": 1}, os.fspath(tmp_path / "a"))
    with pytest.raises(TypeError):
        eformer.save_to_file({"w": {1}}, os.fspath(tmp_path / "theirs" / "a"))
    assert (tmp_path / "theirs").exists()
    for path in (tmp_path / "ours" / "a", tmp_path / "a"):
        with pytest.raises(UnsupportedLeafError, match=r"^w: a set"):
            msgpack.save_to_file({"w": {1}}, path)
    assert not (tmp_path / "ours").exists()
    assert msgpack.load_from_file(None, tmp_path / "a") == {"w": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "theirs"]


def test_b15_gzip_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = []
    for now in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda now=now: now)
        tree = {"w": np.arange(10)}
        streams.append((eformer.to_compressed_bytes(tree), msgpack.to_compressed_bytes(tree)))
    assert streams[0][0] != streams[1][0]
    assert streams[0][1] == streams[1][1]
    assert gzip.decompress(streams[0][1]) == msgpack.to_bytes(tree)


def test_b16_int_keys_are_readable() -> None:
    data = eformer.msgpack_serialize({1: np.ones(1)})
    with pytest.raises(ValueError, match="int is not allowed for map key"):
        eformer.msgpack_restore(data)
    assert_same(msgpack.msgpack_restore(data), {1: np.ones(1)})


def test_b19_registered_nodes() -> None:
    from eformer.pytree import auto_pytree

    @auto_pytree
    class Params:
        w: Any
        b: Any

    tree = {"p": Params(np.ones(2), jnp.zeros(1))}  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        eformer.to_bytes(tree)
    restored = msgpack.from_bytes(tree, msgpack.to_bytes(tree))
    assert type(restored["p"]) is Params
    assert_same(restored["p"].w, np.ones(2))


def test_b19_nested_trees_of_eformer(tmp_path: Path) -> None:
    from eformer.pytree import PyTree

    class Inner(PyTree):
        w: Any

    class Outer(PyTree):
        inner: Any
        scale: Any

    tree: Any = Outer(Inner(np.ones(2)), np.float32(2))
    with pytest.raises(TypeError):
        eformer.to_bytes(tree)
    cordwood.save(tmp_path / "a.safetensors", tree)
    for restored in (
        msgpack.from_bytes(tree, msgpack.to_bytes(tree)),
        cordwood.load(tmp_path / "a.safetensors", like=tree),
    ):
        assert type(restored) is Outer
        assert type(restored.inner) is Inner
        assert_same(restored.inner.w, np.ones(2))
        assert restored.scale == 2
