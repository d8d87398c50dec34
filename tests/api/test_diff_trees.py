"""diff of directories that hold several trees: all are compared, or what was not is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import PrefixError
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)

Trees = Mapping[str, Any]


def weights(scale: float = 1.0) -> dict[str, Any]:
    return {"layer": {"w": scale * np.arange(6, dtype=np.float32)}, "step": np.int32(7)}


def save_prefixes(path: Path, trees: Trees, layout: Any) -> None:
    for prefix, tree in trees.items():
        cordwood.save(path, tree, prefix=prefix or None, format=layout)


def save_packs(path: Path, trees: Trees) -> None:
    save_prefixes(path, trees, "packs")


def save_zarr(path: Path, trees: Trees) -> None:
    save_prefixes(path, trees, "zarr")


def save_step(path: Path, trees: Trees) -> None:
    with CheckpointManager(path.parent) as manager:
        items = {name: tree for name, tree in trees.items() if name}
        manager.save(int(path.name), trees[""], items=items)


def save_orbax(path: Path, trees: Trees) -> None:
    items = {name or "default": ocp.args.PyTreeSave(tree) for name, tree in trees.items()}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path.absolute(), ocp.args.Composite(**items))


SAVES: dict[str, Callable[[Path, Trees], None]] = {
    "packs": save_packs,
    "zarr": save_zarr,
    "step": save_step,
    "orbax": save_orbax,
}
UNNAMED = {"orbax": "default"}


@pytest.mark.parametrize("kind", SAVES)
def test_a_second_tree_that_differs(tmp_path: Path, kind: str) -> None:
    a, b = tmp_path / "a/1", tmp_path / "b/1"
    SAVES[kind](a, {"": weights(), "ema": weights()})
    SAVES[kind](b, {"": weights(), "ema": weights(2)})
    difference = cordwood.diff(a, b)
    assert not difference.equal
    (leaf,) = difference.leaves
    assert (leaf.prefix, leaf.key_path, leaf.differing) == ("ema", "layer/w", 5)
    assert difference.prefixes == (UNNAMED.get(kind, ""), "ema")
    assert difference.equal_leaves == 3
    assert "\n  [ema] layer/w: float32[6]: 5 of 6 elements differ" in str(difference)
    assert "; 3 leaves equal in 2 trees" in str(difference)
    assert cordwood.diff(a, b, prefix=UNNAMED.get(kind, "")).equal
    assert not cordwood.diff(a, b, prefix="ema").equal


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("other", SAVES)
def test_equal_trees_of_two_formats(tmp_path: Path, kind: str, other: str) -> None:
    a, b = tmp_path / "a/1", tmp_path / "b/1"
    names = ["default", "ema"] if "orbax" in (kind, other) and kind != other else ["", "ema"]
    if "step" in (kind, other) and names[0]:
        names[0] = ""  # the tree of a step has no name, and that of Orbax has one
    for save, path in ((SAVES[kind], a), (SAVES[other], b)):
        save(path, {name: weights() for name in names})
    difference = cordwood.diff(a, b)
    if "orbax" in (kind, other) and "step" in (kind, other):
        assert difference.trees[0].startswith("the tree ")
        assert not difference.equal
    else:
        assert difference.equal, str(difference)
    assert cordwood.diff(a, b, prefix="ema").equal


def test_a_tree_of_one_side_only(tmp_path: Path) -> None:
    save_packs(tmp_path / "a", {"": weights(), "ema": weights()})
    save_packs(tmp_path / "b", {"": weights(), "old": weights()})
    difference = cordwood.diff(tmp_path / "a", tmp_path / "b")
    assert difference.trees == ("the tree 'ema': only in a", "the tree 'old': only in b")
    assert not difference.equal
    assert str(difference).startswith("2 differences between a = ")
    assert "\n  the tree 'ema': only in a\n" in str(difference)
    assert "the tree &#x27;ema&#x27;: only in a" in difference._repr_html_()
    plain = json.loads(json.dumps(difference.to_json()))
    assert plain["trees"] == list(difference.trees)
    with pytest.raises(PrefixError, match="there is no tree 'ema' in one of the two"):
        cordwood.diff(tmp_path / "a", tmp_path / "b", prefix="ema")


def test_the_only_trees_of_both_are_compared(tmp_path: Path) -> None:
    save_packs(tmp_path / "a", {"params": weights()})
    cordwood.save(tmp_path / "b.safetensors", weights())
    save_zarr(tmp_path / "c", {"params": weights()})
    assert cordwood.diff(tmp_path / "a", tmp_path / "b.safetensors").prefixes == ("",)
    difference = cordwood.diff(tmp_path / "a", tmp_path / "c")
    assert difference.equal
    assert str(difference).endswith("are equal: 2 leaves in the tree 'params'")


def test_a_file_beside_several_trees(tmp_path: Path) -> None:
    save_packs(tmp_path / "a", {"": weights(), "ema": weights(2)})
    cordwood.save(tmp_path / "b.safetensors", weights())
    difference = cordwood.diff(tmp_path / "a", tmp_path / "b.safetensors")
    assert difference.trees == ("the tree 'ema': only in a",)
    assert cordwood.diff(tmp_path / "a", tmp_path / "b.safetensors", prefix="").equal
    other = cordwood.diff(tmp_path / "a", tmp_path / "b.safetensors", prefix="ema")
    assert [leaf.prefix for leaf in other.leaves] == ["ema"]


def test_no_tree_of_the_same_name(tmp_path: Path) -> None:
    save_packs(tmp_path / "a", {"params": weights(), "ema": weights()})
    cordwood.save(tmp_path / "b.safetensors", weights())
    with pytest.raises(PrefixError, match="a holds the tree 'ema', the tree 'params', and b holds"):
        cordwood.diff(tmp_path / "a", tmp_path / "b.safetensors")
    # The advice of the message.
    assert cordwood.diff(tmp_path / "a", tmp_path / "b.safetensors", prefix="ema").equal
    with cordwood.open(tmp_path / "a", prefix="params") as checkpoint:
        assert cordwood.diff(checkpoint, tmp_path / "b.safetensors").equal


def test_what_is_compared_with_one_tree_is_named(tmp_path: Path) -> None:
    save_packs(tmp_path / "a", {"": weights(), "ema": weights(2)})
    difference = cordwood.diff(tmp_path / "a", weights())
    assert difference.equal
    assert difference.skipped == ("the tree 'ema'",)
    assert str(difference).endswith("2 leaves; not compared: the tree 'ema'")
    assert "not compared: the tree" in difference._repr_html_()
    assert cordwood.diff(weights(2), tmp_path / "a", prefix="ema").equal
    with cordwood.open(tmp_path / "a", prefix="ema") as checkpoint:
        assert cordwood.diff(checkpoint, checkpoint).skipped == ()


def test_patterns_apply_to_one_tree(tmp_path: Path) -> None:
    for name, scale in (("a", 1), ("b", 2)):
        save_packs(tmp_path / name, {"": weights(), "ema": weights(scale)})
    difference = cordwood.diff(tmp_path / "a", tmp_path / "b", select="layer")
    assert (difference.equal, difference.skipped) == (True, ("the tree 'ema'",))
    chosen = cordwood.diff(tmp_path / "a", tmp_path / "b", select="layer", prefix="ema")
    assert (chosen.equal, chosen.skipped) == (False, ())


def test_items_that_are_no_trees_are_named(tmp_path: Path) -> None:
    for name in "ab":
        args = {"state": ocp.args.PyTreeSave(weights()), "meta": ocp.args.JsonSave({"a": 1})}
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save((tmp_path / name).absolute(), ocp.args.Composite(**args))
    difference = cordwood.diff(tmp_path / "a", tmp_path / "b")
    assert difference.equal
    assert str(difference).endswith("; not compared: the item 'meta' (JSON)")


def test_all_trees_in_stores_are_compared(tmp_path: Path) -> None:
    for name, scale in (("a", 1), ("b", 2)):
        save_packs(tmp_path / name, {"": weights(), "ema": weights(scale)})
        cordwood.copy(tmp_path / name, f"memory://{tmp_path.name}-diff/{name}")
    urls = [f"memory://{tmp_path.name}-diff/{name}" for name in "ab"]
    assert [leaf.prefix for leaf in cordwood.diff(*urls).leaves] == ["ema"]


def test_the_command_names_the_tree_of_each_difference(tmp_path: Path, run: Run) -> None:  # noqa: F811
    a, b = tmp_path / "a", tmp_path / "b"
    save_packs(a, {"": weights(), "ema": weights()})
    save_packs(b, {"": weights(), "ema": weights(2), "old": weights()})
    ran = run("diff", a, b)
    assert ran.code == 1
    assert "  the tree 'old': only in b\n  [ema] layer/w: " in ran.out
    assert run("diff", a, b, "--prefix", "").code == 0
    assert run("diff", a, b, "--prefix", "ema").code == 1
    assert run("diff", a, b, "--prefix", "old").code == 3
    table = run("diff", a, b, "--stats")
    assert table.code == 1
    assert "[ema] layer/w" in table.out
    assert "the tree 'old': only in b" in table.out
    plain = json.loads(run("diff", a, b, "--json").out)
    assert [leaf["prefix"] for leaf in plain["leaves"]] == ["ema"]
    assert run("diff", a, b, "--digests").code == 1
    assert run("diff", a, a).code == 0
