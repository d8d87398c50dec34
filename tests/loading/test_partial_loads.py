"""load with select, rename, missing, extra and cast: the same of every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import cordwood
from cordwood.errors import CorruptionError, MismatchError
from cordwood.testing import assert_trees_equal

Store: TypeAlias = Callable[[Any], Path]


@pytest.fixture(
    params=[".safetensors", ".msgpack", ".msgpack.zst", "packs", "zarr", "zarr-zstd", "flax"]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kind = request.param

    def write(tree: Any) -> Path:
        if kind == "flax":
            path = tmp_path / "theirs.msgpack"
            path.write_bytes(flax.serialization.to_bytes(tree))
        elif kind.startswith("."):
            path = tmp_path / f"ours{kind}"
            cordwood.save(path, tree)
        else:
            layout, _, compression = kind.partition("-")
            path = tmp_path / "directory"
            cordwood.save(path, tree, format=layout, compression=compression or None)
        return path

    return write


def state() -> dict[str, Any]:
    return {
        "opt": ({"mu": jnp.zeros(4)}, None),
        "params": {
            "dense": {"bias": jnp.ones(4, jnp.bfloat16), "kernel": jnp.arange(32.0).reshape(8, 4)},
            "layers": [{"w": jnp.full(3, i, jnp.float32)} for i in range(3)],
        },
        "step": 7,
    }


def other_state() -> dict[str, Any]:
    """Return the same tree with other values."""
    return jax.tree.map(lambda leaf: leaf + 1, state())


def test_some_leaves_without_like(store: Store) -> None:
    path = store(state())
    loaded = cordwood.load(path, select=["params/dense", "step"])
    assert list(loaded) == ["params", "step"]
    assert list(loaded["params"]) == ["dense"]
    assert_trees_equal(
        jax.tree.map(np.asarray, loaded["params"]["dense"]),
        jax.tree.map(np.asarray, state()["params"]["dense"]),
    )
    assert loaded["step"] == 7


def test_some_elements_of_a_list(store: Store) -> None:
    path = store(state())
    loaded = cordwood.load(path, select="params/layers/[12]/**")["params"]["layers"]
    keys = ["1", "2"] if path.suffix in (".msgpack", ".zst") else [1, 2]
    assert list(loaded) == keys
    np.testing.assert_array_equal(loaded[keys[1]]["w"], np.full(3, 2.0))


def test_a_part_of_like_keeps_the_other_leaves(store: Store) -> None:
    path = store(state())
    like = other_state()
    loaded = cordwood.load(path, like=like, select="params/**", missing="keep")
    assert_trees_equal(loaded, {**like, "params": state()["params"]})
    assert loaded["opt"][0]["mu"] is like["opt"][0]["mu"]


def test_a_like_of_the_part_alone(store: Store) -> None:
    path = store(state())
    like = {"params": other_state()["params"]}
    assert_trees_equal(
        cordwood.load(path, like=like, select="params"), {"params": state()["params"]}
    )
    assert_trees_equal(
        cordwood.load(path, like=like, extra="ignore"), {"params": state()["params"]}
    )


def test_some_elements_of_a_list_into_like(store: Store) -> None:
    path = store(state())
    like = other_state()
    loaded = cordwood.load(path, like=like, select="params/layers/1", missing="keep")
    like["params"]["layers"][1] = state()["params"]["layers"][1]
    assert_trees_equal(loaded, like)


def test_renamed_leaves_fit_like(store: Store) -> None:
    path = store(state())
    like = {
        "model": {"proj": state()["params"]["dense"]},
        "blocks": [{"weight": jnp.zeros(3)} for _ in range(3)],
        "count": 0,
    }
    rename = {
        "params/dense": "model/proj",
        "params/layers/*/w": "blocks/*/weight",
        "step": "count",
    }
    loaded = cordwood.load(path, like=like, rename=rename, select=["params", "step"])
    expected = {
        "model": {"proj": state()["params"]["dense"]},
        "blocks": [{"weight": layer["w"]} for layer in state()["params"]["layers"]],
        "count": 7,
    }
    assert_trees_equal(loaded, expected)
    plain = cordwood.load(path, rename=rename, select=["params", "step"])
    np.testing.assert_array_equal(plain["model"]["proj"]["kernel"], np.arange(32.0).reshape(8, 4))
    assert set(plain) == {"model", "blocks", "count"}


def test_what_was_not_selected_is_not_there_for_like(store: Store) -> None:
    path = store(state())
    with pytest.raises(MismatchError) as error:
        cordwood.load(path, like=state(), select="params/dense/**")
    text = str(error.value)
    assert text.count(": in the checkpoint, but not selected (missing=") == 5
    for name in ("w", "mu", "step"):
        assert f"{name}: in the checkpoint, but not selected (missing=" in text
    assert "kernel" not in text


def test_every_mismatch_in_one_message(store: Store) -> None:
    path = store(state())
    like = other_state()
    like["params"]["dense"] = {
        "kernel": jnp.zeros((8, 5)),
        "bais": jnp.zeros(4, jnp.bfloat16),
        "scale": jnp.zeros(4),
    }
    with pytest.raises(MismatchError) as error:
        cordwood.load(path, like=like)
    text = str(error.value)
    for line in (
        "4 leaves of ",
        "params/dense/kernel: expected float32[8,5], found float32[8,4]",
        "params/dense/bais: not in the checkpoint; did you mean params/dense/bias?",
        'params/dense/scale: not in the checkpoint (missing="keep" keeps the value of `like`)',
        "params/dense/bias: in the checkpoint (bfloat16[4]), not in `like` (extra=",
        '(extra="ignore" skips it)',
    ):
        assert line in text
    with pytest.raises(MismatchError, match="1 leaf of") as error:
        cordwood.load(path, like=like, missing="keep", extra="ignore")
    assert "params/dense/kernel: expected float32[8,5]" in str(error.value)


THEIRS = {f"h.{i}.attn.weight": np.ones(2, np.float32) for i in range(4)}
OURS = {"blocks": [{"q": np.zeros(2, np.float32)} for _ in range(4)]}


@pytest.mark.parametrize("passing", [{"extra": "ignore"}, {"strict": False}])
def test_a_load_that_would_keep_all_of_like_is_refused(store: Store, passing: Any) -> None:
    path = store(THEIRS)
    with pytest.raises(MismatchError) as error:
        cordwood.load(path, like=OURS, missing="keep", **passing)
    assert str(error.value).replace("'", "") == (
        f"no leaf of `like` is in {path}; the names differ: use rename= "
        "(docs/how-to/hugging-face.md)\n"
        "  in `like`: blocks/0/q, blocks/1/q, blocks/2/q and 1 more\n"
        "  in the checkpoint: h.0.attn.weight, h.1.attn.weight, h.2.attn.weight and 1 more"
    )
    with pytest.raises(MismatchError, match=" as it is selected; the names differ"):
        cordwood.load(path, like=OURS, select="h.0.*", missing="keep", **passing)


def test_a_load_that_would_keep_all_says_where_like_is_in_the_checkpoint(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"params": {"w": np.ones(2)}, "step": 1})
    hint = r'the checkpoint has all leaves of `like` under params: pass select="params", rename='
    with pytest.raises(MismatchError, match=hint):
        cordwood.load(tmp_path / "a", like={"w": np.zeros(2)}, missing="keep", extra="ignore")


def test_an_empty_checkpoint_and_a_like_without_arrays_keep_all(tmp_path: Path) -> None:
    keep: Any = {"missing": "keep", "extra": "ignore"}
    cordwood.save(tmp_path / "empty", {})
    assert cordwood.load(tmp_path / "empty", like={"w": 1.0, "v": np.ones(1)}, **keep)["w"] == 1.0
    cordwood.save(tmp_path / "a", {"w": np.ones(2)})
    assert cordwood.load(tmp_path / "a", like={"n": 3}, **keep) == {"n": 3}


def test_names_that_all_differ_are_said_so_first(store: Store) -> None:
    path = store(THEIRS)
    with pytest.raises(MismatchError) as error:
        cordwood.load(path, like=OURS)
    lines = str(error.value).replace("'", "").splitlines()
    assert lines[:3] == [
        f"8 leaves of {path} do not fit `like`:",
        "  no leaf has the same name: use rename= (docs/how-to/hugging-face.md)",
        "  blocks/0/q: not in the checkpoint",
    ]
    assert lines[-1] == "  h.3.attn.weight: in the checkpoint (float32[2]), not in `like`"
    assert "missing=" not in str(error.value)
    assert "extra=" not in str(error.value)


def test_a_shape_is_never_kept_as_a_value(store: Store) -> None:
    path = store(state())
    like = {**state(), "new": {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}}
    with pytest.raises(MismatchError) as error:
        cordwood.load(path, like=like, missing="keep")
    assert str(error.value).endswith(
        'new/w: not in the checkpoint, and `like` has no value for missing="keep" to keep, only a '
        "shape and a dtype"
    )


def test_any_object_is_kept(store: Store) -> None:
    path = store(state())
    marker = np.array(["text"])  # which no checkpoint could hold
    loaded = cordwood.load(path, like={**state(), "new": marker}, missing="keep")
    assert loaded["new"] is marker


@pytest.mark.parametrize("argument", ["select", "rename"])
def test_a_misspelt_pattern_gets_a_hint(store: Store, argument: str) -> None:
    path = store(state())
    wish: Any = {"select": "parms/dense", "rename": {"parms/dense": "x"}}[argument]
    with pytest.raises(MismatchError) as error:
        cordwood.load(path, **{argument: wish})
    assert str(error.value) == (
        f"{argument} matches no leaf of {path}:\n  'parms/dense'; did you mean 'params/dense'?"
    )


def test_a_part_is_loaded_onto_a_mesh(store: Store) -> None:
    path = store(state())
    mesh = jax.make_mesh((8,), ("x",))
    loaded = cordwood.load(
        path,
        mesh=mesh,
        select="params/dense/kernel",
        rename={"params/dense/kernel": "w"},
        rules=[("^w$", PartitionSpec("x"))],
    )
    assert loaded["w"].sharding == NamedSharding(mesh, PartitionSpec("x"))
    np.testing.assert_array_equal(loaded["w"], np.arange(32.0).reshape(8, 4))
    like: dict[str, Any] = {
        "params": {
            "dense": {
                "kernel": jax.ShapeDtypeStruct(
                    (8, 4), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None))
                ),
                "bias": jnp.zeros(4),
            }
        }
    }
    kept = like["params"]["dense"]["bias"]
    dense = cordwood.load(path, like=like, select="**/kernel", missing="keep")["params"]["dense"]
    assert dense["kernel"].sharding == like["params"]["dense"]["kernel"].sharding
    assert dense["bias"] is kept


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", jnp.bfloat16, np.dtype(jnp.bfloat16)])
def test_floats_of_another_dtype(store: Store, dtype: Any) -> None:
    tree: dict[str, Any] = {
        "w": np.linspace(0, 1, 9),
        "n": np.arange(3),
        "x": 1.5,
        "c": np.ones(2, np.complex64),
    }
    loaded = cordwood.load(store(tree), cast=dtype)
    assert loaded["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(loaded["w"], tree["w"].astype(jnp.bfloat16))
    assert (loaded["n"].dtype, loaded["c"].dtype, loaded["x"]) == (np.int64, np.complex64, 1.5)


def test_the_first_pattern_of_cast_decides(store: Store) -> None:
    tree = {"a": {"w": np.ones(3), "n": np.arange(3)}, "b": np.ones(2)}
    loaded = cordwood.load(store(tree), cast={"a/n": "uint8", "a/**": "f32", "b": np.float16})
    assert loaded["a"]["w"].dtype == np.float32
    assert loaded["a"]["n"].dtype == np.uint8
    assert loaded["b"].dtype == np.float16
    with pytest.raises(
        MismatchError,
        match=r"a/n: casting int64 to int8 would change values, the first of them 300;",
    ):
        cordwood.load(store({"a": {"n": np.array([7, 300])}}), cast={"a/n": "int8"})


def test_a_pattern_leaves_integers_as_they_are(store: Store) -> None:
    tree = {"ids": np.array([1, 257, 1001]), "mask": np.array([True, False]), "w": np.ones(3)}
    for pattern in ("**", "*"):
        loaded = cordwood.load(store(tree), cast={pattern: "bf16"})
        assert_trees_equal(loaded, {**tree, "w": np.ones(3, jnp.bfloat16)})
    loaded = cordwood.load(store(tree), cast={"**": "bf16", "ids": "int16", "mask": "uint8"})
    assert [loaded[key].dtype.name for key in ("ids", "mask", "w")] == [
        "int16",
        "uint8",
        "bfloat16",
    ]
    np.testing.assert_array_equal(loaded["ids"], tree["ids"])


def test_a_container_is_no_exact_pattern(store: Store) -> None:
    path = store({"tokens": {"ids": np.arange(3), "scale": np.ones(2)}})
    loaded = cordwood.load(path, cast={"tokens": "bf16"})["tokens"]
    assert (loaded["ids"].dtype, loaded["scale"].dtype) == (np.int64, jnp.bfloat16)


def test_a_pattern_that_takes_integers_alone_is_an_error(store: Store) -> None:
    path = store({"tokens": {"ids": np.arange(3), "more": np.arange(2)}, "w": np.ones(2)})
    with pytest.raises(
        MismatchError,
        match=r"'tokens/\*\*': a pattern casts floating arrays only, and this one takes "
        r"tokens/ids \(int64\) and 1 more; name each integer array exactly: "
        r"\{'tokens/ids': 'int32'\}",
    ):
        cordwood.load(path, cast={"tokens/**": "int32", "w": "f32"})


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([1, 257]), "bf16"),
        (np.array([1, (1 << 24) + 1], np.int32), "f32"),
        (np.array([1, (1 << 63) - 1]), "f64"),
        (np.array([1, (1 << 64) - 1], np.uint64), "f64"),
        (np.array([1, 70000]), "f16"),
        (np.array([1, (1 << 53) + 1]), "complex128"),
    ],
)
def test_an_integer_that_no_float_can_hold_is_refused(
    tmp_path: Path, values: np.ndarray[Any, Any], dtype: str
) -> None:
    path = tmp_path / "n.safetensors"
    cordwood.save(path, {"n": values})
    zeros = np.zeros(
        2, {"bf16": jnp.bfloat16, "f16": "f2", "f32": "f4", "f64": "f8"}.get(dtype, dtype)
    )
    for cast, like in [({"n": dtype}, None), (True, {"n": zeros})]:
        with pytest.raises(MismatchError, match=f"n: casting .* would change .* {values[1]};"):
            cordwood.load(path, like=like, cast=cast)


def test_a_conversion_that_numpy_lacks_names_the_leaf(tmp_path: Path) -> None:
    path = tmp_path / "n.safetensors"
    cordwood.save(path, {"n": np.zeros(2, "int4")})
    with pytest.raises(MismatchError, match="n: there is no conversion from int4 to uint2"):
        cordwood.load(path, cast={"n": "uint2"})


def test_an_integer_that_a_float_can_hold_becomes_one(store: Store) -> None:
    path = store({"n": np.array([0, -256, 4096])})
    np.testing.assert_array_equal(cordwood.load(path, cast={"n": "bf16"})["n"], [0, -256, 4096])


def test_weak_types_do_not_outlive_a_cast(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    cordwood.save(path, {"x": jnp.asarray(1.5)})
    assert cordwood.load(path)["x"].weak_type
    loaded = cordwood.load(path, cast="bf16")["x"]
    assert (loaded.dtype, loaded.weak_type) == (jnp.bfloat16, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cast": "int8"}, "cast='int8': a dtype by itself is for floating arrays"),
        ({"cast": "bf17"}, r"unknown dtype 'bf17'; did you mean 'bf16'\?"),
        ({"cast": True}, r"cast=True converts to the dtypes of `like`: pass one, or a dtype"),
        ({"missing": "keep"}, "missing='keep' is about the leaves of `like`: pass one"),
        ({"extra": "ignore"}, "extra='ignore' is about the leaves of `like`: pass one"),
        ({"missing": "drop", "like": {}}, 'missing=\'drop\': expected "error" or "keep"'),
        ({"extra": "drop", "like": {}}, 'extra=\'drop\': expected "error" or "ignore"'),
        ({"select": []}, "select: there is no pattern; None selects everything"),
        ({"rename": {"*": "c"}}, r"rename: '\*' has the wildcards \*, and 'c' none"),
    ],
)
def test_arguments_that_say_nothing(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, {"a": 1})
    with pytest.raises(ValueError, match=message):
        cordwood.load(path, **arguments)


def test_names_of_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {f"model.layers.{i}.attn.weight": np.full((2, 2), i) for i in range(2)}
    safetensors.numpy.save_file({**arrays, "model.norm.weight": np.ones(2)}, path)
    rename = {"model.layers.*.attn.weight": "layers/*/kernel", "model.norm.weight": "norm"}
    loaded = cordwood.load(path, rename=rename)
    assert_trees_equal(
        loaded, {"layers": [{"kernel": np.full((2, 2), i)} for i in range(2)], "norm": np.ones(2)}
    )
    like = {"layers": [{"kernel": np.zeros((2, 2), int)} for _ in range(2)], "norm": np.zeros(2)}
    assert_trees_equal(cordwood.load(path, like=like, rename=rename), loaded)
    nested = cordwood.load(path, nest=True, rename={"model.*": "*"}, select="model.layers.*")
    assert set(nested["layers"]) == {"0", "1"}
    with pytest.raises(ValueError, match="rename has made paths of some"):
        cordwood.load(path, nest=True, rename=rename)


def test_names_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays: dict[str, Any] = {"params/dense/w": np.ones(2), "params/b": np.zeros(3)}
    np.savez(path, step=np.array(7), **arrays)
    loaded = cordwood.load(path, select="params/**")
    assert sorted(loaded) == ["params/b", "params/dense/w"]
    like = {"model": {"w": np.zeros(2)}, "b": np.ones(3)}
    rename = {"params/dense": "model", "params/b": "b"}
    got = cordwood.load(path, like=like, rename=rename, extra="ignore")
    assert_trees_equal(got, {"model": {"w": np.ones(2)}, "b": np.zeros(3)})


def test_only_what_is_selected_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    cordwood.save(path, {"a": np.ones(1 << 20), "b": np.ones(1 << 20)})
    with cordwood.open(path) as checkpoint:
        (piece,) = checkpoint.index.leaves[1].storage.pieces  # type: ignore[union-attr]
    with path.open("r+b") as file:
        file.seek(piece.offset + (4 << 20))
        file.write(b"damage")
    assert cordwood.load(path, select="a")["a"].sum() == 1 << 20
    with pytest.raises(CorruptionError):
        cordwood.load(path, select="b")


def test_what_is_selected_is_mapped(store: Store) -> None:
    path = store(state())
    loaded = cordwood.load(path, select="**/kernel", mmap=True, to="numpy")
    np.testing.assert_array_equal(
        loaded["params"]["dense"]["kernel"], np.arange(32.0).reshape(8, 4)
    )
