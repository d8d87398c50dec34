"""Leaves that a file lists and that cannot be read: they alone are refused, when asked for."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import equinox
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError, UnsupportedFormatError

WEIGHTS = np.arange(4.0)
UNREADABLE: dict[str, Any] = {
    "names": np.array(["a", "bc"]),
    "raw": np.array([b"a", b"bc"]),
    "objects": np.array([{}, None], object),
    "structured": np.zeros(2, [("a", "f4"), ("b", "i4")]),
    "void": np.zeros(2, "V3"),
}


def archive(path: Path) -> Path:
    np.savez(path, w=WEIGHTS, **UNREADABLE)
    return path


def select_of(message: str) -> Any:
    """Return the `select` that a message proposes."""
    match = re.search(r"select=(\[.*\])", message)
    assert match is not None, message
    return eval(match[1])


def test_the_others_are_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz")
    with cordwood.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint["w"], WEIGHTS)
        assert {name for name, leaf in checkpoint.items() if leaf.kind == "unreadable"} == {
            *UNREADABLE
        }
        for name in UNREADABLE:
            with pytest.raises(UnsupportedFormatError, match=f"1 leaf cannot be read:\n  {name}: "):
                checkpoint[name].load()
        assert "names       unreadable" in repr(checkpoint)
    like = {"w": np.zeros(4)}
    assert list(cordwood.load(path, like=like, extra="ignore")) == ["w"]
    assert cordwood.verify(path).leaves == 6


def test_the_error_of_a_load_of_all_offers_the_others(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz")
    other = tmp_path / "other.npz"
    np.savez(other, w=WEIGHTS + 1, **UNREADABLE)
    results: list[Any] = []
    for last_line, call in {
        "load the others with select=": lambda **options: cordwood.load(path, **options),
        "(--lossy), or convert the others with select=": lambda **options: cordwood.convert(
            path, tmp_path / "x.safetensors", **options
        ),
        "compare the others with select=": lambda **options: cordwood.diff(path, other, **options),
    }.items():
        with pytest.raises(UnsupportedFormatError) as raised:
            call()
        message = str(raised.value)
        assert "5 leaves cannot be read" in message
        assert "names: an array of text (dtype <U2) cannot be read" in message
        assert last_line in message.splitlines()[-1]
        results.append(call(select=select_of(message)))
    loaded, _, compared = results
    assert list(loaded) == ["w"]
    assert [difference.key_path for difference in compared.leaves] == ["w"]
    assert list(cordwood.load(tmp_path / "x.safetensors")) == ["w"]


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, "5 leaves that cannot be read: names, raw, objects, structured, void"),
        ({"select": "[nw]*"}, "1 leaf that cannot be read: names"),
        ({"select": ["w", "raw"], "rename": {"w": "v"}}, "1 leaf that cannot be read: raw"),
        ({"select": ["!void"]}, "4 leaves that cannot be read: names, raw, objects, structured"),
    ],
)
def test_a_conversion_leaves_them_out_as_its_error_says(
    tmp_path: Path, options: dict[str, Any], left_out: str
) -> None:
    path, to = archive(tmp_path / "x.npz"), tmp_path / "x"
    with pytest.raises(UnsupportedFormatError, match=r"cannot be read by lossy=True \(--lossy\)"):
        cordwood.convert(path, to, **options)
    conversion = cordwood.convert(path, to, **options, metadata={"a": "b"}, lossy=True)
    assert (conversion.leaves, conversion.lost) == (1, (left_out,))
    (loaded,) = cordwood.load(to).values()
    np.testing.assert_array_equal(loaded, WEIGHTS)
    with cordwood.open(to) as checkpoint:
        assert checkpoint.metadata == {"a": "b"}  # the format of the destination stores it


def test_a_conversion_of_nothing_that_can_be_read_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **UNREADABLE)
    with pytest.raises(UnsupportedFormatError, match="5 leaves cannot be read") as raised:
        cordwood.convert(tmp_path / "x.npz", tmp_path / "x", lossy=True)
    assert "lossy" not in str(raised.value)
    assert not (tmp_path / "x").exists()


def test_a_leaf_of_like_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz")
    with pytest.raises(MismatchError, match=r"names: expected .*, found one not to be read: .*U2"):
        cordwood.load(path, like={"w": np.zeros(4), "names": np.zeros(2)}, extra="ignore")


def test_members_of_other_compressions_and_encrypted_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.save(tmp_path / "w.npy", WEIGHTS)
    with zipfile.ZipFile(path, "w") as file:
        file.write(tmp_path / "w.npy", "w.npy")
        file.write(tmp_path / "w.npy", "v.npy", compress_type=zipfile.ZIP_BZIP2)
    np.testing.assert_array_equal(cordwood.load(path, select=["**", "!v"])["w"], WEIGHTS)
    with pytest.raises(UnsupportedFormatError, match=r"v: the member is compressed by method 12"):
        cordwood.load(path)


def test_arrays_of_text_in_an_equinox_file(tmp_path: Path) -> None:
    """They are left as they are in `like`, if the caller says so."""
    path = tmp_path / "x.eqx"
    tree = {"a": jnp.ones(2), "names": np.array(["x", "yz"]), "w": jnp.arange(3)}
    equinox.tree_serialise_leaves(path, tree)
    like = {"a": jnp.zeros(2), "names": np.array(["k", "l"]), "w": jnp.zeros(3, int)}
    with pytest.raises(MismatchError, match=r'names: an array of text .*missing="keep" keeps that'):
        cordwood.load(path, like=like)
    result = cordwood.load(path, like=like, missing="keep")
    np.testing.assert_array_equal(result["w"], np.arange(3))
    np.testing.assert_array_equal(result["a"], np.ones(2))
    assert result["names"] is like["names"]
    with cordwood.open(path) as checkpoint:
        assert [leaf.kind for leaf in checkpoint.values()] == ["numpy", "unreadable", "numpy"]


def test_objects_in_an_equinox_file_end_it(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    equinox.tree_serialise_leaves(path, [jnp.ones(2), np.array([{}], object), jnp.ones(2)])
    message = r"pickled, .*it is array 1, counted from 0, and its size is unknown: what follows it"
    with pytest.raises(UnsupportedFormatError, match=message):
        cordwood.open(path)


def test_an_unreadable_array_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    equinox.tree_serialise_leaves(path, [np.array(["x", "yz"])])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(cordwood.errors.TruncatedError, match=r"ends after the end of the file"):
        cordwood.open(path)
