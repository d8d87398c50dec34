"""Names of foreign files that look like patterns: an exact name is meant first; `%` escapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError

NAMES = ("['w']", "w", "!x", "x", "a*b", "aab", "q?", "qz", "[kl]", "k", "%2A")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    arrays: dict[str, Any] = {name: np.full(1, i) for i, name in enumerate(NAMES)}
    np.savez(tmp_path / "x.npz", **arrays)
    return tmp_path / "x.npz"


def test_every_name_that_open_lists_selects_itself_and_is_renamed(path: Path) -> None:
    with cordwood.open(path) as checkpoint:
        listed = list(checkpoint)
        assert len(listed) == len(NAMES)
        for number, name in enumerate(listed):
            (value,) = checkpoint.load(select=name).values()
            assert value == number, name
            assert cordwood.load(path, select=name, rename={name: "new"})["new"] == number
            others = checkpoint.load(select=["**", f"!{name}"])
            if f"!{name}" not in listed:  # which is meant first
                assert number not in [int(value[0]) for value in others.values()]
                assert len(others) == len(NAMES) - 1
            like = {"new": np.zeros(1, int)}
            assert cordwood.load(path, like=like, rename={name: "new"}, extra="ignore") == {
                "new": np.array([number])
            }


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a%2Ab", ["a*b"]),
        ("q%3F", ["q?"]),
        ("%21x", ["!x"]),
        ("%5Bkl]", ["[kl]"]),
        ("%5B*", ["['w']", "[kl]"]),
        ("a*", ["a*b", "aab"]),
        ("[k]", ["k"]),
        (["**", "!%21x", "!*w*"], ["x", "a*b", "aab", "q?", "qz", "[kl]", "k", "%2A"]),
        ("%252A", ["%2A"]),
    ],
)
def test_escapes_are_the_characters_themselves(path: Path, pattern: Any, names: list[str]) -> None:
    assert sorted(cordwood.load(path, select=pattern)) == sorted(names)


def test_names_of_jax_key_paths(tmp_path: Path) -> None:
    """Programs that save the leaves of a tree by `jax.tree_util.keystr` write them."""
    tree = {"params": {"w": np.ones(2), "b": np.zeros(1)}, "step": np.array(3)}
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays: dict[str, Any] = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    np.savez(tmp_path / "x.npz", **arrays)
    name = "['params']['w']"
    assert list(cordwood.load(tmp_path / "x.npz", select=name)) == [name]
    renamed = cordwood.load(tmp_path / "x.npz", rename={name: "params/w"})
    np.testing.assert_array_equal(renamed["params"]["w"], np.ones(2))


def test_an_exact_name_of_a_container_is_all_that_is_in_it(tmp_path: Path) -> None:
    tree = {"[a]": {"x": np.ones(1), "y": np.ones(1)}, "a": np.zeros(1)}
    cordwood.save(tmp_path / "x", tree)
    assert cordwood.load(tmp_path / "x", select="[a]").keys() == {"[a]"}
    assert cordwood.load(tmp_path / "x", select="[a]")["[a]"].keys() == {"x", "y"}
    assert list(cordwood.load(tmp_path / "x", select=["**", "![a]"])) == ["a"]
    assert cordwood.load(tmp_path / "x", rename={"[a]": "b"}).keys() == {"a", "b"}


def test_the_advice_for_64_bit_leaves_leaves_that_leaf_out(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x", {"[x]": np.ones(2), "x": np.ones(2, np.float32)})
    with pytest.raises(MismatchError, match=r'select=\["\*\*", "!\[x\]"\]'):
        cordwood.load(tmp_path / "x", to="jax")
    assert list(cordwood.load(tmp_path / "x", to="jax", select=["**", "![x]"])) == ["x"]
