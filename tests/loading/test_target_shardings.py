"""Devices of loaded leaves: meshes, rules and shardings, and the errors of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError
from tests.shardings import mesh_of, sharding

TREE: dict[str, Any] = {
    "dense": {"kernel": np.ones((8, 4), np.float32), "bias": np.ones(8, np.float32)},
    "layers": [{"w": np.ones((2, 8), np.float32)}, {"w": np.ones((2, 8), np.float32)}],
    "scale": np.float32(1.5),
    "count": np.array(3, np.int32),
    "step": 7,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "x.safetensors", TREE)
    return tmp_path / "x.safetensors"


def test_a_mesh_alone_replicates(path: Path) -> None:
    mesh = mesh_of(4, 2)
    tree = cordwood.load(path, mesh=mesh)
    for array in (tree["dense"]["kernel"], tree["count"], tree["layers"][1]["w"]):
        assert array.sharding == NamedSharding(mesh, P())
    assert tree["step"] == 7
    assert type(tree["scale"]) is np.float32


def test_a_mesh_leaves_the_shardings_of_like(path: Path) -> None:
    cut = sharding(P("x"), 2)
    like = {**TREE, "count": jax.ShapeDtypeStruct((), np.int32)}
    like["dense"] = {
        "kernel": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=cut),
        "bias": np.ones(8, np.float32),
    }
    mesh = mesh_of(8)
    tree = cordwood.load(path, like=like, mesh=mesh)
    assert tree["dense"]["kernel"].sharding == cut
    assert tree["dense"]["bias"].sharding == NamedSharding(mesh, P())
    assert tree["count"].sharding == NamedSharding(mesh, P())


def test_the_first_matching_rule_gives_the_sharding(path: Path) -> None:
    mesh = mesh_of(4, 2)
    rules = [("kernel$", P("x", "y")), (r"layers/\d/w", P(None, "x")), ("dense", P("y", "x"))]
    tree = cordwood.load(path, mesh=mesh, rules=rules)
    assert tree["dense"]["kernel"].sharding == NamedSharding(mesh, P("x", "y"))
    assert tree["dense"]["bias"].sharding == NamedSharding(mesh, P("y"))  # cut to one axis
    assert tree["layers"][0]["w"].sharding == NamedSharding(mesh, P(None, "x"))
    assert tree["count"].sharding == NamedSharding(mesh, P())
    with pytest.raises(
        ValueError, match=r"^rules: no pattern .* 2 names layers/0/w, layers/1/w; add rules"
    ):
        cordwood.load(path, mesh=mesh, rules=rules[:1] + rules[2:])
    with pytest.raises(ValueError, match="need a mesh: pass mesh="):
        cordwood.load(path, rules=rules)


@pytest.mark.parametrize(
    "shardings",
    [
        {"dense": {"kernel": P("x")}, "layers": [{"w": P(None, "y")}, {"w": P(None, "y")}]},
        {"dense.kernel": P("x"), "layers.0.w": P(None, "y"), "layers.1.w": P(None, "y")},
        {"dense/kernel": P("x"), "layers": P(None, "y")},
        {"": P(), "dense.kernel": P("x"), "layers.0": P(None, "y"), "layers/1/w": P(None, "y")},
    ],
    ids=["tree", "dotted", "prefix", "all"],
)
def test_an_entry_of_shardings_applies_to_all_below_it(path: Path, shardings: Any) -> None:
    mesh = mesh_of(4, 2)
    tree = cordwood.load(path, mesh=mesh, shardings=shardings)
    assert tree["dense"]["kernel"].sharding == NamedSharding(mesh, P("x"))
    assert tree["layers"][1]["w"].sharding == NamedSharding(mesh, P(None, "y"))
    assert tree["dense"]["bias"].sharding == NamedSharding(mesh, P())


def test_shardings_come_before_rules(path: Path) -> None:
    mesh = mesh_of(4, 2)
    tree = cordwood.load(path, mesh=mesh, rules=[("", P("y"))], shardings={"dense/bias": P("x")})
    assert tree["dense"]["bias"].sharding == NamedSharding(mesh, P("x"))
    assert tree["dense"]["kernel"].sharding == NamedSharding(mesh, P("y"))


def test_shardings_without_a_mesh(path: Path) -> None:
    cut = sharding(P("x"), 2)
    tree = cordwood.load(path, shardings={"dense/kernel": cut})
    assert tree["dense"]["kernel"].sharding == cut
    assert type(tree["dense"]["bias"]) is np.ndarray
    with pytest.raises(ValueError, match=r"dense/kernel: P.* needs a mesh: pass mesh="):
        cordwood.load(path, shardings={"dense/kernel": P("x")})


def test_an_entry_for_no_leaf(path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no leaf 'dense\.kernal'; did you mean dense/kernel"
    ):
        cordwood.load(path, shardings={"dense.kernal": sharding(P(), 2)})


def test_two_entries_for_a_leaf(path: Path) -> None:
    shardings = {"dense": {"bias": sharding(P(), 2)}, "dense/bias": sharding(P("x"), 2)}
    with pytest.raises(ValueError, match="two entries for 'dense/bias'"):
        cordwood.load(path, shardings=shardings)


def test_what_is_no_sharding(path: Path) -> None:
    with pytest.raises(TypeError, match=r"dense/bias: expected a jax Sharding.* found str"):
        cordwood.load(path, shardings={"dense": {"bias": "x"}})


def test_shapes_that_cannot_be_cut_are_all_named(path: Path) -> None:
    with pytest.raises(MismatchError) as caught:
        cordwood.load(path, mesh=mesh_of(8), rules=[("kernel|w", P(None, "x")), ("", P("x"))])
    assert "dense/kernel: shape [8, 4] cannot be partitioned by" in str(caught.value)
    assert "dense/bias" not in str(caught.value)
    like = {**TREE, "dense": {"kernel": None, "bias": np.ones(8, np.float32)}}
    like["dense"]["kernel"] = jax.ShapeDtypeStruct(
        (8, 4), np.float32, sharding=sharding(P(None, "x"), 8)
    )
    with pytest.raises(MismatchError, match=r"dense/kernel: .*dimension 1 has size 4"):
        cordwood.load(path, like=like)
    with pytest.raises(MismatchError, match=r"dense/bias: shape .* cannot be partitioned by"):
        cordwood.load(path, mesh=mesh_of(8), shardings={"dense/bias": P("nowhere")})


def test_numpy_has_no_devices(path: Path) -> None:
    with pytest.raises(ValueError, match='to="numpy" has no use for a mesh'):
        cordwood.load(path, to="numpy", mesh=mesh_of(2))


def test_dtypes_that_jax_lacks_stay(tmp_path: Path) -> None:
    times = np.array(["2020-01-01"] * 8, "datetime64[D]")
    cordwood.save(tmp_path / "x.msgpack", {"t": times, "a": np.ones(8, np.float32)})
    tree = cordwood.load(tmp_path / "x.msgpack", mesh=mesh_of(8), rules=[("", P("x"))])
    assert len(tree["a"].devices()) == 8
    np.testing.assert_array_equal(tree["t"], times)
    assert tree["t"].dtype == times.dtype


def test_names_of_foreign_files(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    array = np.ones((8, 4), np.float32)
    path = tmp_path / "hf.safetensors"
    save_file({"model.0.weight": array}, path)
    mesh = mesh_of(4)
    flat = cordwood.load(path, mesh=mesh, rules=[(r"model\.0\.weight", P("x"))])
    assert flat["model.0.weight"].sharding == NamedSharding(mesh, P("x"))
    nested = cordwood.load(path, mesh=mesh, rules=[("model/0/weight", P("x"))], nest=True)
    assert nested["model"]["0"]["weight"].sharding == NamedSharding(mesh, P("x"))
    like = {"model": [{"weight": array}]}
    listed: Any = cordwood.load(path, like=like, mesh=mesh, shardings={"model.0.weight": P("x")})
    assert listed["model"][0]["weight"].sharding == NamedSharding(mesh, P("x"))


@pytest.mark.parametrize("shape", [(8, 4), (4, 8), (32,)])
def test_a_like_of_arrays_has_the_usual_layout(path: Path, shape: tuple[int, ...]) -> None:
    values = TREE["dense"]["kernel"].reshape(shape)
    cordwood.save(path, {"dense": {"kernel": values}})
    array = jax.device_put(np.ones(shape, np.float32), sharding(P("x"), 4, 2))
    like = {"dense": {"kernel": jax.ShapeDtypeStruct.like(array)}}
    kernel = cordwood.load(path, like=like)["dense"]["kernel"]
    assert kernel.sharding == array.sharding
    np.testing.assert_array_equal(kernel, values)


def test_a_like_may_say_the_layout(path: Path) -> None:
    expected = Format(Layout((1, 0)), NamedSharding(mesh_of(4, 2), P("x", "y")))
    like = {"dense": {"kernel": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=expected)}}
    loaded = cordwood.load(path, like=like, extra="ignore", select="dense/kernel")
    kernel = loaded["dense"]["kernel"]
    assert kernel.format.layout.major_to_minor == (1, 0)
    assert kernel.sharding == expected.sharding
    np.testing.assert_array_equal(kernel, TREE["dense"]["kernel"])
