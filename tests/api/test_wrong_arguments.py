"""Arguments of a wrong type: the error names the argument, and what it should be."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError, UnsupportedLeafError
from tests.shardings import mesh_of

TREE: dict[str, Any] = {"a": np.arange(4.0), "b": 1}


@pytest.fixture
def path(tmp_path: Path) -> str:
    cordwood.save(tmp_path / "c", TREE)
    return str(tmp_path / "c")


def load(**options: Any) -> Callable[[str], Any]:
    return lambda path: cordwood.load(path, **options)


def load_with(rules: Any) -> Callable[[str], Any]:
    return lambda path: cordwood.load(path, mesh=mesh_of(4, 2), rules=rules)


def save_step(path: str, metrics: Any) -> None:
    cordwood.CheckpointManager(f"{path}-run").save(1, TREE, metrics=metrics)


encoded: Any = os.fsencode
CASES: dict[str, tuple[Callable[[str], Any], type[Exception], str]] = {
    "select of None": (load(select=["a", None]), TypeError, "select: expected patterns.*None"),
    "select of a number": (load(select=3), TypeError, "select: expected a pattern.*found 3"),
    "rename is a str": (load(rename="a=b"), TypeError, "rename: expected a dict.*'a=b'"),
    "rename is a list": (load(rename=[("a", "b")]), TypeError, "rename: expected a dict"),
    "rename to a number": (load(rename={"a": 3}), TypeError, "rename: expected key paths.*3"),
    "rename of a number": (load(rename={1: "b"}), TypeError, "rename: expected key paths.*1"),
    "cast of nothing": (load(cast={"z": "bf16"}), MismatchError, "^cast matches no leaf"),
    "a glob as rule": (load_with([("**", P())]), ValueError, r"rules: '\*\*' is not a regular"),
    "a broken rule": (load_with([("(", P())]), ValueError, r"rules: '\(' is not a regular"),
    "rules are a dict": (load_with({"w": P()}), TypeError, "rules: expected a list of"),
    "a rule is a str": (load_with(["w"]), TypeError, "rules: expected .*found 'w'"),
    "mesh is a number": (load(mesh=3), TypeError, "mesh: expected a jax.sharding.Mesh, found 3"),
    "a spec is a number": (load_with([("w", 3)]), TypeError, "rules: 'w': expected a Partition"),
    "mesh without devices": (
        load(mesh=jax.sharding.AbstractMesh((4, 2), ("x", "y"))),
        TypeError,
        "mesh: expected a jax.sharding.Mesh, found AbstractMesh",
    ),
    "a path of bytes": (lambda path: cordwood.load(encoded(path)), TypeError, "os.fsdecode"),
    "to bytes": (lambda path: cordwood.save(encoded(path), TREE), TypeError, "os.fsdecode"),
    "a tree first": (
        lambda path: cordwood.save(TREE, path),  # type: ignore[arg-type]
        TypeError,
        "path: expected a path, a str or a pathlib.Path, found dict; the path comes first",
    ),
    "a tree first, in load": (
        lambda path: cordwood.load(TREE, path),  # type: ignore[call-overload]
        TypeError,
        "found dict; the path comes first",
    ),
    "an open leaf in a tree": (
        lambda path: cordwood.save(f"{path}-2", {"w": next(iter(cordwood.open(path).values()))}),
        UnsupportedLeafError,
        r"w: a leaf of an open checkpoint cannot be stored; pass leaf.load\(\)",
    ),
    "metadata": (
        lambda path: cordwood.save(path, TREE, metadata=3),  # type: ignore[arg-type]
        TypeError,
        "metadata: expected a dict of strings, found 3",
    ),
    "metadata of a conversion": (
        lambda path: cordwood.convert(path, f"{path}.safetensors", metadata=3),  # type: ignore[arg-type]
        TypeError,
        "metadata: expected a dict of strings, found 3",
    ),
    "no metadata": (
        lambda path: cordwood.save(path, TREE, metadata=0),  # type: ignore[arg-type]
        TypeError,
        "metadata: expected a dict of strings, found 0",
    ),
    "sample": (
        lambda path: cordwood.verify(path, sample="5%"),  # type: ignore[arg-type]
        ValueError,
        "sample='5%': expected a share",
    ),
    "key": (
        lambda path: cordwood.open(path)[3],  # type: ignore[index]
        KeyError,
        "expected a key path, a str such as 'params/w', found 3",
    ),
    "metrics are a list": (
        lambda path: save_step(path, [1]),
        TypeError,
        "metrics: expected a dict of numbers by name",
    ),
    "a metric beyond float": (
        lambda path: cordwood.CheckpointManager(f"{path}-run").save(
            1, TREE, metrics={"m": 10**400}
        ),
        TypeError,
        "metrics: m: expected a number",
    ),
    "a file's suffix and a slash": (
        lambda path: cordwood.save(f"{path}.safetensors/", TREE),
        ValueError,
        "the suffix means a file, and the slash at the end a directory",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_argument_is_refused_and_changes_nothing(path: str, name: str) -> None:
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        call(path)
    assert os.listdir(os.path.dirname(path)) == ["c"]
    assert cordwood.diff(path, TREE).equal


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x/y"])
def test_a_file_where_a_directory_has_to_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    for save in (cordwood.save, cordwood.save_async):
        with pytest.raises(NotADirectoryError, match=f"is no directory; .*: '{tmp_path}/file'"):
            save(tmp_path / "file" / name, TREE)


def test_a_dangling_link_is_reported_as_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="no checkpoint where this symbolic link leads"):
        cordwood.load(tmp_path / "link")


def test_a_subclass_of_dict_in_msgpack() -> None:
    class Odd(dict[str, Any]):
        pass

    with pytest.raises(
        UnsupportedLeafError, match=r"Odd cannot be stored.*, or convert it with dict\(\)"
    ):
        cordwood.to_bytes({"k": Odd(a=np.ones(1))})


def test_equivalent_arguments_are_accepted(path: str) -> None:
    rules: Any = ((re.compile("a"), P()), ("b", None))
    tree = cordwood.load(path, mesh=mesh_of(4, 2), rules=rules, cast="f32")
    assert tree["a"].sharding.spec == P()
    assert cordwood.verify(path, sample=np.float32(0.5)).verified_bytes > 0  # type: ignore[arg-type]
    cordwood.save(f"{path}.safetensors/", TREE, format="packs")
    assert os.path.isdir(f"{path}.safetensors")
