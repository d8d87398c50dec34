"""diff by digests: what is not read, what they show, and renamed leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.comparing.compare_checkpoints import compare_checkpoints
from cordwood.io.open_files import LocalFile
from cordwood.results import Progress
from cordwood.storage.local_directory import DirectoryFile, OpenDirectoryFile
from cordwood.storage.locations import parse_location
from tests.children import run_python

MIB = 1 << 20
KINDS = ["a.safetensors", "a.msgpack", "packs", "zarr", "zarr-zstd"]


def save(path: Path, tree: Any) -> Path:
    layout, _, compression = path.name.partition("-")
    options: Any = (
        {} if "." in path.name else {"format": layout, "compression": compression or None}
    )
    cordwood.save(path, tree, **options)
    return path


def both(tmp_path: Path, kind: str, tree: Any, other: Any) -> tuple[Path, Path]:
    paths = []
    for name, each in (("one", tree), ("two", other)):
        (tmp_path / name).mkdir()
        paths.append(save(tmp_path / name / kind, each))
    return paths[0], paths[1]


def random(seed: int, size: int = 1 << 18) -> Any:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def layers(count: int = 10) -> dict[str, Any]:
    return {f"layer{i}": {"kernel": random(i)} for i in range(count)}  # 1 MiB each


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the size of each read of a file."""
    sizes: list[int] = []
    for cls in (LocalFile, DirectoryFile, OpenDirectoryFile):

        def read_into(
            file: Any, offset: int, views: Sequence[memoryview], original: Any = cls.read_into
        ) -> None:
            sizes.append(sum(map(len, views)))
            original(file, offset, views)

        monkeypatch.setattr(cls, "read_into", read_into)
    return sizes


@pytest.mark.parametrize("kind", ["a.safetensors", "packs", "zarr"])
def test_shared_bytes_are_not_read(tmp_path: Path, kind: str, read_sizes: list[int]) -> None:
    other = layers()
    other["layer7"] = {"kernel": random(99)}
    a, b = both(tmp_path, kind, layers(), other)
    with cordwood.open(a) as one, cordwood.open(b) as two:
        read_sizes.clear()
        difference = cordwood.diff(one, two)
    assert [leaf.key_path for leaf in difference.leaves] == ["layer7/kernel"]
    assert (difference.equal_leaves, difference.equal_by_digest) == (9, 9)
    assert difference.read_bytes == MIB
    assert 2 * MIB <= sum(read_sizes) < 2.1 * MIB
    leaf = difference.leaves[0]
    x, y = layers()["layer7"]["kernel"].astype(float), random(99).astype(float)
    assert leaf.relative_l2 == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x))


@pytest.mark.parametrize("kind", ["a.safetensors", "packs", "zarr", "zarr-zstd"])
def test_digests_tell_equal_and_changed_leaves_without_reading(
    tmp_path: Path, kind: str, read_sizes: list[int]
) -> None:
    tree, other = {**layers(4), "step": 3}, {**layers(4), "step": 4}
    other["layer2"] = {"kernel": random(99)}
    a, b = both(tmp_path, kind, tree, other)
    with cordwood.open(a) as one, cordwood.open(b) as two:
        read_sizes.clear()
        compared = compare_checkpoints(one, two, values="digests")
        assert sum(read_sizes) < 100_000
    states = {pair.i: pair.state for pair in compared.pairs}
    expected = ["identical", "identical", "changed", "identical", "changed"]
    assert list(states.values()) == expected
    assert compared.diff.equal_by_digest == 3
    difference = compared.diff
    assert difference.read_bytes == 0
    assert not difference.equal
    assert [(leaf.key_path, leaf.what, leaf.size) for leaf in difference.leaves] == [
        ("layer2/kernel", "bytes", 0),
        ("step", "value", 0),
    ]
    assert "  layer2/kernel: float32[262144]: the stored bytes differ\n" in str(difference)
    assert cordwood.diff(a, a, values="digests").equal


def test_what_digests_cannot_tell_is_unread(tmp_path: Path) -> None:
    tree = {"a": np.arange(5.0), "b": np.arange(3), "n": 1}
    a, b = both(tmp_path, "a.safetensors", tree, {**tree, "b": np.arange(3) + 1})
    difference = cordwood.diff(a, b, values="digests")
    assert [(leaf.key_path, leaf.what) for leaf in difference.leaves] == [
        ("a", "unread"),  # in one block with b
        ("b", "unread"),
    ]
    assert not difference.equal
    assert str(difference).endswith(": int64[3]: unread; it has no digests of its own to compare")
    theirs = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file({"a": np.arange(5.0), "b": np.arange(3)}, theirs)
    states = [
        pair.state
        for pair in compare_checkpoints(*map(parse_location, (theirs, a)), values="digests").pairs
    ]
    assert states == ["unread", "unread", "added"]
    assert cordwood.diff({"a": np.ones(3)}, {"a": np.ones(3)}, values="digests").equal
    assert not cordwood.diff(a, tree, values="digests").equal


def test_values_of_other_arguments_are_refused() -> None:
    mode: Any = "digest"
    with pytest.raises(ValueError, match=r"values: expected True, False or 'digests', found 'dig"):
        cordwood.diff({}, {}, values=mode)


def test_every_pair_of_leaves_has_its_state(tmp_path: Path) -> None:
    a = {
        "added_later": {},
        "cast": np.ones(3),
        "equal": np.arange(8),
        "gone": np.ones(2),
        "old": random(1, 100),
        "shape": np.ones(3),
        "values": np.ones(4),
    }
    b = {
        "cast": np.ones(3, np.float32),
        "equal": np.arange(8),
        "more": np.zeros(5),
        "new": random(1, 100),
        "shape": np.ones(4),
        "values": np.zeros(4),
    }
    one, two = both(tmp_path, "a.safetensors", a, b)
    places = [parse_location(each) for each in (one, two)]
    compared = compare_checkpoints(*places)
    with cordwood.open(one) as first, cordwood.open(two) as second:
        names = [
            (
                pair.state,
                None if pair.i is None else str(first.index.leaves[pair.i].key_path[0]),
                None if pair.j is None else str(second.index.leaves[pair.j].key_path[0]),
            )
            for pair in compared.pairs
        ]
    assert names == [
        ("recast", "cast", "cast"),
        ("equal", "equal", "equal"),
        ("removed", "gone", None),
        ("renamed", "old", "new"),
        ("reshaped", "shape", "shape"),
        ("changed", "values", "values"),
        ("added", None, "more"),
    ]
    assert [pair.state for pair in compare_checkpoints(places[0], places[0]).pairs] == [
        "identical"
    ] * 6
    structure = compare_checkpoints(*places, values=False)
    assert [pair.state for pair in structure.pairs] == [
        *("recast", "unread", "removed", "removed", "reshaped", "unread", "added", "added")
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 3 << 18])
def test_a_renamed_leaf_is_listed_once(tmp_path: Path, kind: str, size: int) -> None:
    a = {"h": [{"w": random(1, size), "b": np.zeros(64)}, {"w": random(2, size)}], "old": 1}
    b = {"layers": [{"w": random(1, size), "b": np.zeros(64)}, {"w": random(2, size)}], "new": 1}
    difference = cordwood.diff(*both(tmp_path, kind, a, b))
    renamed = {leaf.renamed_from: leaf for leaf in difference.leaves if leaf.what == "renamed"}
    position = "'{}'" if "msgpack" in kind else "{}"
    zero, one = position.format(0), position.format(1)
    assert {old: leaf.key_path for old, leaf in renamed.items()} == {
        f"h/{zero}/b": f"layers/{zero}/b",
        f"h/{zero}/w": f"layers/{zero}/w",
        f"h/{one}/w": f"layers/{one}/w",
    }
    assert {leaf.what for leaf in difference.leaves} == {"renamed", "only_a", "only_b"}
    assert f"  h/{one}/w -> layers/{one}/w: renamed (float32[{size}])\n" in str(difference)
    assert cordwood.diff(a, b).leaves != ()
    assert [leaf.what for leaf in cordwood.diff(a, b).leaves].count("renamed") == 3


@pytest.mark.parametrize("kind", ["packs", "zarr", "zarr-zstd"])
def test_digests_recognise_a_renamed_leaf(tmp_path: Path, kind: str) -> None:
    big = random(1, 40 << 18)
    a, b = both(tmp_path, kind, {"a": big, "z": 1}, {"b": big, "z": 1})
    for values in (True, "digests"):
        mode: Any = values
        difference = cordwood.diff(a, b, values=mode)
        assert [(leaf.what, leaf.renamed_from) for leaf in difference.leaves] == [("renamed", "a")]
        assert difference.read_bytes == 0


def test_other_leaves_of_equal_type_are_hardly_read(tmp_path: Path) -> None:
    a = {f"a{i}": random(i, 2 << 20) for i in range(3)}
    b = {f"b{i}": random(10 + i, 2 << 20) for i in range(3)}
    difference = cordwood.diff(*both(tmp_path, "a.safetensors", a, b))
    assert [leaf.what for leaf in difference.leaves] == ["only_a"] * 3 + ["only_b"] * 3
    assert difference.read_bytes == 3 * (64 << 10)
    b["b1"] = a["a2"].copy()
    b["b1"][-1] += 1
    assert not any(leaf.what == "renamed" for leaf in cordwood.diff(a, b).leaves)
    b["b1"] = a["a2"]
    (pair,) = [leaf for leaf in cordwood.diff(a, b).leaves if leaf.what == "renamed"]
    assert (pair.renamed_from, pair.key_path) == ("a2", "b1")


def test_renamed_across_formats_and_kinds(tmp_path: Path) -> None:
    kernel = jnp.arange(64, dtype=jnp.bfloat16).reshape(8, 8)
    a = save(tmp_path / "zarr", {"params": {"dense": {"kernel": kernel}}})
    b = save(tmp_path / "a.msgpack", {"model": {"dense": {"kernel": np.asarray(kernel)}}})
    (leaf,) = cordwood.diff(a, b).leaves
    assert (leaf.what, leaf.renamed_from, leaf.key_path) == (
        *("renamed", "params/dense/kernel", "model/dense/kernel"),
    )
    recast = {"model": {"dense": {"kernel": np.asarray(kernel).astype(np.float32)}}}
    assert {leaf.what for leaf in cordwood.diff(a, recast).leaves} == {"only_a", "only_b"}


def test_select_and_rename_come_first() -> None:
    a, b = {"a": {"w": random(1)}, "x": random(2)}, {"b": {"w": random(1)}, "y": random(2)}
    difference = cordwood.diff(a, b, rename={"a": "b"})
    assert [(leaf.what, leaf.renamed_from) for leaf in difference.leaves] == [("renamed", "x")]
    (leaf,) = cordwood.diff(a, b, select=["a", "y"]).leaves[:1]
    assert leaf.what == "only_a"


def test_progress_counts_both_sides(tmp_path: Path) -> None:
    other = {name: {"kernel": leaf["kernel"] + 1} for name, leaf in layers(6).items()}
    a, b = both(tmp_path, "a.safetensors", layers(6), other)
    messages: list[Progress] = []
    difference = cordwood.diff(a, b, progress=messages.append)
    assert messages[0] == Progress(0, 2 * difference.read_bytes)
    assert messages[-1].done_bytes == messages[-1].total_bytes == 12 * MIB
    assert cordwood.diff(layers(6), other, progress=messages.append).read_bytes == 6 * MIB
    assert messages[-1].done_bytes == 12 * MIB

    def stop(progress: Progress) -> None:
        if progress.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cordwood.diff(a, b, progress=stop)


CHILD = """
import resource, sys
import cordwood

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

a, b, small = sys.argv[1:]
cordwood.diff(small, small)
before = peak()
difference = cordwood.diff(a, b)
assert difference.leaves[0].differing, difference
print(peak() - before)
"""


@pytest.mark.parametrize("kind", ["packs", "zarr-zstd"])
def test_memory_stays_bounded(tmp_path: Path, kind: str) -> None:
    tree = {"w": np.ones((300, 1 << 18), np.float32), "old": np.ones((100, 1 << 18), np.float32)}
    other = {"w": tree["w"] * 2, "new": tree["old"]}
    a, b = both(tmp_path, kind, tree, other)
    small = save(tmp_path / "small.safetensors", {"w": np.ones(8)})
    assert int(run_python(CHILD, str(a), str(b), str(small))) < 250 * MIB
