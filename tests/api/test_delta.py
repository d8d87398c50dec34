"""delta and apply_delta: what they write, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood import dtypes
from cordwood.errors import CordwoodError, CorruptionError, FormatError, MismatchError
from cordwood.testing import assert_trees_equal
from tests.golden.deltas import BASE_AT, DELTA_AT, METADATA, versions


def changed(tree: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    """Return a tree with a few other bytes in each array."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, leaf in tree.items():
        data = np.array(leaf)
        raw = data.reshape(-1).view(np.uint8)
        raw[rng.random(len(raw)) < 0.02] ^= 1
        result[name] = data
    return result


def arrays(count: int = 3000) -> dict[str, Any]:
    """Return an array of each dtype that numpy and every format have, of any bits."""
    rng = np.random.default_rng(0)
    names = [row.name for row in dtypes.DTYPES.values() if row.safetensors and row.itemsize < 8]
    return {
        name: rng.integers(0, 2, count * dtypes.itemsize(name), np.uint8).view(
            dtypes.to_numpy(name)
        )
        for name in names
    }


@pytest.mark.parametrize("suffix", ["", ".safetensors", ".msgpack"])
def test_a_delta_makes_the_new_version_of_the_old_one(tmp_path: Path, suffix: str) -> None:
    old = arrays()
    new = changed(old)
    paths = [tmp_path / f"{name}{suffix}" for name in ("old", "new", "made")]
    cordwood.save(paths[0], old)
    cordwood.save(paths[1], new)
    report = cordwood.delta(paths[0], paths[1], tmp_path / "delta")
    assert report.changed_tiles == report.tiles == len(old)
    assert report.size_bytes < report.tree_bytes / 8
    cordwood.apply_delta(paths[0], tmp_path / "delta", paths[2])
    assert_trees_equal(cordwood.load(paths[2]), new)
    assert cordwood.diff(paths[1], paths[2]).equal


def test_a_delta_between_formats(tmp_path: Path) -> None:
    tree = {"w": np.arange(10.0), "b": np.arange(3)}
    cordwood.save(tmp_path / "old", tree, format="zarr")
    tree = {"w": np.arange(10.0) + 1, "b": np.arange(3)}
    cordwood.save(tmp_path / "new.safetensors", {k: np.asarray(v) for k, v in tree.items()})
    cordwood.delta(tmp_path / "old", tmp_path / "new.safetensors", tmp_path / "delta.safetensors")
    made = cordwood.apply_delta(
        tmp_path / "old", tmp_path / "delta.safetensors", tmp_path / "made", format="zarr"
    )
    assert made.format == "zarr"
    assert_trees_equal(cordwood.load(tmp_path / "made"), tree)


def test_values_and_strings_are_those_of_the_new_version(tmp_path: Path) -> None:
    old = {"w": np.zeros(4), "step": 1, "text": "a" * 5000, "rate": 0.5, "none": None}
    new = {"w": np.zeros(4), "step": 2, "text": "b" * 5000, "rate": float("nan"), "none": None}
    cordwood.save(tmp_path / "old", old, metadata={"run": "1"})
    cordwood.save(tmp_path / "new", new, metadata={"run": "2"})
    assert cordwood.delta(tmp_path / "old", tmp_path / "new", tmp_path / "delta").size_bytes == 0
    cordwood.apply_delta(tmp_path / "old", tmp_path / "delta", tmp_path / "made")
    assert_trees_equal(cordwood.load(tmp_path / "made"), new)
    with cordwood.open(tmp_path / "made") as made:
        assert made.metadata == {"run": "2"}


def test_arrays_of_jax_keys_and_weak_types(tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    old = {
        "key": jax.random.key(1),
        "weak": jnp.asarray(1.0),
        "w": jnp.arange(5, dtype=jnp.bfloat16),
    }
    new = {"key": jax.random.key(2), "weak": jnp.asarray(2.0), "w": -old["w"]}
    cordwood.save(tmp_path / "old", old)
    cordwood.save(tmp_path / "new", new)
    cordwood.delta(tmp_path / "old", tmp_path / "new", tmp_path / "delta")
    cordwood.apply_delta(tmp_path / "old", tmp_path / "delta", tmp_path / "made")
    assert_trees_equal(cordwood.load(tmp_path / "made", like=new), new)


def test_large_arrays_are_cut_into_tiles(tmp_path: Path) -> None:
    old: dict[str, np.ndarray] = {
        "w": np.zeros((3000, 1000), np.float32),
        "s": np.zeros((9, 700_000), np.uint8),
    }
    new = {"w": old["w"].copy(), "s": old["s"].copy()}
    new["w"][2999, 999] = new["s"][4, 5] = 1
    cordwood.save(tmp_path / "old", old)
    cordwood.save(tmp_path / "new", new)
    report = cordwood.delta(tmp_path / "old", tmp_path / "new", tmp_path / "delta")
    assert (report.changed_tiles, report.tiles) == (2, 6)
    cordwood.apply_delta(tmp_path / "old", tmp_path / "delta", tmp_path / "made")
    assert_trees_equal(cordwood.load(tmp_path / "made"), new)


def test_a_delta_is_a_checkpoint(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "old", {"w": np.zeros(1000)})
    cordwood.save(tmp_path / "new", {"w": np.ones(1000)})
    cordwood.delta(tmp_path / "old", tmp_path / "new", tmp_path / "delta")
    assert not cordwood.verify(tmp_path / "delta").unverified_bytes
    cordwood.copy(tmp_path / "delta", "memory://deltas/1")
    cordwood.apply_delta(tmp_path / "old", "memory://deltas/1", tmp_path / "made")
    assert cordwood.diff(tmp_path / "new", tmp_path / "made").equal
    assert [*cordwood.open(tmp_path / "delta")] == ["digests", "sizes", "tree/w"]


def test_the_wrong_base_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for name in range(3):
        cordwood.save(tmp_path / str(name), {"w": np.full(1000, name, np.float32)})
    cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "delta")
    with pytest.raises(CorruptionError, match=r"w\[0:1000\].*another version"):
        cordwood.apply_delta(tmp_path / "2", tmp_path / "delta", tmp_path / "made")
    assert not (tmp_path / "made").exists() or not [*(tmp_path / "made").glob("*.json")]


def test_a_base_with_another_tree_is_refused(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "0", {"w": np.zeros(10)})
    cordwood.save(tmp_path / "1", {"w": np.ones(10)})
    cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "delta")
    others: list[Any] = [
        {"v": np.zeros(10)},
        {"w": np.zeros(11)},
        {"w": np.zeros(10, np.float32)},
        {"w": np.zeros(10), "b": np.zeros(1)},
        {"w": 1.5},
        {},
    ]
    for number, tree in enumerate(others):
        cordwood.save(tmp_path / f"other-{number}", tree)
        with pytest.raises(MismatchError, match="delta of another tree"):
            cordwood.apply_delta(tmp_path / f"other-{number}", tmp_path / "delta", tmp_path / "x")


def test_trees_with_other_leaves_have_no_delta(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "0", {"w": np.zeros(10), "b": np.zeros(3), "n": 1})
    cordwood.save(tmp_path / "1", {"w": np.ones((5, 2)), "b": np.zeros(3), "n": "1"})
    with pytest.raises(
        MismatchError, match=r"(?s)w: array float64\[10\] -> .*\[5,2\].*n: int -> str"
    ):
        cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "delta")
    assert not (tmp_path / "delta").exists()


def test_what_is_at_the_destination_stays(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "0", {"w": np.zeros(10)})
    cordwood.save(tmp_path / "1", {"w": np.ones(10)})
    with pytest.raises(FileExistsError, match=r"to replace it, or write to another path"):
        cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "1")
    assert_trees_equal(cordwood.load(tmp_path / "1"), {"w": np.ones(10)})
    cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "d")
    with pytest.raises(FileExistsError):
        cordwood.apply_delta(tmp_path / "0", tmp_path / "d", tmp_path / "1")


def test_no_operand_is_replaced(tmp_path: Path) -> None:
    for number in range(2):
        cordwood.save(tmp_path / str(number), {"w": np.full(10, number)})
    cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "d")
    for name in ("0", "1"):
        with pytest.raises(ValueError, match=r"the delta would replace .* another path"):
            cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / name, overwrite=True)
    for name in ("0", "d"):
        with pytest.raises(ValueError, match=r"the result would replace .* another path"):
            cordwood.apply_delta(tmp_path / "0", tmp_path / "d", tmp_path / name, overwrite=True)
    cordwood.apply_delta(tmp_path / "0", tmp_path / "d", tmp_path / "made")  # the remedy
    assert_trees_equal(cordwood.load(tmp_path / "made"), {"w": np.full(10, 1)})


def test_deltas_of_a_publisher_are_applied_one_after_another(tmp_path: Path) -> None:
    publisher = cordwood.WeightPublisher(tmp_path)
    for number in (1, 2, 3):
        publisher.publish(number, {"w": np.full(1000, float(number))}).wait()
    with pytest.raises(MismatchError, match=r"2 is a delta: expected a tree, .*cordwood.load\("):
        cordwood.apply_delta(tmp_path / "2", tmp_path / "3", tmp_path / "made")
    with pytest.raises(MismatchError, match="3 is a delta: expected a tree"):
        cordwood.delta(tmp_path / "1", tmp_path / "3", tmp_path / "d")
    cordwood.apply_delta(tmp_path / "1", tmp_path / "2", tmp_path / "second")
    cordwood.apply_delta(tmp_path / "second", tmp_path / "3", tmp_path / "third")
    assert_trees_equal(cordwood.load(tmp_path / "third"), {"w": np.full(1000, 3.0)})


def test_a_load_with_like_says_that_a_delta_is_one(tmp_path: Path) -> None:
    tree = {"w": np.zeros(10), "n": 1}
    cordwood.save(tmp_path / "0", tree)
    cordwood.save(tmp_path / "1", {"w": np.ones(10), "n": 2})
    cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "d")
    with pytest.raises(MismatchError, match=r"is a delta: expected a tree, .*apply_delta"):
        cordwood.load(tmp_path / "d", like=tree)
    hint = r"this is a delta: .*apply_delta .*cordwood.load"
    with cordwood.open(tmp_path / "d") as opened:
        with pytest.raises(MismatchError, match=hint) as error:
            opened.load(like=tree)
        assert "select=" not in str(error.value)
        with pytest.raises(MismatchError, match=hint):
            opened.load(like=tree, missing="keep", extra="ignore")
    cordwood.apply_delta(tmp_path / "0", tmp_path / "d", tmp_path / "made")  # the remedies
    assert cordwood.load(tmp_path / "made", like=tree)["n"] == 2
    publisher = cordwood.WeightPublisher(tmp_path / "weights")
    for number in (0, 1):
        publisher.publish(number, {"w": np.full(1000, float(number))}).wait()
    like = {"w": np.zeros(1000)}
    with (
        cordwood.open(tmp_path / "weights" / "1") as opened,
        pytest.raises(MismatchError, match=hint),
    ):
        opened.load(like=like)
    assert cordwood.load(tmp_path / "weights" / "1", like=like)["w"][0] == 1


def test_a_checkpoint_that_is_no_delta_is_refused(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "0", {"w": np.zeros(10)})
    with pytest.raises(FormatError, match="is no delta"):
        cordwood.apply_delta(tmp_path / "0", tmp_path / "0", tmp_path / "made")


def test_no_damage_of_a_delta_is_applied(tmp_path: Path) -> None:
    """Each byte of the arrays of a delta is damaged in turn."""
    old, new = {"w": np.zeros(300, np.float32)}, {"w": np.zeros(300, np.float32)}
    new["w"][::7] = 1
    cordwood.save(tmp_path / "old.safetensors", old)
    cordwood.save(tmp_path / "new.safetensors", new)
    delta, made = tmp_path / "delta.safetensors", tmp_path / "made.safetensors"
    cordwood.delta(tmp_path / "old.safetensors", tmp_path / "new.safetensors", delta)
    with cordwood.open(delta) as checkpoint:
        tree, metadata = checkpoint.load(), dict(checkpoint.metadata)
    damages = 0
    for path in [("digests",), ("sizes",), ("tree", "w")]:
        for position in range(len(_at(tree, path).reshape(-1).view(np.uint8))):
            with cordwood.open(delta) as checkpoint:
                other = checkpoint.load()
            _at(other, path).reshape(-1).view(np.uint8)[position] ^= 16
            cordwood.save(delta, other, metadata=metadata)
            try:  # a few bits of a frame mean nothing
                cordwood.apply_delta(tmp_path / "old.safetensors", delta, made)
            except CordwoodError:
                damages += 1
                assert not made.exists()
            else:
                assert_trees_equal(cordwood.load(made), new)
                made.unlink()
            cordwood.save(delta, tree, metadata=metadata)
    assert damages > 60


def _at(tree: Any, path: tuple[str, ...]) -> np.ndarray:
    for key in path:
        tree = tree[key]
    array: np.ndarray = tree
    return array


DIGEST = "0" * 32
RECORD = {
    "version": 1,
    "digest": DIGEST,
    "base": {"digest": DIGEST, "step": None},
    "whole": False,
    "cuts": [],
    "metadata": {},
}
HOSTILE_RECORDS: dict[str, Any] = {
    "a list": [],
    "another order": dict(reversed(RECORD.items())),
    "version": {**RECORD, "version": True},
    "digest": {**RECORD, "digest": "12"},
    "base": {**RECORD, "base": []},
    "step": {**RECORD, "base": {"digest": DIGEST, "step": -1}},
    "whole": {**RECORD, "whole": 0},
    "whole, and no delta": {**RECORD, "whole": True},
    "no delta": {**RECORD, "base": None},
    "metadata": {**RECORD, "metadata": {"a": 1}},
    "cuts of no leaf": {**RECORD, "cuts": [[[[0]], [7]]]},
    "cuts": {**RECORD, "cuts": [[[[0]]]]},
    "cuts that are no int": {**RECORD, "cuts": [[[[0, 0.5]], [0]]]},
    "more axes": {**RECORD, "cuts": [[[[0], [0]], [0]]]},
    "no first cut": {**RECORD, "cuts": [[[[1]], [0]]]},
    "a cut behind": {**RECORD, "cuts": [[[[0, 9]], [0]]]},
    "cuts that fall": {**RECORD, "cuts": [[[[0, 4, 2]], [0]]]},
    "another digest": RECORD,
}


@pytest.mark.parametrize("what", HOSTILE_RECORDS)
def test_hostile_records_are_refused(tmp_path: Path, what: str) -> None:
    cordwood.save(tmp_path / "0", {"w": np.zeros(9)})
    cordwood.save(tmp_path / "1", {"w": np.ones(9)})
    cordwood.delta(tmp_path / "0", tmp_path / "1", tmp_path / "delta")
    metadata = {"cordwood-version": json.dumps(HOSTILE_RECORDS[what])}
    with cordwood.open(tmp_path / "delta") as delta:
        tree = delta.load()
    cordwood.save(tmp_path / "delta", tree, metadata=metadata)
    with pytest.raises((FormatError, MismatchError)):
        cordwood.apply_delta(tmp_path / "0", tmp_path / "delta", tmp_path / "made")


def test_a_record_of_a_newer_version_says_so(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "0", {"w": np.zeros(9)})
    cordwood.save(tmp_path / "delta", {}, metadata={"cordwood-version": '{"version":2}'})
    with pytest.raises(CordwoodError, match="version 2 is newer"):
        cordwood.apply_delta(tmp_path / "0", tmp_path / "delta", tmp_path / "made")


def test_the_golden_delta(tmp_path: Path) -> None:
    cordwood.apply_delta(BASE_AT, DELTA_AT, tmp_path / "made.safetensors")
    assert_trees_equal(cordwood.load(tmp_path / "made.safetensors"), versions()[1])
    with cordwood.open(tmp_path / "made.safetensors") as made:
        assert made.metadata == METADATA


def test_a_delta_of_the_golden_versions_has_the_digest_of_the_golden_one(tmp_path: Path) -> None:
    for name, tree in zip(("old", "new"), versions(), strict=True):
        cordwood.save(tmp_path / f"{name}.safetensors", tree, metadata=METADATA)
    cordwood.delta(
        tmp_path / "old.safetensors", tmp_path / "new.safetensors", tmp_path / "d.safetensors"
    )
    with cordwood.open(tmp_path / "d.safetensors") as made, cordwood.open(DELTA_AT) as golden:
        assert made.metadata == golden.metadata
        assert (made["digests"][:] == golden["digests"][:]).all()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from cordwood.cli.main import cli

    monkeypatch.chdir(tmp_path)
    shutil.copy(BASE_AT, "old.safetensors")
    cordwood.save("new.safetensors", versions()[1], metadata=METADATA)
    runner = CliRunner()
    made = runner.invoke(cli, ["delta", "old.safetensors", "new.safetensors", "delta"])
    assert made.exit_code == 0
    assert made.output.startswith("delta: ")
    compared = runner.invoke(cli, ["diff", "old.safetensors", "new.safetensors", "--delta"])
    assert compared.exit_code == 1
    assert "a delta has " in compared.output
    size = made.output.partition(": ")[2].partition(" from")[0]
    assert size in compared.output
    applied = runner.invoke(
        cli, ["apply", "old.safetensors", "delta", "made.safetensors", "--json"]
    )
    assert applied.exit_code == 0, applied.output
    assert cordwood.diff("new.safetensors", "made.safetensors").equal


def test_arrays_of_numpy_and_of_jax_take_each_others_place(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32)
    cordwood.save(tmp_path / "numpy", {"w": values})
    cordwood.save(tmp_path / "jax", {"w": jnp.asarray(values * 2)})
    cordwood.delta(tmp_path / "numpy", tmp_path / "jax", tmp_path / "change")
    cordwood.apply_delta(tmp_path / "numpy", tmp_path / "change", tmp_path / "made")
    assert_trees_equal(cordwood.load(tmp_path / "made"), {"w": values * 2})
    cordwood.delta(tmp_path / "jax", tmp_path / "numpy", tmp_path / "back")
    cordwood.apply_delta(tmp_path / "jax", tmp_path / "back", tmp_path / "made-back")
    assert_trees_equal(cordwood.load(tmp_path / "made-back"), {"w": jnp.asarray(values)})
