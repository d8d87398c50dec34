"""Messages about single leaves and dtypes: each says the remedy, and the remedy works."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError, UnsupportedLeafError
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)


@pytest.mark.parametrize(("code", "name"), [("f2", "f16"), ("f4", "f32"), ("f8", "f64")])
def test_a_dtype_code_of_numpy(tmp_path: Path, code: str, name: str) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"w": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match=f"unknown dtype '{code}'; did you mean '{name}'"):
        cordwood.load(path, cast=code)
    assert cordwood.load(path, cast=name)["w"].dtype == np.dtype(code)


def test_a_gradient_of_an_integer(tmp_path: Path) -> None:
    tree = {"w": np.ones(2), "n": np.zeros(3, jax.dtypes.float0)}
    with pytest.raises(UnsupportedLeafError, match=r"n: an array of float0.*; leave it out"):
        cordwood.save(tmp_path / "x", tree)
    del tree["n"]
    cordwood.save(tmp_path / "x", tree)


def test_a_ref_is_refused_with_the_remedy_that_works(tmp_path: Path) -> None:
    ref = jax.new_ref(jnp.ones(2))
    with pytest.raises(
        UnsupportedLeafError, match=r"r: a jax\.Ref .*; store its value, ref\[\.\.\.\]"
    ):
        cordwood.save(tmp_path / "x", {"r": ref})
    cordwood.save(tmp_path / "x", {"r": ref[...]})


def test_all_problems_of_a_load(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x", {f"w{i}": np.ones(2) for i in range(70)})
    with pytest.raises(MismatchError) as caught:
        cordwood.load(tmp_path / "x", like={f"w{i}": np.ones(3) for i in range(70)})
    assert len(caught.value.problems) == 70
    assert all(line in str(caught.value) for line in caught.value.problems[:50])
    assert "expected float64[3], found float64[2]" in caught.value.problems[69]
    assert MismatchError("no list").problems == ()


def test_show_prints_the_data_of_a_key(tmp_path: Path, run: Run) -> None:  # noqa: F811
    cordwood.save(tmp_path / "x", {"key": jax.random.key(7)})
    ran = run("show", tmp_path / "x", "key")
    assert ran.code == 0
    assert "mean" not in ran.out
    assert ran.out.endswith("[0 7]\n")
    assert '"value": [' in run("show", tmp_path / "x", "key", "--json").out


def test_ls_groups_dotted_names(tmp_path: Path, run: Run) -> None:  # noqa: F811
    tree = {"a": {"v": np.ones(2), "w": np.ones(2)}, "b": np.ones(2)}
    cordwood.save(tmp_path / "hub", tree, format="hugging_face")
    ran = run("ls", tmp_path / "hub", "--depth", "1")
    lines = [line.split()[:2] for line in ran.out.splitlines()]
    assert lines[:2] == [["a", "2"], ["b", "float64[2]"]]


@pytest.mark.parametrize("key", ["0", "(0)", "[0]", "0/", "0/'m'", "(0)/m"])
def test_the_index_of_a_container_proposes_how_to_load_it(tmp_path: Path, key: str) -> None:
    tree = ({"m": {"a": np.ones(1), "b": np.zeros(1)}, "n": np.ones(2)}, np.ones(3))
    cordwood.save(tmp_path / "t", tree)
    with cordwood.open(tmp_path / "t") as checkpoint:
        with pytest.raises(KeyError, match="is a container of") as error:
            checkpoint[key]
        proposed = re.search(r"load\(select='([^']*)'\) returns them", str(error.value))
        assert proposed is not None
        whole = tree[0]["m"] if "m" in key else tree[0]
        loaded = checkpoint.load(select=proposed[1])
        assert len(jax.tree.leaves(loaded)) == len(jax.tree.leaves(whole))


def test_the_index_of_no_leaf_proposes_how_to_list_them(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "t", {"a": np.ones(1), "b": 2})
    with cordwood.open(tmp_path / "t") as checkpoint:
        with pytest.raises(KeyError, match=r"list\(checkpoint\), or `cordwood ls .*` in a shell"):
            checkpoint["(7)"]
        assert list(checkpoint) == ["a", "b"]
