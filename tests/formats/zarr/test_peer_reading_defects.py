"""B41, B42 and B45 to B47: what eFormer's readers pass over, drop, make up or cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.errors import CorruptionError, MismatchError
from tests.shardings import mesh_of

LAYOUTS = ["packs", "zarr"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b41_a_load_checks_what_it_reads(tmp_path: Path, layout: Any) -> None:
    cordwood.save(tmp_path / "c", {"w": np.arange(10_000, dtype=np.float32)}, format=layout)
    file = max((tmp_path / "c").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptionError, match=file.name.replace(".", r"\.")):
        cordwood.load(tmp_path / "c")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b42_a_cast_that_is_asked_for_is_made(tmp_path: Path, layout: Any) -> None:
    tree = {"w": jnp.linspace(0, 1, 64), "step": jnp.int32(3)}
    cordwood.save(tmp_path / "c", tree, format=layout)
    loaded = cordwood.load(tmp_path / "c", cast="bf16")
    assert loaded["w"].dtype == jnp.bfloat16
    assert (loaded["w"] == tree["w"].astype(jnp.bfloat16)).all()
    assert loaded["step"].dtype == jnp.int32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b45_another_shape_is_no_reason_to_keep_what_is_there(tmp_path: Path, layout: Any) -> None:
    cordwood.save(tmp_path / "c", {"w": jnp.ones((4, 8))}, format=layout)
    for missing in ("error", "keep"):
        with pytest.raises(
            MismatchError, match=r"w: expected float32\[8,8\], found float32\[4,8\]"
        ):
            cordwood.load(tmp_path / "c", like={"w": jnp.zeros((8, 8))}, missing=missing)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b46_a_tree_without_arrays(tmp_path: Path, layout: Any) -> None:
    tree = {"name": "run", "lr": 0.5, "steps": [1, 2], "nothing": {}, "none": None}
    cordwood.save(tmp_path / "c", tree, format=layout)
    assert cordwood.load(tmp_path / "c", like=tree) == tree
    cordwood.save(tmp_path / "empty", {}, format=layout)
    assert cordwood.load(tmp_path / "empty") == {}


def test_b46_also_by_the_functions_of_that_name(tmp_path: Path) -> None:
    cordwood.tree_serialize_leaves(tmp_path / "c", {})
    assert cordwood.tree_deserialize_leaves(tmp_path / "c", mesh_of(1)) == {}


def test_b47_bfloat16_of_npy(tmp_path: Path) -> None:
    """A .npy file does not say that two bytes are a bfloat16; `like` does."""
    array = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    np.save(tmp_path / "a.npy", np.asarray(array))
    like = jax.ShapeDtypeStruct(array.shape, array.dtype)
    loaded = cordwood.load(tmp_path / "a.npy", like=like)
    assert loaded.dtype == jnp.bfloat16
    assert (loaded == array).all()
