"""Errors of trees that do not fit or cannot be stored: they say where, what and what to do."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.errors import (
    CorruptionError,
    MismatchError,
    NotACheckpointError,
    StorageError,
    UnsupportedFormatError,
    UnsupportedLeafError,
)


class Color(enum.Enum):
    RED = 1


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "ckpt.safetensors"
    tree = {
        "params": {"dense": {"kernel": jnp.ones((4, 8), jnp.bfloat16), "bias": jnp.ones(8)}},
        "step": 3,
        "layers": [np.ones(1), np.ones(2)],
    }
    cordwood.save(path, tree)
    return path


def like() -> dict[str, Any]:
    return {
        "params": {"dense": {"kernel": jnp.ones((4, 8), jnp.bfloat16), "bias": jnp.ones(8)}},
        "step": 0,
        "layers": [np.ones(1), np.ones(2)],
    }


def test_every_difference_is_listed(stored: Path) -> None:
    reference = like()
    reference["params"]["dense"] = {"kernel": jnp.ones((4, 8)), "bais": jnp.ones(8)}
    reference["layers"] = (np.ones(1), np.ones(3))
    reference["step"] = 0.0
    with pytest.raises(MismatchError) as error:
        cordwood.load(stored, like=reference)
    text = str(error.value)
    assert f"of {stored} do not fit `like`:" in text
    for line in [
        "params/dense/kernel: expected float32[4,8], found bfloat16[4,8] (cast=True converts it)",
        "params/dense/bais: not in the checkpoint; did you mean params/dense/bias?",
        "params/dense/bias: in the checkpoint (float32[8]), not in `like`",
        "layers: expected tuple, found list",
        "layers/1: expected float64[3], found float64[2]",
        "step: expected float, found int",
    ]:
        assert line in text


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack"])
@pytest.mark.parametrize(
    ("saved", "expected", "problem"),
    [
        (None, {}, "x: expected"),
        ({}, None, "x: expected None, found"),
        (None, (), "x: expected"),
        (None, np.ones(1), r"1 leaf of .*\n  x: expected float64\[1\], found "),
        ({}, np.ones(1), r"1 leaf of .*\n  x: expected float64\[1\], found "),
    ],
)
def test_empty_containers_of_another_kind_do_not_fit(
    tmp_path: Path, suffix: str, saved: Any, expected: Any, problem: str
) -> None:
    path = tmp_path / f"a{suffix}"
    cordwood.save(path, {"x": saved, "y": 1})
    with pytest.raises(MismatchError, match=problem):
        cordwood.load(path, like={"x": expected, "y": 0})
    assert cordwood.load(path, like={"x": saved, "y": 0}) == {"x": saved, "y": 1}


def test_two_leaves_of_like_with_one_name(tmp_path: Path) -> None:
    path = tmp_path / "hf.safetensors"
    safetensors.numpy.save_file({"a.b": np.ones(1)}, path)
    with pytest.raises(MismatchError, match=r"has the name 'a\.b' too"):
        cordwood.load(path, like={"a.b": np.ones(1), "a": {"b": np.ones(1)}})


def test_cast_true_converts_to_the_dtypes_of_like(stored: Path) -> None:
    expected = like()
    expected["params"]["dense"]["kernel"] = jnp.zeros((4, 8), jnp.float32)
    got = cordwood.load(stored, like=expected, cast=True)
    assert got["params"]["dense"]["kernel"].dtype == jnp.float32
    np.testing.assert_array_equal(got["params"]["dense"]["kernel"], np.ones((4, 8)))


def test_cast_never_changes_a_value_on_the_way_to_integers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"n": np.array([-1])})
    with pytest.raises(MismatchError, match="n: casting int64 to uint64 would change"):
        cordwood.load(path, like={"n": np.zeros(1, np.uint64)}, cast=True)
    cordwood.save(path, {"n": np.array([3e9], np.float32)})
    with pytest.raises(MismatchError, match="n: casting float32 to int32 would change"):
        cordwood.load(path, like={"n": np.zeros(1, np.int32)}, cast=True)


def test_a_python_number_for_an_array_and_back(tmp_path: Path) -> None:
    """A fresh TrainState counts its steps in a Python int, one that was jitted in an array."""
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"step": jnp.array(5), "x": np.float64(2.5), "n": 7})
    like: dict[str, Any] = {"step": 0, "x": 0.0, "n": jnp.array(0)}
    with pytest.raises(MismatchError, match=r"expected int, found int32\[\] \(.*; cast=True"):
        cordwood.load(path, like=like)
    got = cordwood.load(path, like=like, cast=True)
    assert (type(got["step"]), got["step"]) == (int, 5)
    assert (type(got["x"]), got["x"]) == (float, 2.5)
    assert (got["n"].dtype, got["n"].item()) == (jnp.int32, 7)
    with pytest.raises(MismatchError, match="x: casting float64 to int would change"):
        cordwood.load(path, like={**like, "x": 0}, cast=True)


def test_not_strict_ignores_extras_and_containers_alone(stored: Path) -> None:
    expected = {"params": {"dense": {"kernel": jnp.ones((4, 8), jnp.bfloat16)}}}
    got = cordwood.load(stored, like=expected, strict=False)
    assert got["params"]["dense"]["kernel"].shape == (4, 8)
    for kernel in (jnp.ones((1, 1)), jnp.ones((4, 8), jnp.int32), jnp.ones((8, 4)), 7):
        like = {"params": {"dense": {"kernel": kernel}}}
        with pytest.raises(MismatchError, match=r"kernel: expected .*, found bfloat16\[4,8\]"):
            cordwood.load(stored, like=like, strict=False)
    with pytest.raises(MismatchError, match="nothere: not in the checkpoint"):
        cordwood.load(stored, like={"nothere": np.ones(1)}, strict=False)


def test_int64_into_jax_without_x64(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    cordwood.save(path, {"n": np.array([2**40 + 1])})
    with pytest.raises(MismatchError, match=r'n: int64|to="numpy"') as error:
        cordwood.load(path, to="jax")
    assert "jax_enable_x64" in str(error.value)
    assert cordwood.load(path)["n"][0] == 2**40 + 1


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack"])
@pytest.mark.parametrize(
    ("leaf", "advice"),
    [
        (Color.RED, "store its .value or .name"),
        (np.dtype("f4"), "store its name"),
        (np.float32, "store its name"),
        (np.array(["a"]), "a: "),
        (np.array([b"a"]), "a: "),
        (np.zeros(2, "V3"), "a: "),
        (np.zeros(2, [("x", "f4")]), "a: "),
        (np.array([object()]), "a: "),
        (np.ma.masked_array([1, 2], [True, False]), "masked"),
        ({1, 2}, "set"),
        (object(), "object"),
        (lambda: 0, "a: "),
    ],
    ids=[
        "enum", "dtype", "scalar-type", "str-array", "bytes-array", "void-array",
        "structured-array", "object-array", "masked", "set", "object", "function",
    ],
)  # fmt: skip
def test_a_leaf_that_cannot_be_stored_is_refused_with_advice(
    tmp_path: Path, suffix: str, leaf: Any, advice: str
) -> None:
    path = tmp_path / f"x{suffix}"
    with pytest.raises(UnsupportedLeafError) as error:
        cordwood.save(path, {"m": {"a": leaf}})
    assert "m/a" in str(error.value)
    assert advice in str(error.value)
    assert not list(tmp_path.iterdir()), "a refused save left something behind"


def test_tracers_deleted_arrays_and_abstract_values(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"

    def step(x: jax.Array) -> jax.Array:
        cordwood.save(path, {"x": x})
        return x

    with pytest.raises(UnsupportedLeafError, match="x: a tracer has no value"):
        jax.jit(step)(jnp.ones(2))
    gone = jnp.ones(2)
    gone.delete()
    with pytest.raises(UnsupportedLeafError, match="x: the array was deleted"):
        cordwood.save(path, {"x": gone})
    with pytest.raises(UnsupportedLeafError, match="ShapeDtypeStruct has no value"):
        cordwood.save(path, {"x": jax.ShapeDtypeStruct((2,), jnp.float32)})


@pytest.mark.parametrize("name", ["x.safetensor", "x.npz", "x.eqx", "x.msgpck", "x.NPZ", "x.pt"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"expected a name that ends in"):
        cordwood.save(tmp_path / name, {"a": 1})
    assert not list(tmp_path.iterdir())


def test_format_beats_suffix(tmp_path: Path) -> None:
    path = tmp_path / "flax_model.bin"
    cordwood.save(path, {"a": 1}, format="msgpack")
    assert cordwood.load(path, format="msgpack") == {"a": 1}
    with pytest.raises(UnsupportedFormatError, match="format 'zip' is unknown"):
        cordwood.load(path, format="zip")


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack", ".msgpack.gz", ".msgpack.zst"])
def test_never_replaces_what_is_no_checkpoint(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"thesis{suffix}"
    path.write_bytes(b"three years of work")
    with pytest.raises(NotACheckpointError, match=r"is not a .* checkpoint"):
        cordwood.save(path, {"a": 1})
    assert path.read_bytes() == b"three years of work"
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError, match="one file"):
        cordwood.save(path, {"a": 1})


GREEK, CYRILLIC, HEBREW, ARABIC = (
    "\u03b1\u03b2\u03b3",
    "\u043f\u0440",
    "\u05e9\u05dc",
    "\u0644\u0645",
)


@pytest.mark.parametrize(
    "text",
    [
        *["7\n", "12", "a title\n", "\xdcberschrift", "\ufeffx", "[1, 2]", "{}", "\u4e2d\u6587"],
        *[GREEK, CYRILLIC, HEBREW, ARABIC, GREEK * 10, CYRILLIC * 10, HEBREW * 10, ARABIC * 10],
    ],
    ids=ascii,
)
def test_text_is_no_msgpack(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.msgpack"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NotACheckpointError, match="is not a msgpack checkpoint"):
        cordwood.save(path, {"a": 1})
    assert path.read_text(encoding="utf-8") == text


def test_a_file_of_one_letter_is_a_tree_too(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    cordwood.save(path, 97)
    assert path.read_text() == "a"
    cordwood.save(path, 98)
    assert path.read_text() == "b"


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack"])
@pytest.mark.parametrize(
    "tree",
    [
        *[0, 7, 97, -5, -127, 2**40, 2.5, True, None, "", "hello", "word " * 30, b"bytes", 1j],
        *[np.float32(1), np.ones(3), [], {}, [1, 2], {"a": {}}, "é" * 70],
    ],
    ids=lambda tree: repr(tree)[:20],
)
def test_whatever_was_saved_is_overwritten(tmp_path: Path, suffix: str, tree: Any) -> None:
    path = tmp_path / f"x{suffix}"
    cordwood.save(path, tree)
    cordwood.save(path, {"a": 2})
    assert cordwood.load(path) == {"a": 2}


def test_a_damaged_safetensors_checkpoint_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"a": np.ones(3)})
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # in the digest of the header
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        cordwood.load(path)
    cordwood.save(path, {"a": 2})
    assert cordwood.load(path) == {"a": 2}


def test_overwrites_checkpoints_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.touch()
    cordwood.save(path, {"a": 1})
    cordwood.save(path, {"a": 2})
    assert cordwood.load(path) == {"a": 2}


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nope\.safetensors"):
        cordwood.load(tmp_path / "nope.safetensors")


def test_prng_keys_of_another_implementation(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"k": jax.random.key(0)})
    with pytest.raises(MismatchError, match=r"expected key<rbg>\[\], found key<threefry"):
        cordwood.load(path, like={"k": jax.random.key(0, impl="rbg")})


def test_msgpack_has_no_place_for_metadata(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no place for metadata"):
        cordwood.save(tmp_path / "x.msgpack", {}, metadata={"a": "b"})


@pytest.mark.parametrize("name", ["loop", "loop.safetensors", "loop/within"])
@pytest.mark.parametrize("call", [cordwood.load, cordwood.open, cordwood.verify, cordwood.detect])
def test_a_symbolic_link_to_itself_is_refused(
    tmp_path: Path, name: str, call: Callable[[Path], object]
) -> None:
    path = tmp_path / name
    link = tmp_path / name.split("/")[0]
    link.symlink_to(link.name)
    message = f"a symbolic link leads back to itself; expected a checkpoint: '{path}'"
    with pytest.raises(StorageError, match=message):
        call(path)
    with pytest.raises(StorageError, match=message):
        cordwood.save(path, {"a": 1})


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".safetensors", "x/" * 3000])
@pytest.mark.parametrize("call", [cordwood.load, cordwood.open, cordwood.verify, cordwood.detect])
def test_names_that_nothing_can_have(
    tmp_path: Path, name: str, call: Callable[[Path], object]
) -> None:
    with pytest.raises(StorageError, match=f"longer than a name .*: '{tmp_path}/xx?"):
        call(tmp_path / name)
    with pytest.raises(StorageError, match="longer than a name or a path can be"):
        cordwood.save(tmp_path / name, {"a": 1})


@pytest.mark.parametrize("name", ["x.bin", "x.safetensor", "x.pt", "x.npz", "x.zarr", "x"])
@pytest.mark.parametrize("call", [cordwood.load, cordwood.open, cordwood.verify, cordwood.detect])
def test_nothing_is_there_whatever_its_suffix(
    tmp_path: Path, name: str, call: Callable[[Path], object]
) -> None:
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/{name}'"):
        call(tmp_path / name)
